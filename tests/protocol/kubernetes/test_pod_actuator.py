"""Limits as the actuator sets them: what is sent, confirmed, sent again, or told as refused."""

import asyncio

import pytest

from roma.domain.errors import ActuationError
from roma.kubernetes.client import ApiServerError
from roma.kubernetes.limit_range import CpuBounds
from supervisor.actuators import pods as module
from supervisor.actuators.pods import PodActuator
from supervisor.executables import Reading
from tests.support.fake_api_server import pod
from tests.support.pod_status import NoMeters
from tests.support.waiting import until


class Kernel:
    """Reads a quota of these cores."""

    def __init__(self, cores):
        self.cores = cores

    def read(self, pods):
        return {name: Reading(self.cores, 0.0, 0, 0) for name in pods}


@pytest.fixture
async def actuator(cluster):
    """An actuator on pods a, b and c, each with a limit of one core."""
    await cluster.add(*map(pod, "abc"))
    return made(cluster)


class Ticking(PodActuator):
    """Is applied after a period each time, on a clock of its own; or after `spared` of one."""

    now = spared = 0.0

    async def apply(self, cores):
        self.now += self._period * (1 - self.spared)
        return await super().apply(cores)

    def _clock(self):
        return self.now


def made(cluster, **changes):
    arguments = {"worker": "w", "container": "model-server", "period": 1.0} | changes
    actuator = Ticking(cluster.watch, NoMeters(), **arguments)
    if changes.get("period", 1.0) >= 1.0:
        actuator._limit = 20.0  # a busy machine's calls may take longer than a third of a second
    cluster.actuators.append(actuator)
    return actuator


async def test_the_present_limits_are_confirmed_without_a_call(cluster, actuator):
    assert await actuator.apply({}) == {"a@w": 1.0, "b@w": 1.0, "c@w": 1.0}
    assert await actuator.apply({}) == {}
    assert cluster.api.patches == []


async def test_nothing_is_kept_of_pods_that_are_gone(cluster, actuator):
    await actuator.apply({"a@w": 0.5})
    for name in "abc":
        cluster.api.delete(name)
    await until(lambda: not cluster.watch.pods)
    await actuator.apply({})
    kept = (actuator._in_force, actuator._grants, actuator._told, actuator._asked)
    assert kept == ({}, {}, {}, {})


async def test_a_limit_is_confirmed_though_the_answer_to_its_call_comes_last(
    cluster, actuator, monkeypatch
):
    """As it may to a supervisor that is busy; no event follows."""
    patch = cluster.client.patch

    async def late(*arguments):
        answer = await patch(*arguments)
        await until(lambda: cluster.watch.pods["a"].granted == 500)
        return answer

    monkeypatch.setattr(cluster.client, "patch", late)
    found = await actuator.apply({"a@w": 0.5})
    while "a@w" not in found or found["a@w"] != 0.5:
        found = await actuator.apply({})
    assert len(cluster.api.patches) == 1


async def test_a_limit_is_applied_once_the_watch_shows_it(cluster, actuator):
    await actuator.apply({})
    assert await actuator.apply({"a@w": 0.25}) == {"a@w": 0.25}
    assert cluster.api.patches == [("a", "250m")]


@pytest.mark.parametrize(
    ("limit", "wanted", "sent"),
    [
        ("1", 1.009, None),
        ("1", 1.010, "1010m"),
        ("1", 0.990, "990m"),
        ("30m", 0.039, None),
        ("30m", 0.040, "40m"),
        ("4", 4.039, None),
        ("4", 4.040, "4040m"),
        ("1", 0.001, "21m"),
        ("1", 64.0, "64"),
    ],
)
async def test_only_changes_beyond_the_dead_band_are_sent_and_none_below_the_request(
    cluster, actuator, limit, wanted, sent
):
    cluster.api.put(pod("a", limit=limit))
    await until(lambda: cluster.watch.pods["a"].limit != 1000 or limit == "1")
    await actuator.apply({"a@w": wanted})
    assert cluster.api.patches == ([] if sent is None else [("a", sent)])


