"""Both rules of sharing against tables, and their promises against anything Hypothesis finds."""

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from roma.domain.model import Sharing
from supervisor.sharing import GRID, CoreRequest, share

MAX_MIN, PROPORTIONAL = Sharing.MAX_MIN, Sharing.PROPORTIONAL


def granted(demands, capacity, gamma=0.0, sharing=PROPORTIONAL):
    return list(share([CoreRequest(d) for d in demands], capacity, gamma, sharing=sharing).granted)


@pytest.mark.parametrize(
    ("demands", "capacity", "gamma", "expected"),
    [
        ([4.0, 4.0], 4.0, 0.0, [2.0, 2.0]),  # η = 0.5: scaled
        ([3.0, 1.0], 2.0, 0.0, [1.5, 0.5]),
        ([1.0, 3.0], 4.0, 0.5, [1.0, 3.0]),  # η = 1: as demanded, whatever γ
        ([1.0, 1.0], 4.0, 0.0, [1.0, 1.0]),  # η = 2, γ = 0: as demanded
        ([1.0, 1.0], 4.0, 0.5, [1.5, 1.5]),  # u·(1 + γ(η - 1))
        ([1.0, 1.0], 4.0, 1.0, [2.0, 2.0]),  # γ = 1: everything is used
        ([0.0, 0.0], 4.0, 1.0, [0.0, 0.0]),
        ([], 4.0, 0.0, []),
    ],
)
def test_the_papers_table(demands, capacity, gamma, expected):
    assert granted(demands, capacity, gamma) == pytest.approx(expected)


def test_eta_is_capacity_over_demand():
    assert share([CoreRequest(1.0), CoreRequest(3.0)], 2.0).eta == 0.5


@pytest.mark.parametrize(
    ("wants", "capacity", "expected"),
    [
        # 0.4 + 0.6 first, the remaining 1.0 in the ratio of what is still missing, 7.6 : 0.4
        (
            [CoreRequest(8.0, minimum=0.1, floor=0.4), CoreRequest(1.0, minimum=0.1, floor=0.6)],
            2.0,
            (1.35, 0.65),
        ),
        # Floors that do not fit are scaled above the minima.
        (
            [CoreRequest(3.0, minimum=0.2, floor=2.2), CoreRequest(3.0, minimum=0.2, floor=1.2)],
            1.0,
            (0.6, 0.4),
        ),
    ],
)
def test_in_a_shortage_minimum_and_floor_come_before_demand(wants, capacity, expected):
    assert share(wants, capacity, sharing=PROPORTIONAL).granted == pytest.approx(expected)


@pytest.mark.parametrize(
    ("demands", "capacity", "expected"),
    [
        ([0.26, 9.0], 1.4, [0.26, 1.14]),  # the small one whole, however much the other wants
        ([0.5, 0.7, 9.0], 1.5, [0.5, 0.5, 0.5]),
        ([0.2, 0.7, 9.0], 1.5, [0.2, 0.65, 0.65]),
        ([1.0, 3.0], 4.0, [1.0, 3.0]),
    ],
)
def test_in_a_shortage_who_needs_less_than_a_fair_share_gets_it_whole(demands, capacity, expected):
    assert granted(demands, capacity, sharing=MAX_MIN) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("wants", "capacity", "expected"),
    [
        ([CoreRequest(4.0, weight=3.0), CoreRequest(4.0), CoreRequest(0.1)], 2.1, (1.5, 0.5, 0.1)),
        ([CoreRequest(1.0, minimum=1.0), CoreRequest(4.0), CoreRequest(4.0)], 1.8, (1.0, 0.4, 0.4)),
        ([CoreRequest(c, minimum=c) for c in (2.0, 0.3, 2.0)], 1.3, (0.5, 0.3, 0.5)),
        ([CoreRequest(0.2, floor=1.0), CoreRequest(5.0)], 2.0, (0.2, 1.8)),
    ],
    ids=[
        "a fair share is by weight",
        "minima come before it",
        "minima that do not fit shrink from the largest",
        "a floor never raises a demand",
    ],
)
def test_fair_shares_in_a_shortage(wants, capacity, expected):
    assert share(wants, capacity).granted == pytest.approx(expected)


