"""Who is let in, with which status who is not, and that nothing secret shows."""

import asyncio
import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.live.auth import access as live
from dispatcher.live.auth.access import Access, Credentials, Denied
from dispatcher.live.auth.rate_limit import RateLimit
from roma.config.gateway import GatewayConfig
from roma.config.security import Limits
from roma.config.watched_file import Watched, keep_looking
from roma.domain.errors import ConfigError
from roma.domain.model import Priority
from roma.security import api_keys
from tests.support.waiting import beside, until

ID, OTHER = "abcdefgh", "abcdefgi"
TOKEN, OTHER_TOKEN = api_keys.new_token(ID), api_keys.new_token(OTHER)
SECRET = TOKEN[14:]


def entry(token=TOKEN, **more):
    return {"name": "checkout", "hash": api_keys.hashed(token), "models": ["m"], **more}


class Fixed:
    """Keys as a watched file has them."""

    def __init__(self, **entries):
        self.set(**entries)

    def set(self, **entries):
        self.value = api_keys.Keys.model_validate({"keys": entries})


def access(wall=lambda: 0.0, **entries):
    return Access(Fixed(**entries), wall=wall)


def bearer(token=TOKEN):
    return Credentials(f"Bearer {token}")


def refused(access, who, model="m", now=0.0):
    with pytest.raises(Denied) as caught:
        access.admit(who, model, now)
    denied = caught.value
    assert SECRET not in f"{denied} {denied!r} {denied.headers} {who!r} {access!r}"
    return denied


def test_a_key_opens_its_models_by_either_header():
    a = access(abcdefgh=entry(priority="low"))
    for who in (
        bearer(),
        Credentials(f"bearer  {TOKEN} "),
        Credentials(None, TOKEN),
        Credentials("Basic cm9tYTo=", TOKEN),  # of a proxy on the way, say
        Credentials(f"Bearer {TOKEN}", "a-proxys-own"),
        Credentials(f"Bearer {TOKEN}", TOKEN),
    ):
        grant = a.admit(who, "m", 0.0)
        assert (grant.name, grant.priority) == ("checkout", Priority.LOW)
        grant.release()
        assert a.admit(who, None, 0.0).name == "checkout"  # of no model


@pytest.mark.parametrize(
    "who",
    [
        Credentials(),
        Credentials("", None),
        Credentials("Bearer"),
        Credentials("Bearer "),
        Credentials(f"Basic {TOKEN}"),
        Credentials(TOKEN),
        bearer(OTHER_TOKEN),
        bearer(TOKEN[:-1]),
        bearer(TOKEN + "x"),
        bearer("roma_" + ID),
        bearer("roma_"),
        bearer("x" * 100_000),
        bearer("\udcff\udcfe"),
        bearer("eyJhbGciOiJub25lIn0.e30."),
        Credentials(None, ""),
        Credentials(None, TOKEN.upper()),
        Credentials("Bearer wrong", TOKEN),  # which of both is meant?
        Credentials(f"Bearer {TOKEN}", OTHER_TOKEN),
        Credentials(certificate="checkout"),
    ],
)
def test_whoever_has_no_valid_key_hears_401_whatever_he_asks_for(who):
    a = access(abcdefgh=entry())
    for model in ("m", "n", None):
        denied = refused(a, who, model)
        assert denied.status == 401
        assert denied.headers == {"WWW-Authenticate": 'Bearer realm="roma"'}
    assert a.denied == {401: 3}


@given(st.text(), st.text())
def test_no_text_is_let_in_and_none_breaks_it(authorization, api_key):
    a = access(abcdefgh=entry())
    with pytest.raises(Denied) as caught:
        a.admit(Credentials("Bearer " + authorization, api_key), "m", 0.0)
    assert caught.value.status == 401


def test_a_scope_says_nothing_about_what_exists():
    a = access(abcdefgh=entry())
    exists, not_there = refused(a, bearer(), "n"), refused(a, bearer(), "no-such-model")
    assert exists.status == not_there.status == 403
    assert str(exists).replace("n", "") == str(not_there).replace("no-such-model", "").replace(
        "n", ""
    )
    everything = access(abcdefgh=entry(models="*"))
    everything.admit(bearer(), "no-such-model", 0.0)  # the gateway says 404