async def test_a_node_gets_ten_changes_a_second_the_largest_and_decreases_first(cluster, actuator):
    await cluster.add(*(pod(f"p{i:02}") for i in range(20)))
    changes = [(-1) ** i * (0.8 - i / 50) for i in range(20)]
    cores = {f"p{i:02}@w": 1 + change for i, change in enumerate(changes)}
    await actuator.apply(cores)
    names = [name for name, _ in cluster.api.patches]
    assert names == [f"p{i:02}" for i in (*range(1, 10, 2), *range(0, 10, 2))]
    await actuator.apply(cores)
    assert {name for name, _ in cluster.api.patches[10:]} == {f"p{i:02}" for i in range(10, 20)}


async def test_ticks_that_come_early_get_no_more_changes(cluster, actuator):
    await cluster.add(*(pod(f"p{i:02}") for i in range(20)))
    sent = []
    for i in range(8):
        actuator.spared = 0.75 if i else 0.0
        await actuator.apply({f"p{k:02}@w": 0.5 + i / 50 for k in range(20)})
        sent.append(len(cluster.api.patches))
    assert sent == [10, 12, 15, 17, 20, 22, 25, 27]


@pytest.mark.parametrize(
    ("cores", "least", "sent"),
    [
        # Less where that may be: more may be beyond a LimitRange, a quota or the node.
        (0.25, 0, [250, 249]),
        (0.25, 250, [250, 251]),
        (0.021, 0, [21, 22]),
    ],
)
async def test_an_unconfirmed_limit_is_sent_again_one_millicore_different(
    cluster, cores, least, sent
):
    await cluster.add(pod("a"))
    actuator = made(cluster, period=1.5, bounds=lambda: CpuBounds(least=least))
    cluster.api.kubelet = False
    assert await actuator.apply({"a@w": cores}) == {}
    assert await actuator.apply({"a@w": cores}) == {}
    assert await actuator.apply({"a@w": cores}) == {}
    assert cluster.api.patches == [("a", f"{millis}m") for millis in sent]
    cluster.api.settle("a")
    await until(lambda: cluster.watch.pods["a"].is_settled)
    assert await actuator.apply({}) == {"a@w": sent[-1] / 1000}


async def test_what_the_kernel_grants_counts_where_the_kubelet_is_late_to_say_so(cluster):
    await cluster.add(pod("a"))
    actuator = made(cluster, period=1.5)
    cluster.api.kubelet = False
    actuator._meters = Kernel(0.25)
    assert await actuator.apply({"a@w": 0.25}) == {}
    await actuator.read()
    assert await actuator.apply({}) == {"a@w": 0.25}


async def test_a_refused_value_is_told_and_not_asked_for_again_soon(cluster, actuator, monkeypatch):
    monkeypatch.setattr(module, "REFUSED_FOR", 3)
    await actuator.apply({})
    cluster.api.refusals = [(403, "maximum cpu usage per Container is 500m")]
    for _ in range(3):
        results = await actuator.apply({"a@w": 2.0})
        assert "maximum cpu usage per Container is 500m" in str(results["a@w"])
    assert cluster.api.patches == [("a", "2")]
    assert await actuator.apply({"a@w": 2.0}) == {"a@w": 2.0}  # it is tried again
    cluster.api.refusals = [(422, "invalid")]
    assert isinstance((await actuator.apply({"a@w": 3.0}))["a@w"], ActuationError)
    assert await actuator.apply({"a@w": 1.5}) == {"a@w": 1.5}  # another value is asked for at once


@pytest.mark.parametrize("status", [409, 429, 500, 503])
async def test_a_passing_fault_is_told_and_tried_again_at_the_next_tick(cluster, actuator, status):
    await actuator.apply({})
    cluster.api.refusals = [(status, "later")]
    results = await actuator.apply({"a@w": 0.5, "b@w": 0.5})
    failed = [name for name, result in results.items() if isinstance(result, ActuationError)]
    assert len(failed) == 1
    assert f"status {status}: later" in str(results[failed[0]])
    assert await actuator.apply({failed[0]: 0.5}) == {failed[0]: 0.5}


