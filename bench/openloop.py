"""A lean open-loop client, `python -m bench.openloop`: a plan in JSON on stdin, a report on stdout.

`roma.tools.load` costs a quarter of a millisecond per request, more than what is measured here.
This one costs about 20 µs and keeps send times to some ten: no event loop, epoll waited for through
select, whose timeout is in microseconds where epoll's is in milliseconds. Send times come from the
plan alone; a request waits for no connection, and its time counts from the intended send.
"""

import contextlib
import gc
import heapq
import itertools
import json
import math
import select
import socket
import subprocess
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from typing import Any, TypedDict

from bench.builds import environment
from bench.programs import pinned
from roma.tools.load.client import allow_connections
from roma.tools.load.report import Distribution
from roma.workload.arrivals import Profile, RateStep, poisson_stream

MOST = 9000
"""Connections at once; a request beyond them is counted as `unsent`."""

LOOK = 0.005
"""Seconds between two checks for requests whose client gives up."""

PATIENCE = 10.0
"""Seconds after the last send until what is outstanding counts as unanswered."""


class Stream(TypedDict):
    """Requests of one kind: Poisson arrivals, req/s."""

    name: str
    method: str
    target: str
    body: str
    rate: float


def predicts(model: str, body: str, rate: float) -> Stream:
    """Return predict calls of a model, `rate` per second."""
    target = f"/v1/models/{model}:predict"
    return Stream(name=model, method="POST", target=target, body=body, rate=rate)


class Spread(TypedDict):
    """Response times in seconds."""

    count: int
    mean: float
    p50: float
    p99: float
    max: float
    late: int


Report = dict[str, dict[str, Spread]]
"""By stream and status, `all` being all of them, `lag` the lateness of the client itself."""


def measure(
    port: int,
    streams: list[Stream],
    seconds: float,
    *,
    sla: float = 10.0,
    patience: float = math.inf,
    core: int | None = None,
    seed: int = 0,
    lead: float = 0.0,
) -> Report:
    """Run a plan in a process of its own, on `core` if it is given; `late` counts beyond `sla`.

    A client without an answer after `patience` seconds hangs up: status `hung up`. The arrivals of
    the n-th stream, from 0, are those of `seed` + n; `lead` seconds of them come before the others,
    and are not counted.
    """
    argv = [sys.executable, "-m", "bench.openloop"]
    plan = {
        "port": port,
        "streams": streams,
        "seconds": seconds,
        "sla": sla,
        "patience": patience,
        "seed": seed,
        "lead": lead,
    }
    done = subprocess.run(
        pinned(argv, core),
        input=json.dumps(plan),
        stdout=subprocess.PIPE,
        check=True,
        text=True,
        env=environment("interpreted"),
        timeout=60 + 2 * seconds,
    )
    report: Report = json.loads(done.stdout)
    return report


def in_time(statuses: dict[str, Spread]) -> int:
    """Return how many requests of a stream were answered within `sla`."""
    answered = statuses.get("200")
    return answered["count"] - answered["late"] if answered else 0


