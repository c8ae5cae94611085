"""`roma config check | schema`: faults and notes of a roma.yaml, and its schema."""

import json
from datetime import UTC, datetime

import typer

from roma.cli import changed_defaults
from roma.cli.loading import checked
from roma.cli.options import ConfigFile
from roma.config.placement import executables
from roma.config.schema import Config
from roma.deploy.model_paths import unservable
from roma.domain.errors import naming
from roma.domain.model import Device
from roma.domain.words import counted
from roma.security import api_keys, exposure, peers, tokens
from roma.security.tls import server_context
from supervisor.assembly import unmet_idle_minima
from supervisor.broker import engine

command = typer.Typer(
    help="Check a roma.yaml, or print its schema.", no_args_is_help=True, add_completion=False
)


@command.command()
def check(file: ConfigFile) -> None:
    """Validate FILE; print one line per fault."""
    loaded = checked(file)
    with naming(str(file)):
        exposure.check(exposure.of_all(loaded))
    _check_secrets(loaded)
    count = len(executables(loaded))
    models = len(loaded.models)
    print(f"{file}: ok: {counted(models, 'model')}, {counted(count, 'executable')}")
    for line in _expired_keys(loaded):
        print(f"{file}: note: {line}")
    for note in changed_defaults.notes(loaded):
        print(f"{file}: changed default: {note}")
    for fault in unservable(loaded).values():
        print(f"{file}: note: cannot be served here: {fault}")
    slow = _too_slow(loaded)
    for name, seconds in slow.items():
        promise = loaded.models[name].sla.response_time
        print(
            f"{file}: note: models.{name}.sla.response_time = {promise:g}: one request takes "
            f"{seconds:.2g} s when it is alone: no number of cores keeps this promise"
        )
    served = {e.name: e.spec.models for e in executables(loaded)}
    for worker in loaded.workers:
        unmet = unmet_idle_minima(loaded, worker)
        if lacking := {e: cores for e, cores in unmet.items() if not slow.keys() & served[e]}:
            named = ", ".join(f"{name} {cores:.2f}" for name, cores in lacking.items())
            print(
                f"{file}: note: worker {worker.name} lacks the cores with which one request of "
                f"each model is in time after silence: needed are {named}"
            )


@command.command()
def schema() -> None:
    """Print the JSON schema of roma.yaml, for editors."""
    print(json.dumps(Config.model_json_schema(), indent=2))


def _too_slow(loaded: Config) -> dict[str, float]:
    """Return the seconds of one request, by model that breaks its promise with any cores.

    Only where its cost is known, and no GPU serves it.
    """
    found = (e.spec for e in executables(loaded) if e.spec.device is Device.GPU)
    on_gpus = {model for spec in found for model in spec.models}
    alone = {
        name: m.profile.cost / max(m.cpu.threads, m.profile.parallelism) + m.profile.overhead
        for name, m in loaded.models.items()
        if m.profile is not None and name not in on_gpus
    }
    return {n: s for n, s in alone.items() if s > loaded.models[n].sla.response_time}


def _check_secrets(loaded: Config) -> None:
    """Read what the file names and a program would read; raise ConfigError naming the file."""
    for name in ("admin", "exchange", "metrics"):
        tokens.watched(getattr(loaded.tokens, name), f"tokens.{name}")
    if loaded.gateway.keys is not None:
        with naming("gateway.keys"):
            api_keys.load(loaded.gateway.keys)
    sections = {
        "gateway.tls": loaded.gateway.tls,
        "gateway.admin_tls": loaded.gateway.admin_tls,
        "control.tls": loaded.control.tls,
    }
    for key, tls in sections.items():
        if tls is not None:
            server_context(tls, key)
    peers.to_dispatchers(loaded)
    peers.to_supervisors(loaded)
    for worker in loaded.workers:
        if worker.containers.tls is not None:
            with naming(f"workers.{worker.name}"):
                engine.tls_context(worker.containers.tls)
    for executable in executables(loaded):
        tokens.watched(executable.token, f"executable {executable.name}: token")


def _expired_keys(loaded: Config) -> list[str]:
    path = loaded.gateway.keys
    lines = [] if path is None else api_keys.expired(api_keys.load(path), datetime.now(UTC))
    return [f"gateway.keys: {path}: {line}" for line in lines]