async def test_a_server_in_overload_is_called_again_when_it_wants(cluster, actuator):
    await actuator.apply({})
    cluster.api.refusals = [(429, "later", "30")]
    wanted = {"a@w": 0.5, "b@w": 0.5, "c@w": 0.5}
    for _ in range(2):
        results = await actuator.apply(wanted)
        assert all("status 429: later" in str(results[name]) for name in wanted)
    assert len(cluster.api.patches) == 1
    actuator.now += 30
    assert await actuator.apply(wanted) == wanted


@pytest.mark.parametrize("status", [404, 410])
async def test_a_pod_that_is_gone_is_no_fault(cluster, actuator, monkeypatch, status):
    await actuator.apply({})

    async def too_late(*_):
        cluster.api.delete("a")
        raise ApiServerError("not found", status)

    monkeypatch.setattr(cluster.client, "patch", too_late)
    assert await actuator.apply({"a@w": 0.5}) == {}


async def test_a_pod_that_is_gone_is_no_fault_though_the_watch_still_shows_it(
    cluster, actuator, monkeypatch
):
    monkeypatch.setattr(actuator, "_limit", 0.01)
    await actuator.apply({})
    del cluster.api.pods["a"]
    results = {}
    for _ in range(3):
        results |= await actuator.apply({"a@w": 0.5, "b@w": 0.5})
        await asyncio.sleep(0.05)
    assert "a" in cluster.watch.pods
    assert results == {"b@w": 0.5}


async def test_a_server_without_the_resource_of_resizing_is_no_missing_pod(
    cluster, actuator, monkeypatch
):
    """Its feature gate is off, or its version was unknown at the start."""
    monkeypatch.setattr(actuator, "_limit", 0.01)
    await actuator.apply({})
    cluster.api.refusals = [(404, "the server could not find the requested resource")]
    results = {}
    while "a@w" not in results:
        results = await actuator.apply({"a@w": 0.5})
    assert str(results["a@w"]).endswith(
        "could not find the requested resource: in-place resize takes Kubernetes 1.33 or newer"
    )
    await actuator.apply({"a@w": 0.5})
    assert len(cluster.api.patches) == 1


async def test_an_expired_token_is_not_held_against_the_value(cluster, actuator):
    await actuator.apply({})
    cluster.api.refusals = [(401, "Unauthorized")]
    assert "not accepted" in str((await actuator.apply({"a@w": 0.5}))["a@w"])
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 0.5}


async def test_a_deferred_resize_is_told_in_the_kubelets_words(cluster, actuator):
    await actuator.apply({})
    cluster.api.kubelet = False
    found = cluster.api.pods["a"]
    found["status"]["conditions"].append(
        {"type": "PodResizePending", "status": "True", "reason": "Deferred", "message": "no room"}
    )
    cluster.api.put(found)
    await until(lambda: cluster.watch.pods["a"].resize)
    await actuator.apply({"a@w": 0.5})
    results = await actuator.apply({"a@w": 0.5})
    assert str(results["a@w"]) == "pod a on node node-a: Deferred: no room"
    assert cluster.api.patches == [("a", "500m")]


async def test_a_pod_that_no_limit_can_be_set_of_says_why_and_costs_the_others_nothing(
    cluster, actuator
):
    guaranteed = pod("a")
    guaranteed["status"]["qosClass"] = "Guaranteed"
    cluster.api.put(guaranteed)
    await until(lambda: cluster.watch.pods["a"].fault)
    await actuator.apply({})
    results = await actuator.apply({"a@w": 0.5, "b@w": 0.5})
    assert "QoS class is Guaranteed" in str(results["a@w"])
    assert results["b@w"] == 0.5


async def test_who_does_not_lead_changes_nothing(cluster):
    await cluster.add(pod("a"))
    actuator = made(cluster, may_act=lambda: False)
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 1.0}
    assert cluster.api.patches == []


