"""A real `roma up` as a user starts it: a process, its children, its cgroups, its ports."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import yaml

from roma.config import schema as roma_config
from roma.config.placement import executables
from roma.tools.demo.ports import free_ports
from roma.tools.load import Stream, run_load
from roma.workload.arrivals import Profile, RateStep, poisson
from supervisor.cgroups import find_hierarchy


def write_config(
    directory, models, *, name, control=None, worker=None, response_time=0.5, most=1.4
):
    """Write a roma.yaml for `models` (name to SavedModel folder), of `most` cores in all."""
    # The executables' ports begin with the last one here.
    gateway, admin, supervisor, first, *_ = free_ports(3 + len(models))
    data = {
        "name": name,
        "models": {
            m: {
                "path": str(path),
                "sla": {"response_time": response_time, "statistic": "p95"},
                "cpu": {"min": 0.1, "max": most, "initial": 0.7},
            }
            for m, path in models.items()
        },
        "workers": [
            {
                "name": "local",
                "cores": 2,
                "reserved": 2 - most,
                "base_port": first,
                **(worker or {}),
            }
        ],
        "control": {"port": supervisor, "cfs_period": 0.05, **(control or {})},
        "gateway": {"port": gateway, "admin_port": admin},
    }
    file = Path(directory) / "roma.yaml"
    file.write_text(yaml.safe_dump(data))
    return file


def several_workers(file, *, replicas):
    """Add a worker like a file's first, and give every model so many replicas."""
    document = yaml.safe_load(file.read_text())
    (first,) = document["workers"]
    ports = free_ports(2 + len(document["models"]))
    document["workers"].append({**first, "name": "other", "base_port": ports[0]})
    for model in document["models"].values():
        model["replicas"] = replicas
    document["control"] = (document.get("control") or {}) | {"port": ports[-2]}
    file.write_text(yaml.safe_dump(document))


class Up:
    """A running deployment; ends with the block, however it went."""

    def __init__(self, file):
        self.file = file
        self.config = roma_config.load(file)
        g, c = self.config.gateway, self.config.control
        self.url = f"http://127.0.0.1:{g.port}"
        self.admin = f"http://127.0.0.1:{g.admin_port}"
        self.supervisor = f"http://127.0.0.1:{c.port}"
        self.authorization = None  # what clients show
        self.log = file.parent / "up.log"
        self.process = None

    def __enter__(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "roma", "up", str(self.file)], stdout=log, stderr=log
            )
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def groups(self):
        """The cgroup of each model that the file names now."""
        loaded, hierarchy = roma_config.load(self.file), find_hierarchy()
        return {
            e.spec.models[0]: hierarchy.group(e.cgroup, loaded.control.cfs_period)
            for e in executables(loaded)
        }

    def children(self, *words):
        """Pids of live descendants whose command line has all the words."""
        found, placed = [], executables(roma_config.load(self.file))
        places = [f"--port={e.port}" for e in placed]
        places += [f"--socket={e.socket}" for e in placed if e.socket is not None]
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                ours = (
                    str(self.file) in command
                    or f"{self.config.name}/" in command
                    or any(place in command for place in places)
                )
                other = state != "Z" and int(entry.name) != self.process.pid
                if ours and other and all(word in command for word in words):
                    found.append(int(entry.name))
        return found

    async def until(self, condition, limit=60.0):
        """Wait for something that must happen; the limit only bounds a failing test."""
        try:
            async with asyncio.timeout(limit):
                while not condition():
                    assert self.process.poll() is None or condition(), self.tail()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"did not happen within {limit} s:\n{self.tail()}") from None

    async def ready(self):
        await self.until(lambda: self.get(self.url, "/readyz")[0] == 200)
        await self.until(lambda: self.state.get("ticks", 0) >= 3)

    @staticmethod
    def get(base, path):
        try:
            with urllib.request.urlopen(base + path, timeout=5) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()
        except OSError:
            return 0, b""

    @property
    def state(self):
        """What the supervisor says."""
        status, body = self.get(self.supervisor, "/control/v1/state")
        return json.loads(body) if status == 200 else {}

    @property
    def reports(self):
        """What the dispatcher says, by model."""
        status, body = self.get(self.admin, "/control/v1/report")
        return {m["model"]: m for m in json.loads(body)["models"]} if status == 200 else {}

    async def models(self, command, *arguments):
        """Run `roma models`; return what it prints."""
        argv = [sys.executable, "-m", "roma", "models", command, str(self.file)]
        process = await asyncio.create_subprocess_exec(
            *argv,
            *map(str, arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        output, _ = await process.communicate()
        assert process.returncode == 0, output.decode()
        return output.decode()

    def tail(self):
        return self.log.read_text()[-4000:]

    async def load(self, rates, bodies, seconds, *, sla=0.5, seed=1, on_result=None):
        """Send Poisson load at `rates` req/s by model; return the report."""
        streams = [
            Stream(m, poisson(Profile((RateStep(r, seconds),)), seed=seed + i), bodies[m], sla)
            for i, (m, r) in enumerate(rates.items())
        ]
        return await run_load(
            streams, self.url, authorization=self.authorization, on_result=on_result
        )


def kill(pid, signum=signal.SIGKILL):
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
