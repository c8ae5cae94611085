"""A demand can be read as a sum: whatever a law sees, its terms add up."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from controllers import registry
from controllers.measurement import Measurement
from controllers.registry import LAWS
from tests.support.examples import examples

SLA, LO, HI = 0.5, 0.1, 4.0

# Nothing ends although all cores are there: raised to the least, then for that, then cut again.
STALLED = Measurement(
    response_time=None,
    oldest_age=5.0,
    arrivals=0.0,
    completed_gpu=0.0,
    completed_here=0.0,
    failed=0.0,
    shed=0.0,
    waiting=1,
    in_flight=1,
    usage=0.0,
    applied=HI,
    sla=SLA,
    set_point=SLA / 2,
    deadline=2 * SLA,
    profile=0.02,
)

counts = st.integers(0, 200).map(float)
seconds = st.floats(0.0, 10.0)


@st.composite
def measurements(draw):
    """A period: from nothing at all to everything late."""
    cpu, gpu = draw(counts), draw(st.sampled_from([0.0, 20.0]))
    return Measurement(
        response_time=draw(st.none() | st.floats(1e-4, 10.0)),
        oldest_age=draw(seconds),
        arrivals=draw(counts),
        completed_gpu=gpu,
        completed_here=cpu,
        completed_cpu=cpu,
        failed=draw(st.sampled_from([0.0, 3.0])),
        shed=draw(st.sampled_from([0.0, 7.0])),
        waiting=draw(st.integers(0, 100)),
        in_flight=draw(st.integers(0, 4)),
        usage=draw(st.floats(0.0, 4.0)),
        applied=draw(st.floats(LO, HI)),
        throttled=draw(st.floats(0.0, 1.0)),
        sla=SLA,
        set_point=SLA / 2,
        deadline=2 * SLA,
        profile=draw(st.none() | st.just(0.02)),
    )


@pytest.mark.parametrize("law", LAWS)
@settings(max_examples=examples(60))
@example(periods=[(STALLED, 1.0)])
@given(
    periods=st.lists(st.tuples(measurements(), st.floats(0.5, 2.5)), min_size=1, max_size=6),
)
def test_the_terms_of_a_demand_are_its_addends(law, periods):
    step, state = registry.build(law, {}), None
    for measurement, dt in periods:
        demand, state = step(state, measurement, dt=dt, lo=LO, hi=HI)
        if demand.cores is not None:
            assert abs(sum(demand.terms.values()) - demand.cores) <= 1e-9
            assert LO <= demand.cores <= HI
