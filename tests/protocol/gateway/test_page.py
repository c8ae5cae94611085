"""What the live page, `roma top` and `roma explain` read from a dispatcher's admin port."""

import asyncio
import json

import aiohttp
import pytest
from aiohttp import web
from yarl import URL

from dispatcher.live.admin import dashboard_feed
from roma.config import schema
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import FakeModelServer
from tests.support.served import served

STATE = {
    "worker": "local",
    "mode": "control",
    "capacity": 2.0,
    "demanded": 0.5,
    "applied": 0.5,
    "used": 0.2,
    "eta": 4.0,
    "ticks": 7,
    "missed_ticks": 0,
    "jitter_p99": 0.001,
}


class FakeSupervisor:
    """Answers what a supervisor answers; `down` makes it hang up, `odd` is answered instead."""

    def __init__(self):
        self.down, self.odd, self.asked = False, None, []
        self.executable = ""
        self.mode = "control"

    async def answer(self, request):
        self.asked.append((request.match_info["what"], dict(request.query)))
        if self.down:
            request.transport.close()
            return web.Response()
        if self.odd is not None:
            return web.json_response(self.odd)
        if request.match_info["what"] == "state":
            state = {"model": "m", "demand": 0.5, "applied": 0.5, "limit": "none", "why": "calm"}
            more = {"mode": self.mode, "executables": {self.executable: state}}
            return web.json_response(STATE | more)
        told = [{"at": 12.0, "executable": "m@local", "model": "m", "words": "It needs 0.5."}]
        return web.json_response({"worker": "local", "at": 13.0, "decisions": told})


YAML = """
models:
  m: {{sla: {{response_time: 30}}, max_waiting: 2}}
workers:
  - {{backend: static, cores: 2, executables: [{{url: "http://127.0.0.1:{backend}", model: m}}]}}
control: {{port: {supervisor}, decision_log: {story}}}
gateway: {{port: {port}, admin_port: {admin}}}
"""


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    """Update the dashboard ten times a second."""
    monkeypatch.setattr(dashboard_feed, "PERIOD", 0.1)


async def opened(harness, story):
    """A dispatcher with one model server and a supervisor's stand-in."""
    port, admin, backend, supervisor = free_ports(4)
    server = await harness.stack.enter_async_context(FakeModelServer(backend))
    fake = FakeSupervisor()
    route = web.get("/control/v1/{what}", fake.answer)
    await harness.stack.enter_async_context(served(route, port=supervisor))
    text = YAML.format(backend=backend, supervisor=supervisor, port=port, admin=admin, story=story)
    await harness.serve(schema.parse(text))
    await harness.until(lambda: all(e.live for e in harness.core.executors))
    (fake.executable,) = (e.spec.name for e in harness.core.executors)
    return fake, server


async def seen(harness, condition):
    """Wait for a view that is as wanted."""
    async with asyncio.timeout(60):
        while True:
            _, body = await harness.get("/control/v1/dashboard", harness.admin)
            view = json.loads(body)
            if condition(view):
                return view
            await asyncio.sleep(0.05)


async def test_the_board_joins_both_halves_and_says_when_a_supervisor_is_silent(harness, tmp_path):
    fake, _ = await opened(harness, tmp_path)
    await seen(harness, lambda v: v["models"])  # the first look is where counting begins
    for _ in range(3):
        await harness.predict()
    view = await seen(harness, lambda v: v["models"][0]["late_share"] is not None)
    view = await seen(harness, lambda v: v["models"][0]["executables"][0]["applied"] is not None)
    (row,), (worker,) = view["models"], view["workers"]
    assert row["executables"][0]["applied"] == 0.5
    assert row["executables"][0]["why"] == "calm"
    assert (worker["answers"], worker["capacity"], worker["eta"]) == (True, 2.0, 4.0)
    fake.down = True
    view = await seen(harness, lambda v: not v["workers"][0]["answers"])
    assert view["models"][0]["executables"][0]["applied"] is None
    assert view["workers"][0]["capacity"] is None
    assert view["workers"][0]["error"]
    fake.down = False
    await seen(harness, lambda v: v["workers"][0]["answers"])
    # The decision log has the same, a line per model and second.
    path = tmp_path / "models.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert sum(line["answered_cpu"] for line in lines) <= 3
    assert all(line["sla"] == 30 for line in lines)


