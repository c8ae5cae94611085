"""A dispatcher and numbered stand-in model servers, each a program that can be killed or paused.

Nobody restarts anything here unless a test says so, and every program dies with the test. The
numbers that the stand-ins wrote down say which requests were computed, and how often.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import yaml
from prometheus_client.parser import text_string_to_metric_families

from roma.tools.demo.ports import free_ports
from supervisor.cgroups import container_hierarchy, find_hierarchy

CHECKOUT = Path(__file__).parents[2]


def below_the_mount(group):
    """Return a group's path as `workers[].executables[].cgroup` has it."""
    return str(group.directories[0].relative_to(container_hierarchy().roots[0]))


class Program:
    """A program; `before` stands in front of its command line, `log` takes what it says."""

    def __init__(self, argv, log, *, env=None, before=()):
        # The kernel kills it when this process dies; prctl(2), by a program because we have threads.
        last_will = ("setpriv", "--pdeathsig", "KILL")
        self.argv = [*last_will, *before, sys.executable, "-m", *map(str, argv)]
        self.log = Path(log)
        self._env = {**os.environ, "PYTHONPATH": str(CHECKOUT), **(env or {})}
        self.process = None

    def start(self):
        if self.process is not None:
            self._hang_up()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self._env,
                cwd=CHECKOUT,
            )

    def say(self, line):
        """Write a line to its standard input."""
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, signum):
        self.process.send_signal(signum)

    def kill(self):
        """Kill it; return when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._hang_up()

    def _hang_up(self):
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    @property
    def ended(self):
        return self.process.poll() is not None

    def memory(self):
        """Resident set size, in bytes: PSS would move with what others of this machine share."""
        found = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        return 1024 * int(re.search(r"^Rss: +(\d+)", found, re.MULTILINE)[1])

    def descriptors(self):
        """How many files and sockets it has open."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


class Server(Program):
    """A stand-in; `host` is where it listens."""

    def __init__(self, directory, port, name, *, host="127.0.0.1", before=()):
        self.computed = directory / f"{name}.computed"
        argv = ["tests.support.recording_server", port, self.computed]
        super().__init__(argv, directory / f"{name}.log", env={"HOST": host}, before=before)
        self.url = f"http://{host}:{port}"


