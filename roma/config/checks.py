"""Checks across the sections of roma.yaml: what contradicts, collides or has no effect is refused.

Each raises Fault with key, value and bound.
"""

import re
from pathlib import PurePosixPath

from roma.config.backends import registry as backends
from roma.config.executable import Executable
from roma.config.scheduling import PLANNED, QUALITY
from roma.config.topology import Topology
from roma.config.workers import (
    HOST_NAME,
    UNIX,
    DockerConfig,
    ServerKind,
    WorkerConfig,
    check_socket,
)
from roma.config.yaml_file import Fault
from roma.domain import units
from roma.domain.model import Device, Sharing


def check(config: Topology) -> None:
    """Run every check, in the order in which people mend a file."""
    if not config.workers:
        raise Fault("workers", "[]", "at least one")
    names = [worker.name for worker in config.workers]
    if len(set(names)) < len(names):
        raise Fault("workers", names, "different names")
    for i, worker in enumerate(config.workers):
        _check_worker(config, f"workers.{i}", worker)
    _check_nodes(config)
    _check_ports(config)
    _check_planned(config)
    _check_variants(config)
    _check_served(config)
    _check_several(config)
    _check_quota_period(config)
    _check_throttling(config)
    for name in config.plant.models if config.plant else ():
        if name not in config.models:
            raise Fault(f"plant.models.{name}", name, "one of " + ", ".join(config.models))
    for name in config.gateway.supervisors:
        if name not in names:
            raise Fault(f"gateway.supervisors.{name}", name, "one of " + ", ".join(names))
    _check_models(config)
    _check_names(config)
    _check_hosts(config)


def _check_models(config: Topology) -> None:
    """Refuse limits of a model that contradict each other or have no effect."""
    smallest = units.min_cores(config.control.cfs_period)
    for name, model in config.models.items():
        least = config.minimum(name)
        if least < smallest:
            bound = f"≥ {smallest:g} (a quota of 1 ms per cfs_period)"
            raise Fault(f"models.{name}.cpu.min", least, bound)
        for key in ("max", "initial"):
            cores = getattr(model.cpu, key)
            if cores is not None and cores < least:
                raise Fault(f"models.{name}.cpu.{key}", cores, f"≥ cpu.min ({least:g})")
        if model.weight != 1 and config.control.sharing is not Sharing.MAX_MIN:
            bound = f"1 where control.sharing is {config.control.sharing}, which heeds none"
            raise Fault(f"models.{name}.weight", model.weight, bound)
        most = config.gateway.max_body_bytes
        if model.max_body_bytes is not None and model.max_body_bytes > most:
            bound = f"≤ gateway.max_body_bytes ({most})"
            raise Fault(f"models.{name}.max_body_bytes", model.max_body_bytes, bound)


def _check_quota_period(config: Topology) -> None:
    """Refuse quota periods that no quota outlasts: each change of a quota grants a whole one."""
    control = config.control
    for worker in config.workers:
        if not worker.is_discovered and control.cfs_period > config.period(worker):
            bound = f"≤ the control period of worker {worker.name} ({config.period(worker):g})"
            raise Fault("control.cfs_period", control.cfs_period, bound)


def _check_throttling(config: Topology) -> None:
    """Refuse the law that sees nothing but throttling where nobody reports it."""
    for i, worker in enumerate(config.workers):
        is_unknown = worker.is_discovered and worker.pods.server is not ServerKind.ROMA
        if is_unknown and config.control.law == "captain":
            bound = f"another law where workers.{i}.kubernetes.server is {worker.pods.server}: "
            raise Fault("control.law", "captain", bound + "its throttling is unknown")


def _check_served(config: Topology) -> None:
    """Refuse a model without an executable, and two executables at one address."""
    listed = [e for worker in config.workers for e in worker.executables]
    for key in ("url", "actions", "grpc"):
        addresses = [value for e in listed if (value := getattr(e, key)) is not None]
        for address in addresses:
            if addresses.count(address) > 1:
                raise Fault(f"workers.executables.{key}", address, "listed once")
    if any(w.is_placed or w.is_discovered for w in config.workers):
        return  # a replica of every model is placed, or pods of it may appear
    if any(e.device is Device.GPU for e in listed):
        return
    for name in config.models:
        if all(e.model != name for e in listed):
            raise Fault(f"models.{name}", name, "served by an executable of a worker")


