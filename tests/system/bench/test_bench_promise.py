"""Tables and checks of `python -m bench promise`, made of figures that nobody measured."""

import asyncio
import math
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bench.deployed import Deployment, Served
from bench.openloop import Spread, Stream, in_time, measure
from bench.promise_overload import Load, Round, tabled
from bench.promise_shared import tabled_rare
from bench.standin import ANSWER, Connection, Server
from roma.config import schema
from roma.config.control import ControlConfig
from roma.config.gateway import GatewayConfig
from roma.config.models import ModelConfig, SlaConfig
from roma.config.workers import WorkerConfig
from roma.lab.experiments import output
from roma.lab.experiments.promise import tabled_beside, together
from roma.workload.arrivals import Profile, RateStep, poisson

PAGE = Path(__file__).parents[3] / "docs/experiments/promise.md"
ROUNDS = [Round(100.0, (0.95, 0.7), (0.001, 0.002)), Round(102.0, (0.93, 0.8), (0.003, 0.001))]
LOADS = (Load(2.0, 0.9), Load(10.0, 0.8, 1.0))


def test_in_time_is_what_was_answered_and_not_late():
    answered = Spread(count=10, mean=0.1, p50=0.1, p99=0.2, max=0.2, late=3)
    assert in_time({"200": answered, "429": answered, "hung up": answered}) == 7
    assert in_time({"429": answered}) == 0


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments):
        pass


def test_requests_of_the_lead_are_sent_and_not_counted():
    arrivals = poisson(Profile((RateStep(100.0, 0.6),)), seed=5)
    after = sum(t >= 0.4 for t in arrivals)
    assert 0 < after < len(arrivals)
    stream = Stream(name="s", method="GET", target="/", body="", rate=100.0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        report = measure(server.server_port, [stream], 0.2, lead=0.4, seed=5)
        server.shutdown()
    assert report["s"]["all"]["count"] == after
    assert report["client"]["lag"]["count"] == len(arrivals)


def test_a_load_holds_if_the_mean_of_its_rounds_reaches_its_least_share():
    table, checks = tabled("stand-in", LOADS, ROUNDS, 6.0, "note")
    assert [row[0] for row in table.rows] == ["2 ×", "10 ×"]
    assert [row[2] for row in table.rows] == [pytest.approx(0.94), pytest.approx(0.75)]
    assert [row[5] for row in table.rows] == [pytest.approx(3.0), pytest.approx(2.0)]
    assert [check.holds for check in checks] == [True, False]
    assert "101.0 ±" in table.note


def test_a_rise_is_taken_round_by_round():
    late = {"nobody": (0.01, 0.03), "quiet": (0.01, 0.035), "loud": (0.016, 0.038)}
    table, checks = tabled_beside("promise-live-neighbours", late)
    assert [row[2] for row in table.rows] == [None, pytest.approx(0.0025), pytest.approx(0.007)]
    assert table.rows[1][3] == pytest.approx(12.71 * 0.0025)
    assert [check.holds for check in checks] == [True, False]


@pytest.mark.parametrize(("times", "holds"), [((0.3, 0.6), True), ((0.3, math.inf), False)])
def test_a_single_request_without_an_answer_is_late(times, holds):
    _, (check,) = tabled_rare(times, 0.25)
    assert check.holds is holds


def test_the_document_has_a_place_for_every_table_and_for_the_claims(tmp_path):
    page = tmp_path / "promise.md"
    shutil.copy(PAGE, page)
    for table, checks in (
        tabled("stand-in", LOADS, ROUNDS, 6.0, "note"),
        tabled("TensorFlow", LOADS, ROUNDS, 6.0, "note"),
        tabled_beside("promise-live-neighbours", {"nobody": (0.0, 0.0), "loud": (0.0, 0.1)}),
        tabled_rare((0.3, 0.4), 0.25),
    ):
        output.fill(page, table.name, together([(table, checks)]))
        assert all(check.claim in page.read_text() for check in checks)


def test_a_deployment_says_nothing_but_models_promises_cores_names_and_ports(tmp_path):
    deployment = Deployment(tmp_path / "roma.yaml")
    deployment.write({"m": Served(tmp_path, 0.1)})
    read = schema.load(deployment.file)
    gateway, admin, supervisor, first, *_ = deployment.ports
    sla = SlaConfig(response_time=0.1)
    assert read == schema.Config(
        name=f"bench-{gateway}",
        models={"m": ModelConfig(path=tmp_path, sla=sla)},
        workers=(WorkerConfig(cores=1, base_port=first),),
        control=ControlConfig(port=supervisor),
        gateway=GatewayConfig(port=gateway, admin_port=admin),
    )


def test_the_stand_in_counts_what_it_has_at_once():
    server = Server(slots=2, service=1.0)
    assert [server.begin(0.0) for _ in range(3)] == [1.0, 1.0, 2.0]
    server.end()
    assert (server.running, server.most) == (2, 3)


class Transport(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written = b""

    def write(self, data):
        self.written += data


@pytest.mark.looptime
async def test_a_request_that_its_sender_gave_up_counts_to_its_end(looptime):
    server, transport = Server(slots=1, service=1.0), Transport()
    connection = Connection(server)
    connection.connection_made(transport)
    connection.data_received(b"POST /v1/models/m:predict HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
    connection.connection_lost(None)
    assert (server.running, transport.written) == (1, b"")
    await asyncio.sleep(1.0)
    assert (server.running, server.most) == (0, 1)
    assert transport.written.endswith(ANSWER)
    connection.data_received(b"GET /most HTTP/1.1\r\n\r\n")
    assert transport.written.endswith(b"\r\n\r\n1")