class Deployment:
    """A dispatcher in front of `servers` stand-ins of the model `m`; `async with` runs it all.

    By default nobody is refused because he waits: a busy machine must fail no test.

    `gateway`, `control` and `log` are sections of roma.yaml; `descriptors` bounds the dispatcher's,
    `env` is its environment and the supervisor's, `logs` is where it logs. The stand-ins listen on
    `hosts`, and `entered` stands in front of their command lines; `under` is kept for the test. With `controlled` they have
    cgroups, and a supervisor sets their quotas. `beside` are more models, with a stand-in each that
    nothing is counted of.
    """

    def __init__(
        self,
        directory,
        *,
        servers=1,
        cores=2,
        in_flight=None,
        response_time=0.5,
        deadline=20.0,
        max_waiting=5000,
        backend_timeout=1.0,
        gateway=None,
        control=None,
        log=None,
        descriptors=None,
        env=None,
        controlled=False,
        hosts=None,
        entered=(),
        admin_port=None,
        logs=None,
        under=None,
        beside=(),
    ):
        self.under = under
        self.directory = Path(directory)
        self.port, free, self.control_port, *ports = free_ports(3 + servers + len(beside))
        self.admin_port = admin_port or free
        hosts = hosts or ["127.0.0.1"] * servers
        self.servers = [
            Server(self.directory, port, f"server{i}", host=host, before=entered)
            for i, (port, host) in enumerate(zip(ports, hosts, strict=False))
        ]
        self.url = f"http://127.0.0.1:{self.port}"
        self.admin = f"http://127.0.0.1:{self.admin_port}"
        self.supervised = f"http://127.0.0.1:{self.control_port}"
        name = f"ground-{os.getpid()}"
        self.groups = []
        self.controlled = controlled
        self.beside = [
            Server(self.directory, port, model)
            for model, port in zip(beside, ports[servers:], strict=True)
        ]
        executables = [{"url": server.url, "model": "m"} for server in self.servers]
        if controlled:
            for i, executable in enumerate(executables):
                group = find_hierarchy().group(f"{name}/m{i}", 0.05)
                executable["cgroup"] = below_the_mount(group)
                self.groups.append(group)
        executables += [
            {"url": server.url, "model": model}
            for model, server in zip(beside, self.beside, strict=True)
        ]
        model = {
            "sla": {"response_time": response_time, "deadline": deadline},
            "cpu": {"min": 0.1, "max": cores, "initial": cores, "in_flight": in_flight},
            "max_waiting": max_waiting,
        }
        data = {
            "name": name,
            "models": dict.fromkeys(("m", *beside), model),
            "workers": [
                {
                    "backend": "static",
                    "cores": 2 * cores * len(executables),
                    "executables": executables,
                }
            ],
            "control": {
                "port": self.control_port,
                "cfs_period": 0.05,
                "period": 0.5,
                **(control or {}),
            },
            "gateway": {
                "port": self.port,
                "admin_port": self.admin_port,
                "backend_timeout": backend_timeout,
                **(gateway or {}),
            },
            "log": log or {},
        }
        self.file = self.directory / "roma.yaml"
        self.file.write_text(yaml.safe_dump(data))

        limited = (
            () if descriptors is None else ("prlimit", f"--nofile={descriptors}:{descriptors}")
        )
        self.gateway = Program(
            ["roma", "dispatcher", self.file],
            Path(logs or directory) / "dispatcher.log",
            env=env,
            before=limited,
        )
        self.supervisor = Program(
            ["roma", "supervisor", self.file], self.directory / "supervisor.log", env=env
        )

    async def __aenter__(self):
        try:
            for group in self.groups:
                group.create()
            for i in range(len(self.servers)):
                self.start_server(i)
            for server in self.beside:
                server.start()
            self.gateway.start()
            if self.controlled:
                self.supervisor.start()
            await self.ready()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_):
        self._end()

    def _end(self):
        for program in (self.supervisor, self.gateway, *self.servers, *self.beside):
            program.kill()
        for group in self.groups:
            group.remove()

    @property
    def server(self):
        return self.servers[0]

    def start_server(self, number=0):
        self.servers[number].start()
        if self.groups:
            self.groups[number].add(self.servers[number].process.pid)

    async def ready(self):
        await self.until(lambda: self.get(self.url, "/readyz")[0] == 200)

    async def until(self, condition, limit=60):
        """Wait for something that must happen; the limit only bounds a failing test."""
        try:
            async with asyncio.timeout(limit):
                while not await asyncio.to_thread(condition):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"did not happen:\n{self.tail()}") from None

    def tail(self):
        logs = [p.log for p in (self.gateway, self.supervisor, *self.servers) if p.log.exists()]
        return "\n".join(f"{log.name}: {log.read_text()[-2000:]}" for log in logs)

    @staticmethod
    def get(base, path):
        """Return status and body; status 0 if there was no answer."""
        try:
            with urllib.request.urlopen(base + path, timeout=5) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metrics(self, name):
        """Return what the dispatcher says of a metric: values by their labels' values."""
        status, text = self.get(self.admin, "/metrics")
        assert status == 200, self.tail()
        return {
            tuple(sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == name
        }

    def outcomes(self):
        """Return how many requests of `m` ended how, as the dispatcher counts them."""
        found = Counter()
        for (_, model, outcome), count in self.metrics("roma_requests_total").items():
            found[outcome] += int(count) * (model == "m")
        return found

    def computed(self):
        """Return how often each request was computed, by its number as text."""
        logs = [s.computed.read_text() for s in self.servers if s.computed.exists()]
        return Counter(line for log in logs for line in log.split())

    def lost(self):
        """Return whether an executable was lost now: the dispatcher promises nothing."""
        return 0.0 in self.metrics("roma_executable_ready").values()


def paused(program):
    """Return a block in which a program is paused."""

    @contextlib.asynccontextmanager
    async def pause():
        program.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            program.signal(signal.SIGCONT)

    return pause()
