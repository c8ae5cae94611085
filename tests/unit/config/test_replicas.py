"""Placement of replicas: which worker runs what (paper §2.2)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roma.config import schema
from roma.config.placement import executables
from roma.config.replicas import Placement, assign
from roma.domain.replicas import StartReplica, StopReplica, commands
from tests.support.roma_yaml import faults

BALANCE, PACK = Placement.BALANCE, Placement.PACK


@pytest.mark.parametrize(
    ("replicas", "how", "per_worker", "pinned", "placed"),
    [
        # Without a number every worker has one of each.
        ({"a": None, "b": None}, BALANCE, None, {}, {"w1": ["a", "b"], "w2": ["a", "b"]}),
        # One worker is filled before the next.
        ({"a": 1, "b": 1, "c": 1}, PACK, 2, {}, {"w1": ["a", "b"], "w2": ["c"]}),
        # Models whose workers are given come first.
        (
            {"a": 1, "b": 1, "c": None, "d": None},
            BALANCE,
            2,
            {"d": ("w2", "w3"), "c": ("w3",)},
            {"w1": ["a", "b"], "w2": ["d"], "w3": ["c", "d"]},
        ),
    ],
)
def test_models_are_placed(replicas, how, per_worker, pinned, placed):
    assert assign(replicas, list(placed), how, per_worker, pinned) == placed


def test_balance_gives_to_those_with_the_fewest():
    found = assign({"a": 1, "b": 1, "c": 2, "d": 1}, ["w1", "w2", "w3"], BALANCE, None)
    assert sorted(len(models) for models in found.values()) == [1, 2, 2]


def test_a_model_is_never_twice_on_one_worker():
    with pytest.raises(ValueError, match="a"):
        assign({"a": 3}, ["w1", "w2"], BALANCE, None)


NAMES = st.text("abcdef", min_size=1, max_size=2)


@given(
    st.dictionaries(st.sampled_from(["w1", "w2", "w3"]), st.frozensets(NAMES), min_size=1),
    NAMES,
    st.integers(-1, 5),
)
def test_commands_lead_to_the_number_of_replicas_and_move_none(placed, model, count):
    here = {worker for worker, models in placed.items() if model in models}
    if not 1 <= count <= len(placed):
        with pytest.raises(ValueError, match=str(count)):
            commands(model, count, placed)
        return
    found = commands(model, count, placed)
    assert len(found) == abs(count - len(here))
    workers = {command.worker for command in found}
    assert len(workers) == len(found)
    is_more = count > len(here)
    assert all(isinstance(c, StartReplica if is_more else StopReplica) for c in found)
    assert workers <= (placed.keys() - here if is_more else here)
    others = (placed.keys() - here if is_more else here) - workers
    sizes = [len(placed[worker]) for worker in workers], [len(placed[w]) for w in others]
    if all(sizes):
        assert max(sizes[0]) <= min(sizes[1]) if is_more else min(sizes[0]) >= max(sizes[1])


@given(
    st.dictionaries(NAMES, st.integers(1, 4), min_size=1),
    st.integers(1, 4),
    st.sampled_from(Placement),
    st.none() | st.integers(1, 6),
)
def test_all_replicas_are_placed_within_every_bound_or_none(replicas, workers, how, per_worker):
    names = [f"w{i}" for i in range(workers)]
    try:
        found = assign(replicas, names, how, per_worker)
    except ValueError:
        return
    for model, count in replicas.items():
        assert sum(models.count(model) for models in found.values()) == count
    for models in found.values():
        assert len(set(models)) == len(models)
        assert per_worker is None or len(models) <= per_worker


FILE = """
models:
  a: {path: a, sla: {response_time: 0.5}, replicas: 1}
  b: {path: b, sla: {response_time: 0.5}}
workers:
  - {name: w1, backend: docker, cores: 4, base_port: 9000}
  - {name: w2, backend: docker, cores: 4, base_port: 9100, docker: {network: models}}
"""


def test_executables_are_what_was_placed_and_where():
    placed = executables(schema.parse(FILE))
    assert [(e.name, e.host, e.port, e.container) for e in placed] == [
        ("a@w1", "127.0.0.1", 9000, "roma-w1-a"),
        ("b@w1", "127.0.0.1", 9001, "roma-w1-b"),
        ("b@w2", "roma-w2-b", 8501, "roma-w2-b"),
    ]
    assert all(e.controlled for e in placed)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("replicas: 1", "replicas: 3", "models.a.replicas = 3: must be at most the workers"),
        ("models:", "per_worker: 1\nmodels:", "per_worker = 1"),
        (
            "replicas: 1",
            "replicas: 1, workers: [w1]",
            "models.a.replicas = 1: must be absent where",
        ),
        ("replicas: 1", "workers: []", "models.a.workers"),
        ("replicas: 1", "workers: [w1, w1]", "models.a.workers = w1: must be listed once"),
        (
            "replicas: 1",
            "workers: [w3]",
            "models.a.workers = w3: must be one of the workers where ROMA",
        ),
        (
            "replicas: 1}\n  b: {path: b, sla: {response_time: 0.5}}",
            "workers: [w1]}\n  b: {path: b, sla: {response_time: 0.5}, workers: [w1]}\nper_worker: 1",
            "models.b.workers = w1: must be at most the workers with room (2 workers, per_worker = 1)",
        ),
        ("network: models", "host: 'tcp://h:2376'", "docker.tls = None: must be set for a tcp://"),
        ("network: models", "tls: certs", "docker.tls = certs: must be set for a tcp:// host, and"),
        ("network: models", "host: /var/run/docker.sock", "docker.host"),
        ("network: models", "host: 'ssh://-oProxyCommand@h'", "docker.host"),
        ("network: models", "host: 'ssh://me@h:22'", "docker.address = absent: must be set for"),
        ("network: models", "cpuset: 0-", "docker.cpuset"),
        ("network: models", "image: 'Bad Image'", "docker.image"),
        ("network: models", "lease: 1", "docker.lease = 1: "),
        ("replicas: 1", "memory: 1MiB", "models.a.memory"),
        ("backend: docker, cores: 4, base_port: 9100,", "cores: 4, base_port: 9100,", "absent for"),
    ],
)
def test_faults_name_key_value_and_bound(old, new, message):
    assert old in FILE
    assert any(message in fault for fault in faults(FILE.replace(old, new, 1)))


def test_tls_files_are_found_beside_the_configuration(tmp_path):
    text = FILE.replace("network: models", "host: 'tcp://h:2376', tls: certs, address: h")
    file = tmp_path / "roma.yaml"
    file.write_text(text)
    assert schema.load(file).workers[1].containers.tls == tmp_path / "certs"