@pytest.mark.parametrize("sharing", Sharing)
@pytest.mark.parametrize(
    ("serving", "loading", "capacity", "expected"),
    [
        (0.6, 1.4, 1.4, (0.6, 0.8)),  # what the other leaves
        (1.4, 1.4, 1.4, (1.3, 0.1)),  # its minimum, if that is nothing
        (0.6, 0.3, 1.4, (0.6, 0.3)),  # all of it, where there is enough
    ],
)
def test_what_loads_has_what_those_who_serve_leave(serving, loading, capacity, expected, sharing):
    wants = [
        CoreRequest(serving, minimum=0.1),
        CoreRequest(loading, minimum=0.1, floor=1.0, loads=True),
    ]
    assert share(wants, capacity, sharing=sharing).granted == pytest.approx(expected)


@pytest.mark.parametrize("sharing", Sharing)
def test_where_all_load_they_share(sharing):
    wants = [CoreRequest(d, minimum=0.1, loads=True) for d in (1.1, 1.1)]
    assert share(wants, 1.4, sharing=sharing).granted == pytest.approx((0.7, 0.7))


def test_gamma_gives_no_one_more_than_its_maximum():
    assert share([CoreRequest(1.0, maximum=1.2)], 4.0, gamma=1.0).granted == (1.2,)


CORES = st.floats(0.0, 64.0, allow_nan=False)


@st.composite
def wants(draw):
    minimum = draw(st.floats(0.01, 2.0))
    demand = minimum + draw(CORES)
    return CoreRequest(
        demand,
        minimum,
        draw(CORES),
        demand + draw(CORES),
        loads=draw(st.booleans()),
        weight=draw(st.floats(0.01, 100.0)),
    )


SHARING = st.sampled_from(Sharing)


@given(st.lists(wants(), max_size=12), st.floats(0.0, 64.0), st.floats(0.0, 1.0), SHARING)
def test_granted_cores_never_exceed_capacity_and_keep_the_minima_that_fit(
    all_wants, spare, gamma, sharing
):
    capacity = sum(w.minimum for w in all_wants) + spare
    result = share(all_wants, capacity, gamma, sharing=sharing).granted
    assert sum(result) <= capacity * (1 + 1e-9) + 1e-9
    for want, cores in zip(all_wants, result, strict=True):
        assert want.minimum <= cores <= want.maximum + 1e-9


@given(st.lists(CORES, min_size=1, max_size=12), st.floats(0.1, 64.0))
def test_without_floors_a_shortage_is_eta_times_the_demand(demands, capacity):
    result = share([CoreRequest(d) for d in demands], capacity, sharing=PROPORTIONAL)
    if result.eta < 1:
        for demand, cores in zip(demands, result.granted, strict=True):
            assert cores == pytest.approx(result.eta * demand, abs=GRID * 1.01)


@given(st.lists(CORES, min_size=2, max_size=2), st.floats(0.1, 8.0), st.floats(0.0, 1.0), SHARING)
def test_who_demands_more_gets_no_less(demands, capacity, gamma, sharing):
    small, large = sorted(demands)
    a, b = granted([small, large], capacity, gamma, sharing)
    assert a <= b


@given(st.lists(wants(), min_size=1, max_size=12), st.floats(0.0, 64.0))
def test_max_min_uses_all_cores_and_cuts_only_who_has_a_fair_share_at_least(all_wants, spare):
    all_wants = [replace(w, loads=False) for w in all_wants]
    capacity = sum(w.minimum for w in all_wants) + spare
    result = share(all_wants, capacity)
    assume(result.eta < 1)
    assert sum(result.unrounded) == pytest.approx(capacity)
    shares = list(zip(all_wants, result.unrounded, strict=True))
    # Beyond its minimum nobody has more by weight than those who are cut.
    highest = max((x / w.weight for w, x in shares if x > w.minimum + 1e-9), default=0.0)
    for want, unrounded in shares:
        if unrounded < want.demand - 1e-6:
            assert unrounded / want.weight >= highest - 1e-6
