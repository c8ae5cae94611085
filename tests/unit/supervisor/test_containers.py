"""What a container of ours looks like, and which containers are not ours."""

import pytest

from roma.config import schema
from roma.config.placement import on_worker
from roma.domain.errors import BrokerRefused
from supervisor.broker.broker import safe_shares
from supervisor.broker.containers import check, owned, reading, specification
from supervisor.executables import Reading

FILE = """
name: shop
models:
  digits:
    path: /srv/digits
    memory: 2GiB
    sla: {response_time: 0.25}
    cpu: {min: 0.2, max: 1.5, initial: 0.5, threads: 2}
  photos: {path: /srv/photos, sla: {response_time: 0.5}, cpu: {min: 0.1}}
workers:
  - {name: h, backend: docker, cores: 4, reserved: 1, gpus: 2, docker: DOCKER}
"""


def built(what, docker="{}", more=""):
    loaded = schema.parse(FILE.replace("DOCKER", docker + more))
    (worker,) = loaded.workers
    (executable,) = [e for e in on_worker(loaded, worker) if e.name == what]
    return specification(loaded, worker, executable)


def test_a_cpu_container_is_confined():
    body = built("digits@h", "{cpuset: 0-2}")
    host = body["HostConfig"]
    mount = {"Type": "bind", "Source": "/srv/digits", "Target": "/models/digits", "ReadOnly": True}
    expected = {
        "CpuPeriod": 100_000,
        "CpuQuota": 50_000,  # 0.5 cores
        "CpusetCpus": "0-2",
        "Memory": 2 * 2**30,
        "MemorySwap": 2 * 2**30,
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Mounts": [mount],
        "PortBindings": {"8501/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8602"}]},
    }
    assert {key: host[key] for key in expected} == expected
    assert not {"NanoCpus", "DeviceRequests"} & host.keys()
    assert "CUDA_VISIBLE_DEVICES=-1" in body["Env"]
    assert "NVIDIA_VISIBLE_DEVICES=void" in body["Env"]


def test_tensorflow_serving_gets_its_models_and_its_pools():
    body = built("digits@h")
    (command,) = body["Cmd"]
    assert body["Image"] == "tensorflow/serving:2.19.1"
    assert "--rest_api_port=8501" in command
    assert "--tensorflow_intra_op_parallelism=2" in command
    assert "--tensorflow_inter_op_parallelism=1" in command  # ceil(1.5 cores / 2 threads)
    (models,) = [e for e in body["Env"] if e.startswith("ROMA_MODELS=")]
    assert models == (
        'ROMA_MODELS=model_config_list { config { name: "digits" base_path: "/models/digits" '
        'model_platform: "tensorflow" } }'
    )


def test_a_gpu_container_has_one_gpu_and_every_model_and_no_quota():
    body = built("gpu1@h")
    host = body["HostConfig"]
    assert body["Image"].endswith("-gpu")
    assert host["DeviceRequests"] == [
        {"Driver": "nvidia", "DeviceIDs": ["1"], "Capabilities": [["gpu"]]}
    ]
    assert [m["Target"] for m in host["Mounts"]] == ["/models/digits", "/models/photos"]
    assert "CpuQuota" not in host
    assert "Memory" not in host
    assert not any("CUDA_VISIBLE_DEVICES" in e for e in body["Env"])
    (models,) = [e for e in body["Env"] if e.startswith("ROMA_MODELS=")]
    assert models.count("config {") == 2


def test_the_embedded_server_is_called_with_its_own_options():
    body = built(
        "digits@h", "{server: roma, image: roma/model-server, gpu_image: x, network: models}"
    )
    assert "Entrypoint" not in body
    assert body["Cmd"][:2] == ["serve-model", "--model=digits=/models/digits"]
    assert "--host=0.0.0.0" in body["Cmd"]
    assert body["HostConfig"]["NetworkMode"] == "models"
    assert "PortBindings" not in body["HostConfig"]