def _check_planned(config: Topology) -> None:
    """Refuse planned GPUs beside other executables, or with a policy that cannot plan them.

    A planning policy refuses requests that planned GPUs cannot answer in time, even if a CPU
    still could.
    """
    listed = {
        f"workers.{i}.executables.{k}": executable
        for i, worker in enumerate(config.workers)
        for k, executable in enumerate(worker.executables)
    }
    planned = [key for key, e in listed.items() if e.actions is not None]
    gpu, policies = config.scheduling.gpu, "one of " + ", ".join(PLANNED)
    for i, worker in enumerate(config.workers):
        if worker.gpus and config.scheduling.is_planned:
            bound = f"another one where GPUs have no actions (workers.{i}.gpus = {worker.gpus})"
            raise Fault("scheduling.gpu", gpu, bound)
        if planned and (worker.is_placed or worker.is_discovered):
            bound = f"static where GPUs have actions ({planned[0]})"
            raise Fault(f"workers.{i}.backend", worker.backend.value, bound)
    for key, executable in listed.items():
        if executable.actions is not None:
            if not config.scheduling.is_planned:
                raise Fault("scheduling.gpu", gpu, f"{policies} where {key} has actions")
        elif executable.device is Device.GPU and config.scheduling.is_planned:
            raise Fault("scheduling.gpu", gpu, f"another one where {key} has no actions")
        elif planned:
            raise Fault(f"{key}.url", executable.url, f"absent: {planned[0]} has actions")


def _check_variants(config: Topology) -> None:
    """Refuse variants that no policy would choose, and ambiguous names."""
    if config.scheduling.quality.policy is not None and len(config.models) != 1:
        raise Fault("models", len(config.models), "exactly one where scheduling.gpu is qos-rl")
    taken: dict[str, str] = {}
    listed = [e for worker in config.workers for e in worker.executables]
    has_devices = any(e.actions is not None for e in listed)
    for name, model in config.models.items():
        if model.variants and not config.scheduling.has_variants:
            bound = "one of " + ", ".join(QUALITY) + f" where models.{name} has variants"
            raise Fault("scheduling.gpu", config.scheduling.gpu, bound)
        if model.variants and not has_devices:
            bound = "absent where no executable has actions"
            raise Fault(f"models.{name}.variants", ", ".join(model.variants), bound)
        for variant in model.variants or (name,):
            other = taken.get(variant)
            if other is not None:
                raise Fault(f"models.{name}.variants", variant, f"no variant of {other} too")
            taken[variant] = name


def _check_several(config: Topology) -> None:
    """Refuse several dispatchers where a single one must track or write all state."""
    count, control = config.dispatcher_count, config.control
    if count == 1:
        return
    key = "gateway.processes" if config.gateway.processes > 1 else "control.dispatchers"
    listed = [e for worker in config.workers for e in worker.executables]
    if any(w.gpus for w in config.workers) or any(e.device is Device.GPU for e in listed):
        raise Fault(key, count, "1 with GPUs: each would send to one at once")
    for name, model in config.models.items():
        if model.cpu.in_flight is not None and model.cpu.in_flight < count:
            bound = f"≥ {key} ({count}), or absent"
            raise Fault(f"models.{name}.cpu.in_flight", model.cpu.in_flight, bound)
    if control.dispatchers and len(control.dispatchers) < count:
        bound = f"an address for each of gateway.processes ({count}), or absent"
        raise Fault("control.dispatchers", list(control.dispatchers), bound)
    if control.decision_log is not None:
        bound = f"absent where {key} > 1 ({count})"
        raise Fault("control.decision_log", str(control.decision_log), bound)


def _check_names(config: Topology) -> None:
    """Refuse two model servers that would share a name, a container or a socket."""
    taken: dict[tuple[str, ...], Executable] = {}
    for worker in config.workers:
        for e in backends.of(worker).executables(config, worker):
            names: list[tuple[str, ...]] = [("executable", e.name)]
            if e.socket is not None:
                names.append(("socket", e.socket))
            if e.container is not None:
                # Each engine has names of its own; its DNS does not tell `A` from `a`.
                names.append(("container", e.container.lower(), worker.containers.host))
            for name in names:
                other = taken.setdefault(name, e)
                if other is e:
                    continue
                mine, its = (e, other) if e.spec.device is Device.CPU else (other, e)
                whose = "a GPU" if its.spec.device is Device.GPU else its.name
                model = mine.spec.models[0]
                bound = f"another name: {name[0]} {name[1]} is that of {whose} too"
                raise Fault(f"models.{model}", model, bound)


def _check_hosts(config: Topology) -> None:
    """Refuse names that no container can be looked up by; in a network they are called by name."""
    for worker in config.workers:
        if worker.docker is None or worker.docker.network is None:
            continue
        for e in backends.of(worker).executables(config, worker):
            if re.fullmatch(HOST_NAME, e.host) is None:
                why = "has a part that is empty or longer than 63 characters"
                raise Fault("name", config.name, f"another, or a model's: host {e.host} {why}")


