"""Workers with more cores in roma.yaml than their host has."""

import pytest

from roma.config import schema
from supervisor.cgroups import Hierarchy
from supervisor.contention import HostReading
from supervisor.live import worker_set

CONFIG = """
models: {{m: {{path: m, sla: {{response_time: 1}}}}}}
workers: [{{name: w, backend: {backend}, cores: {cores}, reserved: 1{more}}}]
"""
STATIC = ", executables: [{url: 'http://x:1', model: m, cgroup: m}]"
SSH = ", docker: {host: 'ssh://h', address: h}"


@pytest.mark.parametrize(
    ("backend", "more", "cores", "quota", "said"),
    [
        ("process", "", 5, "max", ""),
        ("process", "", 5.5, "max", "workers.w.cores - reserved = 4.5: only 4 are here"),
        ("process", "", 5, "250000", "workers.w.cores - reserved = 4: only 2.5 are here"),
        ("static", STATIC, 5, "250000", ""),  # its groups are not below our own
        ("static", STATIC, 6, "max", "workers.w.cores - reserved = 5: only 4 are here"),
        ("docker", "", 6, "max", "workers.w.cores - reserved = 5: only 4 are here"),
        ("docker", SSH, 6, "max", ""),  # on another host
    ],
)
def test_they_are_named(tmp_path, monkeypatch, caplog, backend, more, cores, quota, said):
    (tmp_path / "cpu.max").write_text(f"{quota} 100000\n")
    (tmp_path / "cpu.stat").write_text("usage_usec 0\n")
    monkeypatch.setattr(worker_set, "read_host", lambda: HostReading(4, 0.0, 0.0))
    monkeypatch.setattr(worker_set, "find_hierarchy", lambda: Hierarchy(2, (tmp_path,)))
    config = schema.parse(CONFIG.format(backend=backend, cores=cores, more=more))
    worker_set._warn_of_absent_cores(config.workers[0])
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)
