"""Carries out commands that start and stop replicas, without a restart or a lost request.

Of the backends `process` and `docker` the roma.yaml determines the executables, and every program
follows it: a command is an edit of the file. Pods are those of the model's Deployment.
"""

from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Protocol, assert_never

from roma.config import schema
from roma.config.schema import Config
from roma.config.workers import WorkerConfig
from roma.deploy.config_edit import Document, edit, placed_on, set_workers
from roma.deploy.kubernetes import common
from roma.domain import replicas
from roma.domain.errors import ActuationError, ConfigError, naming
from roma.domain.replicas import ReplicaCommand, StartReplica, StopReplica
from roma.kubernetes.client import Client
from roma.kubernetes.credentials import find

TIMEOUT: Final = 10.0
"""Seconds that the API server may take to answer."""


class ReplicaScaler(Protocol):
    """Starts and stops the replicas of a deployment; an autoscaler's actuator."""

    async def commands(self, model: str, count: int) -> Sequence[ReplicaCommand]:
        """Return the commands that give a model `count` replicas; raise ConfigError if none can."""
        ...

    async def carry_out(self, commands: Sequence[ReplicaCommand]) -> list[str]:
        """Carry out commands; return what was done, in words.

        At least one replica of each model stays where it is: to move the only one, start another
        and stop it once that serves. Raises ConfigError for commands that cannot be carried out, of
        which none then is, and ActuationError for an API server's refusal.
        """
        ...


def scaler(file: Path, config: Config) -> ReplicaScaler:
    """Return the scaler of a deployment; raise ConfigError if others start its model servers."""
    if any(worker.is_placed for worker in config.workers):
        return FileScaler(file)
    for worker in config.workers:
        if worker.is_discovered:
            return DeploymentScaler(config, worker)
    raise ConfigError(
        "workers: model servers of backend static are started outside ROMA; "
        "list replicas under workers.executables"
    )


class FileScaler:
    """Replicas of the workers of a roma.yaml.

    A running `roma up` follows it at once, programs of other launchers on SIGHUP.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    async def commands(self, model: str, count: int) -> Sequence[ReplicaCommand]:
        """Return the commands that give a model `count` replicas."""
        placed = schema.load(self._file).placed
        try:
            return replicas.commands(model, count, placed)
        except ValueError as error:
            bound = f"from 1 to {len(placed)}, the workers where ROMA starts model servers"
            raise ConfigError(f"models.{model}: replicas = {count}: must be {bound}") from error

    async def carry_out(self, commands: Sequence[ReplicaCommand]) -> list[str]:
        """Write the workers of each model into the file; one edit, so all of it or nothing."""
        if not commands:
            return []
        workers_of: dict[str, list[str]] = {}

        def change(document: Document) -> None:
            config = schema.load(self._file)  # as it is now that nobody else edits it
            for command in commands:
                model = command.model
                if model not in config.models:
                    known = ", ".join(config.models)
                    raise ConfigError(f"models.{model}: must be one of {known}")
                _move(command, workers_of.setdefault(model, placed_on(config, model)))
            for model, workers in workers_of.items():
                set_workers(document["models"][model], workers)

        edit(self._file, change)
        return [f"models.{model}.workers = {', '.join(w)}" for model, w in workers_of.items()]


def _move(command: ReplicaCommand, workers: list[str]) -> None:
    key, worker = f"models.{command.model}.workers", command.worker
    if worker is None:
        raise ConfigError(f"{key}: must be named: nobody else places replicas here")
    match command:
        case StartReplica():
            if worker in workers:
                raise ConfigError(f"{key} = {worker}: has a replica already")
            workers.append(worker)
        case StopReplica():
            if worker not in workers:
                known = ", ".join(workers) or "none has one"
                raise ConfigError(f"{key} = {worker}: must be one of {known}")
            if len(workers) == 1:
                raise ConfigError(f"{key} = {worker}: is the last; `roma models remove` ends it")
            workers.remove(worker)
        case _:
            assert_never(command)


class DeploymentScaler:
    """Pods of the Deployments that `roma render kubernetes` writes, one for each model."""

    def __init__(self, config: Config, worker: WorkerConfig) -> None:
        self._config = config
        self._worker = worker

    async def commands(self, model: str, count: int) -> Sequence[ReplicaCommand]:
        """Return the commands that give a model `count` pods; the cluster places them."""
        async with self._client() as client:
            more = count - await _count(client, self._path(model))
        command = StartReplica(model) if more > 0 else StopReplica(model)
        return [command] * abs(more)

    async def carry_out(self, commands: Sequence[ReplicaCommand]) -> list[str]:
        """Patch `scale` of each model's Deployment; the cluster's scheduler chooses the nodes."""
        for command in commands:
            if command.worker is not None:
                bound = "absent: the cluster's scheduler places pods"
                raise ConfigError(f"worker = {command.worker}: must be {bound}")
        changes: Counter[str] = Counter()
        for command in commands:
            changes[command.model] += 1 if isinstance(command, StartReplica) else -1
        async with self._client() as client:
            found = {model: await _count(client, self._path(model)) for model in changes}
            for model, before in found.items():
                if (after := before + changes[model]) < 1:
                    raise ConfigError(f"models.{model}: replicas = {after}: must be ≥ 1")
            done = []
            for model, before in found.items():
                after = before + changes[model]
                await client.patch(self._path(model), {"spec": {"replicas": after}}, TIMEOUT)
                name = common.server(self._config, model)
                done.append(f"deployment {name}: replicas {before} -> {after}")
        return done

    def _path(self, model: str) -> str:
        name, namespace = common.server(self._config, model), common.namespace(self._config)
        return f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/scale"

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[Client]:
        settings = self._worker.pods
        with naming(f"workers.{self._worker.name}.kubernetes.kubeconfig"):
            credentials = find(settings.kubeconfig, settings.context)
        client = Client(credentials)
        try:
            yield client
        finally:
            await client.close()


async def _count(client: Client, path: str) -> int:
    """Return the number of replicas that a Deployment asks for."""
    found: dict[str, Any] = await client.get(path, TIMEOUT)
    try:
        return int(found["spec"].get("replicas", 0))  # absent where it is 0
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ActuationError(f"{path}: its answer is no Scale") from error