def test_grpc_is_published_an_offset_away_and_has_one_port_inside():
    body = built("digits@h", more=", grpc_offset: 1000")
    assert body["ExposedPorts"] == {"8501/tcp": {}, "8500/tcp": {}}
    assert body["HostConfig"]["PortBindings"] == {
        "8501/tcp": [{"HostIp": "127.0.0.1", "HostPort": "8602"}],
        "8500/tcp": [{"HostIp": "127.0.0.1", "HostPort": "9602"}],
    }
    own = "{server: roma, image: roma/model-server, gpu_image: x, network: models}"
    assert "--grpc-port=8500" in built("digits@h", own, more=", grpc_offset: 1000")["Cmd"]
    assert not any("grpc" in word for word in built("digits@h", own)["Cmd"])
    loaded = schema.parse(FILE.replace("DOCKER", own + ", grpc_offset: 1000"))
    (worker,) = loaded.workers
    addresses = {e.name: e.grpc for e in on_worker(loaded, worker)}
    assert addresses["gpu0@h"] == ("shop-h-gpu0", 8500)


def test_labels_tell_a_container_that_roma_yaml_no_longer_describes():
    one, other = built("digits@h"), built("digits@h", "{cpuset: 0-2}")
    label = "roma.specification"
    assert one["Labels"][label] == built("digits@h")["Labels"][label]
    assert one["Labels"][label] != other["Labels"][label]
    assert one["Labels"]["roma.managed"] == "shop"
    assert one["Labels"]["roma.model"] == "digits"


def test_a_quota_that_moved_makes_no_other_container():
    more = FILE.replace("DOCKER", "{}").replace("initial: 0.5", "initial: 0.7")
    loaded = schema.parse(more)
    (executable, *_) = on_worker(loaded, loaded.workers[0])
    again = specification(loaded, loaded.workers[0], executable)
    assert again["HostConfig"]["CpuQuota"] == 70_000
    assert again["Labels"] == built("digits@h")["Labels"]


def inspected(**changes):
    loaded = schema.parse(FILE.replace("DOCKER", "{}"))
    labels = {**owned(loaded, loaded.workers[0]), "roma.executable": "digits@h"}
    labels |= changes.pop("labels", {})
    found = {"Name": "/x", "Config": {"Labels": labels}, "HostConfig": {"NanoCpus": 0} | changes}
    check(found, loaded, loaded.workers[0], "digits@h")


def test_our_own_container_passes():
    inspected()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"labels": {"roma.managed": "other"}}, "label roma.managed = other: must be shop"),
        ({"labels": {"roma.worker": "w2"}}, "label roma.worker = w2: must be h"),
        ({"labels": {"roma.executable": "photos@h"}}, "must be digits@h"),
        ({"NanoCpus": 10**9}, "made with --cpus"),
    ],
)
def test_a_container_that_is_not_what_it_should_be_is_refused(changes, message):
    with pytest.raises(BrokerRefused, match=message):
        inspected(**changes)


def test_safe_shares_fit_the_worker_and_starve_nobody():
    loaded = schema.parse(FILE.replace("DOCKER", "{}"))
    (worker,) = loaded.workers
    shares = safe_shares(on_worker(loaded, worker), worker.allocatable)
    assert set(shares) == {"digits@h", "photos@h"}  # GPUs have no quota
    assert sum(shares.values()) <= worker.allocatable == 3
    assert 0.9 < shares["digits@h"] <= 1.5
    assert shares["photos@h"] > 1.8


@pytest.mark.parametrize(
    ("quota", "period", "cores"),
    [(-1, 0, None), (0, 0, None), (50_000, 0, 0.5), (30_000, 60_000, 0.5)],
)
def test_a_quota_without_a_period_has_the_kernels(quota, period, cores):
    found = {
        "Name": "/x",
        "State": {"Running": True, "Restarting": False},
        "HostConfig": {"CpuQuota": quota, "CpuPeriod": period},
    }
    throttling = {"periods": 3, "throttled_periods": 1}
    stats = {"cpu_stats": {"cpu_usage": {"total_usage": 10**9}, "throttling_data": throttling}}
    assert reading(found, stats) == Reading(cores, 1.0, 3, 1)