def test_a_key_expires_by_the_wall_clock():
    at = 1_800_000_000
    wall = [at - 1]
    a = access(lambda: wall[0], abcdefgh=entry(expires="2027-01-15T08:00:00Z"))
    a.admit(bearer(), "m", 0.0)
    wall[0] = at
    denied = refused(a, bearer())
    assert (denied.status, str(denied)) == (401, "the credentials of checkout have expired")


def test_a_rate_is_a_bucket_and_says_when_to_come_again():
    a = access(abcdefgh=entry(rate=2, burst=3))
    for _ in range(3):
        a.admit(bearer(), "m", 10.0)
    denied = refused(a, bearer(), now=10.25)
    assert denied.status == 429
    assert denied.retry_after == 0.25
    assert denied.headers == {"Retry-After": "1"}
    a.admit(bearer(), "m", 10.5)
    refused(a, bearer(), now=10.5)


def test_a_refusal_for_a_scope_costs_nothing_of_the_rate():
    a = access(abcdefgh=entry(rate=1))
    for _ in range(5):
        refused(a, bearer(), "n")
    a.admit(bearer(), "m", 0.0)


def test_concurrency_is_given_back_once_per_grant():
    a = access(abcdefgh=entry(concurrency=2))
    first, _ = a.admit(bearer(), "m", 0.0), a.admit(bearer(), "m", 0.0)
    assert refused(a, bearer()).status == 429
    first.release()
    first.release()  # no more than once
    a.admit(bearer(), "m", 0.0)
    assert refused(a, bearer()).status == 429


def test_keys_do_not_share_what_they_may():
    a = access(abcdefgh=entry(rate=1), abcdefgi=entry(OTHER_TOKEN, rate=1))
    a.admit(bearer(), "m", 0.0)
    refused(a, bearer())
    a.admit(bearer(OTHER_TOKEN), "m", 0.0)


def test_what_was_spent_stays_so_when_the_keys_are_read_anew():
    fixed = Fixed(abcdefgh=entry(rate=1, burst=5, concurrency=2))
    a = Access(fixed, wall=lambda: 0.0)
    grant = a.admit(bearer(), "m", 0.0)
    fixed.set(abcdefgh=entry(rate=1, burst=1, concurrency=1))
    assert "under way" in str(refused(a, bearer()))
    grant.release()
    a.admit(bearer(), "m", 0.0).release()
    assert "per second" in str(refused(a, bearer()))
    fixed.set(abcdefgi=entry(OTHER_TOKEN))
    assert refused(a, bearer()).status == 401
    a.admit(bearer(OTHER_TOKEN), "m", 0.0)


def test_a_client_certificate_is_a_key_where_the_file_names_it():
    a = access(reports={"certificate": "r.example", "models": ["m"]}, abcdefgh=entry())
    assert a.admit(Credentials(certificate="r.example"), "m", 0.0).name == "reports"
    assert refused(a, Credentials(certificate="r.example"), "n").status == 403
    assert refused(a, Credentials(certificate="other.example")).status == 401
    # Whoever brings a token means it: a wrong one is not overlooked.
    assert refused(a, Credentials("Bearer x", None, "", "r.example")).status == 401


def test_without_keys_a_verified_certificate_is_enough():
    a = Access(certificates=True)
    assert a.admit(Credentials(certificate="c"), "m", 0.0).name == "c"
    assert refused(a, Credentials()).status == 401
    assert refused(a, bearer()).status == 401


def test_with_nothing_asked_for_everybody_is_let_in():
    a = Access()
    assert a.admit(Credentials("Bearer x"), "m", 0.0).priority is Priority.INTERACTIVE