async def lines(harness, path):
    return (await harness.get(path, harness.admin))[1].decode().splitlines()


async def test_cores_that_nothing_controls_are_said_wherever_somebody_looks(harness, tmp_path):
    fake, _ = await opened(harness, tmp_path)
    for mode, controllable, controlled, why in (
        ("observe-only: read-only", 1, 0, "observe-only: read-only"),
        ("dry-run", 0, 0, ""),  # meant to be like that
        ("control", 1, 1, ""),
    ):
        fake.mode = mode
        view = await seen(harness, lambda v, m=mode: v["workers"] and v["workers"][0]["mode"] == m)
        assert view["workers"][0]["uncontrolled"] == why
        said = b"ready; nothing controls the cores of worker local" if why else b"ready"
        wanted = {
            f'roma_controllable_executables{{worker="local"}} {controllable:.1f}',
            f'roma_controlled_executables{{worker="local"}} {controlled:.1f}',
        }
        async with asyncio.timeout(60):  # a supervisor that is silent for a while is missed too
            while await harness.get("/readyz") != (200, said):
                await asyncio.sleep(0.05)
            while not wanted <= set(await lines(harness, "/metrics")):
                await asyncio.sleep(0.05)


TWO = """
models:
  m: {{sla: {{response_time: 0.5}}, path: /m, workers: [{workers}]}}
workers:
  - {{name: v, cores: 2, base_port: {ports[0]}}}
  - {{name: w, cores: 2, base_port: {ports[1]}}}
control: {{port: {ports[2]}}}
gateway: {{port: {ports[4]}, admin_port: {ports[5]}}}
"""


async def test_a_replica_that_nothing_controls_is_missed_wherever_it_is_moved(harness):
    ports = free_ports(6)

    def file(workers):
        return schema.parse(TWO.format(workers=workers, ports=ports))

    await harness.serve(file("v"))
    for workers, controllable in (("v", [1, 0]), ("v, w", [1, 1]), ("w", [0, 1])):
        await harness.registry.follow(file(workers))
        view = await seen(
            harness, lambda v, c=controllable: [w["controllable"] for w in v["workers"]] == c
        )
        missed = [w["worker"] for w in view["workers"] if w["uncontrolled"]]
        assert ", ".join(missed) == workers


async def test_the_story_has_decisions_and_refusals_and_says_who_is_silent(harness, tmp_path):
    fake, server = await opened(harness, tmp_path)
    server.gate = asyncio.Event()
    calls = [
        asyncio.create_task(harness.predict()) for _ in range(6)
    ]  # 2 run, 2 wait, 2 are refused
    await harness.until(lambda: sum(harness.queue.rejected.values()) >= 2)
    _, body = await harness.get("/control/v1/decisions?model=m&seconds=30", harness.admin)
    story = json.loads(body)
    assert [d["words"] for d in story["decisions"]] == ["It needs 0.5."]
    refused = story["refusals"]["m"]
    assert {r["reason"] for r in refused} == {"queue_full"}
    assert "requests of model m wait (bound 2)" in refused[0]["detail"]
    assert abs(refused[0]["at"] - story["at"]) < 5
    # The page asks on, for its state.
    assert ("decisions", {"model": "m", "seconds": "30", "worker": "local"}) in fake.asked
    assert story["silent"] == {}
    fake.down = True
    _, body = await harness.get("/control/v1/decisions?model=m", harness.admin)
    assert list(json.loads(body)["silent"]) == ["local"]
    server.gate.set()
    await asyncio.gather(*calls)


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"executables": [1]}, "executables = [1]"),
        ({"executables": {"m@local": 5}}, "executables.m@local = 5"),
        ({"executables": {"m@local": {"applied": "0.5"}}}, "executables.m@local.applied = 0.5"),
        ({**STATE, "ticks": "7"}, "ticks = 7"),
    ],
)
async def test_a_supervisor_that_answers_oddly_is_silent_and_the_rest_is_shown(
    harness, tmp_path, odd, why
):
    fake, _ = await opened(harness, tmp_path)
    await seen(harness, lambda v: v["models"])
    fake.odd = odd
    view = await seen(harness, lambda v: f"its answer: {why}" in (v["workers"][0]["error"] or ""))
    later = await seen(harness, lambda v: v["at"] > view["at"])
    assert later["models"][0]["executables"][0]["state"] == "idle"