def _check_nodes(config: Topology) -> None:
    """Refuse two workers with the same pods: each would set their limits, and lend their slots."""
    known: dict[tuple[object, ...], int] = {}
    for i, worker in enumerate(config.workers):
        if worker.node is None:
            continue
        pods = worker.pods
        cluster = pods.kubeconfig, pods.context, pods.namespace
        other = known.setdefault((worker.node, pods.selector, *cluster), i)
        if other != i:
            bound = f"different from workers.{other}.node: both would have its pods"
            raise Fault(f"workers.{i}.node", worker.node, bound)


def _check_ports(config: Topology) -> None:
    """Refuse two listeners on one port, and counted ports beyond the highest port number."""
    g = config.gateway
    taken = {g.port: "gateway.port"}
    others = [("gateway.admin_port", g.admin_port)]
    own = {
        "gateway.grpc_port": g.grpc_port,
        "gateway.exchange_port": g.exchange_port,
        "gateway.metrics_port": g.metrics_port,
    }
    others += [(key, port) for key, port in own.items() if port is not None]
    others += [("gateway.process_port", port) for port in g.admin_ports[1:]]
    # All workers that are discovered have one supervisor, and one port.
    ports = dict.fromkeys(config.control_port(worker) for worker in config.workers)
    others += [("control.port", port) for port in ports]
    for i, worker in enumerate(config.workers):
        if worker.is_placed:
            key = f"workers.{i}.base_port"
            offsets = [*range(worker.gpus)]
            offsets += [worker.gpus + config.slots[m] for m in config.placed[worker.name]]
            if worker.sockets is None:
                others += [(key, worker.base_port + k) for k in offsets]
            if worker.grpc_offset is not None:
                first, key = worker.base_port + worker.grpc_offset, f"{key} + grpc_offset"
                others += [(key, first + k) for k in offsets]
    for key, port in others:
        if port > 65535:
            raise Fault(key, port, "≤ 65535, counting up from its value")
        if port in taken:
            raise Fault(key, port, f"different from {taken[port]}")
        taken[port] = key


def _check_cgroups(key: str, worker: WorkerConfig) -> None:
    """Refuse two executables with one cgroup, or one within the other: both would set its quota."""
    groups = {i: e.cgroup for i, e in enumerate(worker.executables) if e.cgroup is not None}
    taken = {cgroup: i for i, cgroup in reversed(groups.items())}
    for i, cgroup in groups.items():
        for group in (cgroup, *map(str, PurePosixPath(cgroup).parents)):
            other = taken.get(group, i)
            if other != i:
                bound = f"neither that of executables.{other} ({group}) nor within it"
                raise Fault(f"{key}.{i}.cgroup", cgroup, bound)


def _check_images(key: str, worker: WorkerConfig) -> None:
    """Refuse the default images, TensorFlow Serving's, for the server that they do not have."""
    docker = worker.containers
    if docker.server is not ServerKind.ROMA:
        return
    for name, is_used in (("image", True), ("gpu_image", worker.gpus > 0)):
        image = getattr(docker, name)
        if is_used and image == DockerConfig.model_fields[name].default:
            ours = "roma/model-server:dev" if name == "image" else "one of yours with CUDA"
            bound = f"an image with roma, as {ours}, where server is {docker.server}"
            raise Fault(f"{key}.docker.{name}", image, bound)


def _check_worker(config: Topology, key: str, worker: WorkerConfig) -> None:
    _check_images(key, worker)
    for i, executable in enumerate(worker.executables):
        if executable.model is not None and executable.model not in config.models:
            known = "one of " + ", ".join(config.models)
            raise Fault(f"{key}.executables.{i}.model", executable.model, known)
    _check_cgroups(f"{key}.executables", worker)
    listed = [e.model for e in worker.executables if e.cgroup is not None and e.model is not None]
    placed = config.placed[worker.name] if worker.is_placed else []
    total = round(sum(config.minimum(name) for name in (*placed, *listed)), 9)
    if total > worker.allocatable:
        bound = f"≥ the sum of the models' cpu.min ({total:g})"
        raise Fault(f"{key}.cores - reserved", f"{worker.allocatable:g}", bound)
    for name in placed:
        model = config.models[name]
        backends.of(worker).check_model(f"models.{name}", model)
        if (path := worker.socket(config.name, name)) is not None:
            check_socket(f"{key}.sockets", UNIX + path)
        for bound_name in ("max", "initial"):
            cores = getattr(model.cpu, bound_name)
            if cores is not None and cores > worker.allocatable:
                bound = f"≤ cores - reserved of worker {worker.name} ({worker.allocatable:g})"
                raise Fault(f"models.{name}.cpu.{bound_name}", cores, bound)