@pytest.mark.looptime
async def test_a_file_that_is_replaced_is_in_force_a_look_later_and_a_wrong_one_never(
    tmp_path, caplog, monkeypatch
):
    file = tmp_path / "keys.yaml"

    def unreadable(file):
        raise ConfigError(f"{file}: cannot be read")

    def write(text):
        scratch = tmp_path / "new"
        scratch.write_text(text)
        scratch.replace(file)

    def of(id_, token):
        return f"keys: {{{id_}: {{hash: '{api_keys.hashed(token)}', models: '*'}}}}"

    write(of(ID, TOKEN))
    watched = Watched([file], lambda: api_keys.load(file))
    a = Access(watched)
    a.admit(bearer(), "m", 0.0)
    write(of(OTHER, OTHER_TOKEN))
    watched.look()
    assert refused(a, bearer()).status == 401
    a.admit(bearer(OTHER_TOKEN), "m", 0.0)
    for wrong in (f"keys: {{x: {TOKEN}}}", "keys: {", "", "\0"):
        write(wrong)
        assert not watched.look()
        a.admit(bearer(OTHER_TOKEN), "m", 0.0)
    file.unlink()
    assert not watched.look()
    a.admit(bearer(OTHER_TOKEN), "m", 0.0)
    assert "stays in force" in caplog.text
    os.mkfifo(file)
    assert not watched.look()
    assert f"{file}: not a regular file; what it said before stays in force" in caplog.text
    file.unlink()
    write(of(ID, TOKEN))
    with monkeypatch.context() as patched:  # what the system's stamps do not show
        patched.setattr(api_keys, "load", unreadable)
        caplog.clear()
        assert not watched.look()
        assert not watched.look()
        assert caplog.text.count("cannot be read") == 1
    assert watched.look()
    a.admit(bearer(), "m", 0.0)
    assert SECRET not in caplog.text + repr(watched)


async def test_a_gateway_s_keys_follow_their_file(tmp_path, monkeypatch):
    file = tmp_path / "keys.yaml"
    file.write_text("keys: {}")
    monkeypatch.setattr("roma.config.watched_file.LOOK", 0.01)
    async with live.opened(GatewayConfig(keys=file)) as a:
        assert refused(a, bearer()).status == 401
        file.write_text(f"keys: {{{ID}: {{hash: '{api_keys.hashed(TOKEN)}', models: '*'}}}}")
        async with asyncio.timeout(10):
            while True:
                try:
                    a.admit(bearer(), "m", 0.0)
                    break
                except Denied:
                    await asyncio.sleep(0.01)


async def test_looking_goes_on_when_one_file_is_odd(tmp_path):
    class Broken:
        def look(self):
            raise RuntimeError("a bug")

    class Counts:
        looks = 0

        def look(self):
            self.looks += 1

    counts = Counts()
    async with beside(keep_looking([Broken(), counts], 0.001)):
        await until(lambda: counts.looks >= 3)


ARRIVALS = st.lists(st.floats(0, 5, allow_nan=False), max_size=200)


@given(ARRIVALS, st.floats(0.1, 50), st.none() | st.integers(1, 20))
def test_a_bucket_never_lets_in_more_than_rate_times_time_and_a_burst(gaps, rate, burst):
    limits = Limits(rate=rate, burst=burst)
    rate_limit = RateLimit(limits)
    now, let_in = 0.0, []
    for gap in gaps:
        now += gap
        if rate_limit.refusal(now) is None:
            let_in.append(now)
    for i, start in enumerate(let_in):
        for n, end in enumerate(let_in[i:], 1):
            assert n <= rate * (end - start) + limits.effective_burst + 1e-6


@given(ARRIVALS, st.floats(0.1, 50))
def test_whoever_comes_when_he_was_told_to_is_let_in(gaps, rate):
    rate_limit = RateLimit(Limits(rate=rate, burst=1))
    now = 0.0
    for gap in gaps:
        now += gap
        if (refusal := rate_limit.refusal(now)) is not None:
            now += refusal[1] + 1e-9 * max(1, now)
            assert rate_limit.refusal(now) is None


@given(st.lists(st.floats(-1e6, 1e6, allow_nan=False), min_size=1))
def test_a_clock_that_jumps_back_gives_nobody_anything(times):
    rate_limit = RateLimit(Limits(rate=1, burst=1))
    let_in = sum(rate_limit.refusal(now) is None for now in times)
    highest = -math.inf
    risen = 0.0
    for now in times:
        risen += max(0.0, now - highest) if highest > -math.inf else 0.0
        highest = max(highest, now)
    assert let_in <= risen + 1 + 1e-6


def test_the_hash_is_compared_in_constant_time_and_only_once(monkeypatch):
    calls = []

    def compared(a, b):
        calls.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(live, "compare_digest", compared)
    a = access(abcdefgh=entry())
    a.admit(bearer(), "m", 0.0)
    refused(a, bearer(OTHER_TOKEN))  # of an id that is not there: the same work
    assert calls == [(32, 32)] * 2