async def test_another_pod_of_the_same_name_begins_anew(cluster, actuator):
    cluster.api.refusals = [(422, "invalid")]
    await actuator.apply({"a@w": 0.5})
    cluster.api.delete("a")
    other = pod("a")
    other["metadata"]["uid"] = "another"
    cluster.api.put(other, "ADDED")
    await until(lambda: cluster.watch.pods.get("a") and cluster.watch.pods["a"].uid == "another")
    assert (await actuator.apply({"a@w": 0.5}))["a@w"] == 0.5


def container(cluster, **state):
    """Say in which state the container of pod a is."""
    found = cluster.api.pods["a"]
    found["status"]["containerStatuses"][0]["state"] = state
    cluster.api.put(found)


async def test_the_limit_of_a_container_that_is_down_is_not_raised(cluster, actuator):
    await actuator.apply({"a@w": 0.5})
    container(cluster, waiting={"reason": "CrashLoopBackOff"})
    await until(lambda: not cluster.watch.pods["a"].is_up)
    await actuator.apply({"a@w": 1.5})
    assert cluster.api.patches == [("a", "500m")]
    container(cluster, running={})
    await until(lambda: cluster.watch.pods["a"].is_up)
    assert await actuator.apply({"a@w": 1.5}) == {"a@w": 1.5}


async def test_a_limit_that_was_on_its_way_when_the_container_ended_is_taken_back(
    cluster, actuator
):
    await actuator.apply({"a@w": 0.5})
    cluster.api.kubelet, actuator._limit = False, 0.1
    await actuator.apply({"a@w": 1.5})
    container(cluster, terminated={"reason": "OOMKilled"})
    await until(lambda: not cluster.watch.pods["a"].is_up)
    async with asyncio.timeout(60):
        while len(cluster.api.patches) < 3:
            await actuator.apply({"a@w": 1.5})
    assert cluster.api.patches == [("a", "500m"), ("a", "1500m"), ("a", "500m")]


async def moved(cluster, limit, granted):
    """Set a limit of pod a as a VerticalPodAutoscaler does."""
    found = cluster.api.pods["a"]
    found["spec"]["containers"][0]["resources"]["limits"]["cpu"] = limit
    found["metadata"]["generation"] += 1
    cluster.api.put(found)
    cluster.api.settle("a")
    await until(lambda: cluster.watch.pods["a"].granted == granted)


async def test_a_limit_that_somebody_else_moved_is_said_once_and_set_again(cluster, actuator):
    await actuator.apply({"a@w": 0.5})
    await moved(cluster, "3", 3000)
    said = (await actuator.apply({"a@w": 0.5}))["a@w"]
    assert str(said).startswith(
        "pod a: somebody else moved its CPU limit to 3000m, as a VerticalPodAutoscaler"
    )
    assert cluster.api.limit("a") == "500m"
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 0.5}
    # A move within the dead band is said, too, although nothing is sent.
    await moved(cluster, "503m", 503)
    assert isinstance((await actuator.apply({"a@w": 0.5}))["a@w"], ActuationError)
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 0.503}


async def test_a_limit_whose_answer_was_lost_is_ours_all_the_same(cluster, actuator, monkeypatch):
    await actuator.apply({"a@w": 0.5})
    monkeypatch.setattr(module, "CALL_LIMIT", 0.05)
    answered = asyncio.Event()
    patch = cluster.client.patch

    async def lost(*arguments):
        await patch(*arguments)
        answered.set()
        raise ApiServerError("not reachable")

    monkeypatch.setattr(cluster.client, "patch", lost)
    assert isinstance((await actuator.apply({"a@w": 0.7}))["a@w"], ApiServerError)
    await until(lambda: cluster.watch.pods["a"].granted == 700)
    assert await actuator.apply({"a@w": 0.7}) == {"a@w": 0.7}