class Client:
    """Connections to one port, and what is under way on them."""

    def __init__(self, port: int) -> None:
        self.address = ("127.0.0.1", port)
        self.epoll = select.epoll()
        self.idle: deque[socket.socket] = deque()
        self.busy: dict[int, tuple[socket.socket, int, float]] = {}
        self.parts: dict[int, bytes] = {}
        self.times: dict[tuple[int, str], list[float]] = defaultdict(list)
        self.sent: deque[tuple[float, int]] = deque()
        """Intended send time and connection of requests, open or answered, oldest first."""

    def send(self, stream: int, request: bytes, intended: float) -> None:
        """Send on an idle connection, or on a new one."""
        if not self.idle and len(self.busy) >= MOST:
            self.times[stream, "unsent"].append(0.0)
            return
        try:
            sock = self.idle.pop() if self.idle else self._connected()
            self.busy[sock.fileno()] = (sock, stream, intended)
            self.sent.append((intended, sock.fileno()))
            sock.send(request)
        except OSError:
            self.times[stream, "broken"].append(0.0)

    def receive(self, wait: float) -> None:
        """Read available data, or wait up to `wait` seconds for it."""
        if wait > 0 and not select.select([self.epoll], [], [], wait)[0]:
            return
        for number, _ in self.epoll.poll(0):
            self._take(number)

    def hang_up(self, patience: float) -> None:
        """Close the connections of requests that are older than `patience` seconds."""
        last = time.monotonic() - patience
        while self.sent and self.sent[0][0] <= last:
            intended, number = self.sent.popleft()
            if number in self.busy and self.busy[number][2] == intended:
                sock, stream, _ = self.busy.pop(number)
                self.parts.pop(number, None)
                sock.close()
                self.times[stream, "hung up"].append(patience)

    def _connected(self) -> socket.socket:
        sock = socket.create_connection(self.address)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.epoll.register(sock, select.EPOLLIN)
        return sock

    def _take(self, number: int) -> None:
        if number not in self.busy:  # the server closes an idle connection
            for sock in [s for s in self.idle if s.fileno() == number]:
                self.idle.remove(sock)
                sock.close()
            return
        sock, stream, intended = self.busy[number]
        try:
            data = self.parts.pop(number, b"") + sock.recv(65536)
        except OSError:
            data = b""
        head, blank, body = data.partition(b"\r\n\r\n")
        lower = head.lower()
        start = lower.find(b"content-length:") + 15
        if data and (not blank or len(body) < int(lower[start:].split(None, 1)[0])):
            self.parts[number] = data
            return
        del self.busy[number]
        status = head[9:12].decode() or "broken"
        self.times[stream, status].append(time.monotonic() - intended)
        if not data or b"connection: close" in lower:
            sock.close()
        else:
            self.idle.append(sock)


def _run(plan: dict[str, Any]) -> Report:
    streams: list[Stream] = plan["streams"]
    requests = [_request(s) for s in streams]
    n, lead = len(streams), plan["lead"]
    profiles = [Profile((RateStep(s["rate"], lead + plan["seconds"]),)) for s in streams]
    schedules = [
        zip(poisson_stream(profile, seed=plan["seed"] + i), itertools.repeat(i))
        for i, profile in enumerate(profiles)
    ]
    client, lags = Client(plan["port"]), []
    gc.freeze()
    gc.disable()
    start = time.monotonic() + 0.05
    for offset, stream in heapq.merge(*schedules):
        due = start + offset
        while (wait := due - time.monotonic()) > 0:
            client.receive(min(wait, LOOK))
            client.hang_up(plan["patience"])
        lags.append(-wait)
        # Those of the lead are of other streams, which no report names.
        client.send(stream if offset >= lead else n + stream, requests[stream], due)
        # Also when late: answered requests must not look unanswered.
        client.receive(0.0)
    until = time.monotonic() + PATIENCE
    while client.busy and time.monotonic() < until:
        client.receive(LOOK)
        client.hang_up(plan["patience"])
    for _, stream, _ in client.busy.values():
        client.times[stream, "unanswered"].append(PATIENCE)
    report: Report = {s["name"]: {} for s in streams}
    counted = {key: times for key, times in client.times.items() if key[0] < n}
    for (stream, status), times in counted.items():
        report[streams[stream]["name"]][status] = _spread(times, plan["sla"])
    for i, s in enumerate(streams):
        every = [t for (stream, _), times in counted.items() if stream == i for t in times]
        report[s["name"]]["all"] = _spread(every, plan["sla"])
    report["client"] = {"lag": _spread(lags, plan["sla"])}
    return report


def _request(stream: Stream) -> bytes:
    body = stream["body"].encode()
    head = f"{stream['method']} {stream['target']} HTTP/1.1\r\nHost: localhost\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def _spread(times: list[float], sla: float) -> Spread:
    found = Distribution.of(times)
    assert found is not None
    shares = found.percentiles
    late = sum(t > sla for t in times)
    return Spread(
        count=found.count,
        mean=found.mean,
        p50=shares["p50"],
        p99=shares["p99"],
        max=found.max,
        late=late,
    )


@contextlib.contextmanager
def held(port: int, count: int) -> Iterator[None]:
    """Hold `count` keep-alive connections, each silent after one answered request."""
    allow_connections(count)
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            if not sock.recv(4096).startswith(b"HTTP/1.1 200"):
                sys.exit("bench: an idle connection was refused")
        yield


if __name__ == "__main__":
    allow_connections(MOST)
    json.dump(_run(json.load(sys.stdin)), sys.stdout)