@pytest.mark.parametrize("told", [5, [5], [{"at": "12"}], [{"executable": "m@local"}]])
async def test_decisions_that_are_none_are_missing(harness, tmp_path, told):
    fake, _ = await opened(harness, tmp_path)
    fake.odd = {"decisions": told}
    status, body = await harness.get("/control/v1/decisions?model=m", harness.admin)
    story = json.loads(body)
    assert (status, story["decisions"]) == (200, [])
    assert story["silent"]["local"].startswith("its answer: decisions")


async def test_another_sites_page_cannot_say_what_was_applied(harness, tmp_path):
    fake, _ = await opened(harness, tmp_path)
    reading = {"executor": fake.executable, "applied": 3.0, "usage": 0, "throttled": 0}
    message = {"worker": "local", "executors": [reading]}
    url = f"{harness.admin}/control/v1/applied"
    async with harness.session.post(url, json=message, headers={"Origin": "http://evil"}) as answer:
        assert answer.status == 403
    assert harness.core.executors[fake.executable].cores != 3.0
    async with harness.session.post(url, json=message) as answer:
        assert answer.status == 204
    assert harness.core.executors[fake.executable].cores == 3.0


async def test_what_is_asked_wrongly_is_named(harness, tmp_path):
    await opened(harness, tmp_path)
    for path, status, error in [
        ("decisions?seconds=0", 400, "seconds = 0: must be a number in (0, 900]"),
        ("decisions?seconds=nan", 400, "seconds = nan: must be a number in (0, 900]"),
        ("decisions?seconds=1e9", 400, "seconds = 1e9: must be a number in (0, 900]"),
        ("decisions?seconds=ten", 400, "seconds = ten: must be a number in (0, 900]"),
        ("decisions?model=n", 404, "model = n: must be one of m"),
        ("history?model=n", 404, "model = n: must be one of m"),
    ]:
        found, body = await harness.get(f"/control/v1/{path}", harness.admin)
        assert (found, json.loads(body)) == (status, {"error": error})


async def test_a_stream_sends_the_history_once_and_then_every_look(harness, tmp_path):
    await opened(harness, tmp_path)
    await seen(harness, lambda v: v["models"])
    async with harness.session.get(f"{harness.admin}/control/v1/stream") as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        kinds, views = [], []
        while len(views) < 3:
            line = (await response.content.readline()).decode().rstrip("\n")
            if line.startswith("event: "):
                kinds.append(line.removeprefix("event: "))
            elif line.startswith("data: ") and kinds[-1] == "view":
                views.append(json.loads(line.removeprefix("data: ")))
        assert kinds[:4] == ["history", "view", "view", "view"]
        assert views[0]["at"] < views[1]["at"] < views[2]["at"]
    _, body = await harness.get("/control/v1/history?model=m", harness.admin)
    series = json.loads(body)
    assert len(series["at"]) == len(series["arrivals"]) >= 2


async def test_streams_that_are_closed_make_room_for_others(harness, tmp_path, monkeypatch):
    monkeypatch.setattr("dispatcher.live.admin.page.STREAMS", 1)
    await opened(harness, tmp_path)
    url = f"{harness.admin}/control/v1/stream"
    async with aiohttp.ClientSession() as other:
        first = await other.get(url)
        assert (await harness.get("/control/v1/stream", harness.admin))[0] == 503
        first.close()
    async with asyncio.timeout(10):
        while True:
            async with harness.session.get(url) as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.1)


async def test_a_head_of_the_stream_has_no_events(harness, tmp_path):
    await opened(harness, tmp_path)
    await seen(harness, lambda v: v["models"])
    reader, writer = await asyncio.open_connection("127.0.0.1", URL(harness.admin).port)
    head = b"HEAD /control/v1/stream HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    writer.write(head)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"Content-Type: text/event-stream\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


async def test_the_page_may_load_nothing_from_elsewhere(harness, tmp_path):
    await opened(harness, tmp_path)
    async with harness.session.get(harness.admin + "/") as response:
        assert response.status == 200
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; ")
        assert "unsafe" not in policy
    for path in ("/page/nothing.js", "/page/..%2fboard.py", "/page/__init__.py"):
        assert (await harness.get(path, harness.admin))[0] == 404