async def test_a_limit_that_is_applied_late_is_ours_all_the_same(cluster, actuator, monkeypatch):
    await actuator.apply({"a@w": 0.5})
    patch = cluster.client.patch

    async def lost(*_):
        raise ApiServerError("not reachable")

    monkeypatch.setattr(cluster.client, "patch", lost)
    await actuator.apply({"a@w": 0.9})
    monkeypatch.setattr(cluster.client, "patch", patch)
    cluster.api.kubelet, actuator._limit = False, 0.1
    await actuator.apply({"a@w": 0.7})
    await moved(cluster, "900m", 900)
    found = await actuator.apply({"a@w": 0.7})
    assert not isinstance(found.get("a@w"), ActuationError)


async def test_a_kubelet_that_does_not_report_generations_confirms_by_the_limit(cluster):
    found = pod("a")
    del found["status"]["observedGeneration"]
    await cluster.add(found)
    actuator = made(cluster)
    assert await actuator.apply({}) == {"a@w": 1.0}
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 0.5}


async def test_a_call_that_waited_is_not_made_by_who_no_longer_leads(cluster):
    await cluster.add(*map(pod, "ab"))
    leads = [True]
    actuator = made(cluster, may_act=lambda: leads[0])
    cluster.api.delay = 0.05
    changing = asyncio.create_task(actuator.apply({"a@w": 0.5, "b@w": 0.5}))
    await until(lambda: cluster.api.at_once == 1)
    leads[0] = False
    await changing
    assert len(cluster.api.patches) == 1


async def test_a_node_gets_one_change_at_a_time(cluster, actuator):
    cluster.api.delay = 0.01
    await actuator.apply({"a@w": 0.5, "b@w": 0.5, "c@w": 0.5})
    assert len(cluster.api.patches) == 3
    assert cluster.api.most_at_once == 1


async def test_a_call_that_outlasts_its_tick_goes_on_and_the_next_change_follows(
    cluster, monkeypatch
):
    monkeypatch.setattr(module, "CALL_LIMIT", 60.0)
    await cluster.add(pod("a"))
    actuator = made(cluster, period=0.03)
    cluster.api.delay = 0.5
    assert await actuator.apply({"a@w": 0.5}) == {"a@w": 1.0}
    assert await actuator.apply({"a@w": 0.7}) == {}  # the first one is on its way
    await until(lambda: cluster.watch.pods["a"].granted == 500)
    cluster.api.delay = 0.0
    # The watch may show what the first call did before its answer has come.
    await until(lambda: all(call.done() for call in actuator._pending.values()))
    told = await actuator.apply({"a@w": 0.7})
    assert told.get("a@w") in (None, 0.5, 0.7)
    await until(lambda: cluster.watch.pods["a"].granted == 700)
    assert [limit for _, limit in cluster.api.patches] == ["500m", "700m"]


async def test_changes_that_a_slow_api_server_leaves_waiting_are_decided_anew(
    cluster, actuator, monkeypatch
):
    """Else a limit of seconds ago would be set while another pod has its cores."""
    answers, patch = asyncio.Event(), cluster.client.patch

    async def slow(*arguments):
        await answers.wait()
        return await patch(*arguments)

    monkeypatch.setattr(cluster.client, "patch", slow)
    monkeypatch.setattr(actuator, "_limit", 0.01)
    await actuator.apply({"a@w": 0.5, "b@w": 1.5, "c@w": 1.2})
    await actuator.apply({"a@w": 0.4, "b@w": 0.8, "c@w": 2.0})
    assert set(actuator._pending) == {"a@w", "b@w", "c@w"}
    answers.set()
    await until(lambda: all(call.done() for call in actuator._pending.values()))
    assert cluster.api.patches == [("a", "500m"), ("b", "800m"), ("c", "2")]


async def test_an_api_server_that_does_not_answer_holds_no_tick_up(cluster):
    await cluster.add(pod("a"))
    cluster.api.delay = 30
    actuator = made(cluster, period=0.03)
    results = await actuator.apply({"a@w": 0.5})
    assert results["a@w"] == 1.0 or "not reachable" in str(results["a@w"])
