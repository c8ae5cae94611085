"""Options in, exit status out: 0 done, 1 failed, 2 the configuration or the machine is wrong."""

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from roma.cli.design_command import design_app
from roma.cli.experiment_command import experiment_app
from roma.cli.keys_command import keys_app
from roma.cli.models_command import models_app
from roma.cli.qos_command import qos_app
from roma.config import start_failures
from roma.domain.errors import ConfigError, LaunchError, RomaError, naming
from roma.telemetry import logs

if TYPE_CHECKING:
    from roma.config.schema import Config

app = typer.Typer(
    help="Keeps the response-time promises of models that share a host, with few CPU cores.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
config_app = typer.Typer(help="Check a roma.yaml, or print its schema.", no_args_is_help=True)
render_app = typer.Typer(help="Write a deployment for other tools.", no_args_is_help=True)
app.add_typer(config_app, name="config")
app.add_typer(models_app, name="models")
app.add_typer(keys_app, name="keys")
app.add_typer(render_app, name="render")
app.add_typer(qos_app, name="qos")
app.add_typer(design_app, name="design")
app.add_typer(experiment_app, name="experiment")

AdminUrl = Annotated[
    str | None,
    typer.Option(
        help="Admin address of a dispatcher. Default: that of --config, or http://127.0.0.1:8500.",
        metavar="URL",
    ),
]
AdminConfig = Annotated[
    Path | None, typer.Option("--config", help="The roma.yaml that says where, and by which token.")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the admin token. Default: that of --config.")
]
Authority = Annotated[
    Path | None, typer.Option(help="PEM with the authority of the dispatcher's certificate.")
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure", help="Listen beyond this machine though nothing says who may connect."
    ),
]
ConfigFile = Annotated[Path, typer.Argument(help="A roma.yaml.", metavar="FILE")]


def main() -> None:
    """Run the command line; errors that people can fix are one line each, without a traceback."""
    logs.apply()
    try:
        app()
    except RomaError as error:
        print(error, file=sys.stderr)
        start_failures.leave(error)
        sys.exit(2 if isinstance(error, (ConfigError, LaunchError)) else 1)


@config_app.command()
def check(file: ConfigFile) -> None:
    """Validate FILE; print one line per fault."""
    from roma.cli import changed_defaults
    from roma.config import placement
    from roma.deploy.model_paths import unservable
    from roma.security import exposure
    from supervisor.assembly import unmet_idle_minima

    loaded = _checked(file)
    try:
        exposure.check(exposure.of_all(loaded))
    except ConfigError as error:
        raise ConfigError(
            "\n".join(f"{file}: {line}" for line in str(error).split("\n"))
        ) from error
    _checked_secrets(loaded)
    count = len(placement.executables(loaded))
    print(f"{file}: ok: {len(loaded.models)} models, {count} executables")
    for line in _expired_keys(loaded):
        print(f"{file}: note: {line}")
    for note in changed_defaults.notes(loaded):
        print(f"{file}: changed default: {note}")
    for fault in unservable(loaded).values():
        print(f"{file}: note: cannot be served here: {fault}")
    for worker in loaded.workers:
        if unmet := unmet_idle_minima(loaded, worker):
            named = ", ".join(f"{name} {cores:.2f}" for name, cores in unmet.items())
            print(
                f"{file}: note: worker {worker.name} lacks the cores with which one request of "
                f"each model is in time after silence: needed are {named}"
            )


@config_app.command()
def schema() -> None:
    """Print the JSON schema of roma.yaml, for editors."""
    from roma.config.schema import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


@render_app.command()
def compose(
    file: ConfigFile,
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("compose"),
) -> None:
    """Write FILE's deployment as compose.yaml, and the files that its containers read."""
    from roma.deploy import compose as launch
    from roma.deploy import secrets

    loaded = _checked(file)
    written = launch.render(loaded, file, out)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            if name == launch.SETTINGS and (out / name).exists():
                print(f"kept  {out / name}")
                continue
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text)
            print(f"wrote {out / name}")
        for path in secrets.write(loaded, out):
            print(f"wrote {path}")
    except OSError as error:
        raise ConfigError(f"out = {out}: cannot be written: {error}") from error


@app.command()
def up(file: ConfigFile, insecure: Insecure = False) -> None:
    """Start executables, dispatcher and supervisors; stop them all on Ctrl-C."""
    import asyncio

    from roma.deploy import up as launch

    asyncio.run(launch.run(_program(file), file, insecure=insecure))


@app.command()
def status(
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the board as JSON.")] = False,
) -> None:
    """Show every model now: its promise, its load, its cores and why; worst first."""
    from roma.cli import status_command

    at = status_command.target(url, config, token_file, ca)
    status_command.status(at, json_output=json_output)


@app.command()
def top(
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
) -> None:
    """Show the same once a second, until Ctrl-C."""
    from roma.cli import status_command

    status_command.top(status_command.target(url, config, token_file, ca))


@app.command()
def explain(
    model: Annotated[str, typer.Argument(help="The model to tell about.")],
    url: AdminUrl = None,
    config: AdminConfig = None,
    token_file: TokenFile = None,
    ca: Authority = None,
    seconds: Annotated[
        float, typer.Option(min=1, max=900, help="How far back, at most 15 minutes.")
    ] = 10.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print the records as JSON.")] = False,
) -> None:
    """Say why MODEL got the cores it got, and which requests were refused, oldest first."""
    from roma.cli import status_command

    at = status_command.target(url, config, token_file, ca)
    status_command.explain(at, status_command.Explain(model, seconds, json_output))


@app.command()
def simulate(
    file: ConfigFile,
    law: Annotated[
        list[str] | None, typer.Option(help="Law instead of the file's; repeat to compare.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Runs to average over.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0)] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print raw numbers as JSON.")] = False,
    record: Annotated[
        Path | None,
        typer.Option(help="Write one CSV per executable here, for `roma design identify`."),
    ] = None,
    decision_log: Annotated[
        Path | None,
        typer.Option(help="Write every decision here as a live run does, for `roma report`."),
    ] = None,
    story: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Answer in virtual time what FILE would need: how many cores, how many late requests."""
    from roma.cli import simulate_command

    if story is not None:
        raise ConfigError("--story: is called --decision-log since 0.2")
    options = simulate_command.SimulateOptions(
        law or (), seeds, first_seed, json_output, record, decision_log
    )
    simulate_command.run(_checked(file), options)


@app.command()
def report(
    run: Annotated[
        Path,
        typer.Argument(
            help="What `control.decision_log` or `simulate --decision-log` wrote.", metavar="RUN"
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page.")] = Path("report.html"),
    png: Annotated[
        Path | None, typer.Option(help="Write the pictures as PNG into this directory too.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Default: the name of the directory.")] = None,
) -> None:
    """Write one page on RUN: promises, cores, what went wrong when, and why."""
    from roma.cli import report_command

    report_command.run(run, out, title, png)


@app.command()
def dispatcher(
    file: ConfigFile,
    insecure: Insecure = False,
    shared: Annotated[
        bool,
        typer.Option(
            "--shared",
            help="Share the clients' port with other dispatchers of this machine (SO_REUSEPORT).",
        ),
    ] = False,
    admin_port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="Instead of gateway.admin_port: one each, if shared."),
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(min=1, help="Which of gateway.processes it is: shared, with that admin port."),
    ] = None,
    faults_file: Annotated[
        Path | None,
        typer.Option("--faults", help="JSON file of a launcher: by executable, why it cannot run."),
    ] = None,
) -> None:
    """Run one dispatcher: gateway, queues and schedulers. SIGHUP: models that came or went."""
    import uvloop

    from dispatcher.live import app as dispatcher_app

    loaded = _program(file)
    if number is not None:
        ports = loaded.gateway.admin_ports
        if number > len(ports):
            raise ConfigError(f"number = {number}: must be ≤ gateway.processes ({len(ports)})")
        shared, admin_port = True, admin_port or ports[number - 1]
    program = dispatcher_app.run(
        loaded,
        file,
        insecure=insecure,
        shared=shared,
        admin_port=admin_port,
        faults_file=faults_file,
    )
    uvloop.run(program)


@app.command()
def supervisor(
    file: ConfigFile,
    worker: Annotated[str | None, typer.Option(help="Name of the worker to control.")] = None,
    insecure: Insecure = False,
) -> None:
    """Run one worker's supervisor: controllers, sharing and actuation."""
    import asyncio

    from supervisor.live import app as supervisor_app

    loaded = _program(file)
    chosen = loaded.worker(worker)
    asyncio.run(supervisor_app.run(loaded, chosen, file, insecure=insecure))


@app.command()
def broker(
    file: ConfigFile,
    worker: Annotated[str | None, typer.Option(help="Name of the worker to serve.")] = None,
    launcher: Annotated[
        bool, typer.Option(help="Let containers be made and removed, on a socket of its own.")
    ] = True,
) -> None:
    """Hold a worker's Docker socket: containers and quotas for others, within FILE's bounds."""
    import asyncio

    from roma.config.workers import Backend
    from supervisor.broker import server

    loaded = _program(file)
    chosen = loaded.worker(worker)
    if chosen.backend is not Backend.DOCKER:
        raise ConfigError(f"workers.{chosen.name}.backend = {chosen.backend}: must be docker")
    asyncio.run(server.run(loaded, chosen, file, launcher=launcher))


@app.command()
def serve_model(
    model: Annotated[
        list[str], typer.Option(help="NAME=DIRECTORY with numbered versions; repeatable.")
    ],
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8501,
    host: str = "127.0.0.1",
    socket: Annotated[
        Path | None, typer.Option(help="Unix socket for REST, instead of a port.")
    ] = None,
    intra_op: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    inter_op: Annotated[int, typer.Option(min=1, help="Requests computed at once.")] = 1,
    max_body_bytes: Annotated[int, typer.Option(min=1024)] = 64 * 2**20,
    grpc_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Port of the gRPC protocols; 0 takes a free one."),
    ] = None,
    grpc_socket: Annotated[
        Path | None, typer.Option(help="Unix socket of the gRPC protocols, beside or for a port.")
    ] = None,
    allow_reload: Annotated[
        bool,
        typer.Option(
            "--allow-reload",
            help="Let gRPC clients choose the models (HandleReloadConfigRequest), in any folder.",
        ),
    ] = False,
) -> None:
    """Serve SavedModels with TensorFlow Serving's APIs and the Open Inference Protocol."""
    import asyncio

    from roma.serving.server import ServerSettings, run_model_server
    from roma.tensors import frameworks

    frameworks.skip_keras()
    settings = ServerSettings(
        models=dict(_named_path(text) for text in model),
        host=host,
        port=port,
        socket=socket,
        grpc_port=grpc_port,
        grpc_socket=grpc_socket,
        allow_reload=allow_reload,
        intra_op=intra_op,
        inter_op=inter_op,
        max_body_bytes=max_body_bytes,
    )
    asyncio.run(run_model_server(settings))


@app.command(
    hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True}
)
def worker() -> None:
    """Say what it is called now."""
    raise ConfigError("roma worker: is called roma device since 0.2")


@app.command()
def device(
    runtime: Annotated[
        str, typer.Option(help="What executes the models: tensorflow, torch or emulated.")
    ] = "tensorflow",
    model: Annotated[
        list[str] | None,
        typer.Option(help="NAME=PATH: a SavedModel, or a .pt or .pt2 file; repeatable."),
    ] = None,
    models: Annotated[
        Path | None, typer.Option(help="Directory of models, each called by its own name.")
    ] = None,
    emulate: Annotated[
        str | None,
        typer.Option(help="Models of a device that is not there, e.g. resnet50:15,resnet18:3."),
    ] = None,
    emulate_tensors: Annotated[
        bool,
        typer.Option(
            "--emulate-tensors", help="With tensors of the models' sizes, not one number each."
        ),
    ] = False,
    device_: Annotated[
        str, typer.Option("--device", help="cpu, or cuda:N for the torch runtime.")
    ] = "cpu",
    pages: Annotated[
        int | None,
        typer.Option(
            min=1, max=10**9, help="Pages of 16 MiB for weights. Default: what the device has."
        ),
    ] = None,
    memory: Annotated[str | None, typer.Option(help="The same in bytes, e.g. 2GiB.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    profile_runs: Annotated[
        int, typer.Option(min=1, max=1000, help="Runs per model and batch size at start.")
    ] = 5,
    batches: Annotated[
        str | None,
        typer.Option(help="Batch sizes to profile and execute. Default: 1,2,4,8,16."),
    ] = None,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8700,
    name: Annotated[
        str | None, typer.Option(help="What dispatchers call it. Default: this machine's name.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the token that a dispatcher must show.")
    ] = None,
    insecure: Insecure = False,
    log_format: Annotated[str, typer.Option(help="console or json.")] = "console",
) -> None:
    """Run a planned device: it executes what one dispatcher tells it, when it tells it."""
    import socket

    from roma.cli import device_command

    device_command.device(
        device_command.DeviceOptions(
            name=name or socket.gethostname(),
            host=host,
            port=port,
            runtime=device_command.runtime_kind(runtime),
            models=tuple(model or ()),
            folder=models,
            emulate=emulate,
            full=emulate_tensors,
            device=device_,
            pages=pages,
            memory=memory,
            threads=threads,
            profile_runs=profile_runs,
            batches=batches,
            token_file=token_file,
            insecure=insecure,
            log=device_command.log_format(log_format),
        )
    )


@app.command()
def predictability(
    runtime: Annotated[
        str, typer.Option(help="What executes the model: tensorflow, torch or emulated.")
    ] = "tensorflow",
    model: Annotated[
        str | None, typer.Option(help="NAME=PATH. Default: a small dense network, made anew.")
    ] = None,
    emulate: Annotated[
        str | None, typer.Option(help="A model of the emulated device, e.g. resnet50:1.")
    ] = None,
    device_: Annotated[
        str, typer.Option("--device", help="cpu, or cuda:N for the torch runtime.")
    ] = "cpu",
    batch: Annotated[int, typer.Option(help="Examples per execution.")] = 1,
    runs: Annotated[int, typer.Option(min=1, max=10_000_000, help="Executions per row.")] = 2000,
    threads: Annotated[
        str, typer.Option(help="How many execute at once: one row each, e.g. 1,2,4.")
    ] = "1,2,4",
    intra_op: Annotated[int, typer.Option(min=1, help="Threads inside one operation.")] = 1,
    json_output: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
) -> None:
    """Measure how predictable a model is alone on a device, and how much less so in company."""
    from roma.cli import device_command, predictability_command

    predictability_command.run(
        predictability_command.PredictabilityOptions(
            runtime=device_command.runtime_kind(runtime),
            model=model,
            emulate=emulate,
            device=device_,
            batch=batch,
            runs=runs,
            threads=threads,
            inside=intra_op,
            json_output=json_output,
        )
    )


@app.command()
def load(
    model: Annotated[str, typer.Argument(help="The model to call.")],
    body: Annotated[
        Path, typer.Option(help="One JSON body, or a .jsonl file with one body per line.")
    ],
    url: str = "http://127.0.0.1:8501",
    profile: Annotated[
        str | None, typer.Option(help="Rates in req/s per step, e.g. 20-20-80-80-20.")
    ] = None,
    step: Annotated[float, typer.Option(help="Length of a step in seconds.")] = 35.0,
    trace: Annotated[Path | None, typer.Option(help="Replay a trace file instead.")] = None,
    trace_kind: Annotated[
        str, typer.Option(help="What the trace holds: counts (per second) or timestamps.")
    ] = "counts",
    trace_column: Annotated[
        str | None, typer.Option(help="Column of a CSV trace with a header row.")
    ] = None,
    process: Annotated[
        str, typer.Option(help="Within a step: poisson, paced or mmpp (two levels).")
    ] = "poisson",
    seed: int = 1,
    sla: Annotated[float | None, typer.Option(help="Promised response time in seconds.")] = None,
    timeout: Annotated[float, typer.Option(help="Seconds before a request counts as failed.")] = 30,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a key, where the service asks for one.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Send open-loop load to one model and report response times."""
    from roma.cli import load_command

    load_command.run(
        load_command.LoadOptions(
            model=model,
            body=body,
            url=url,
            profile=profile,
            step=step,
            trace=trace,
            trace_kind=trace_kind,
            trace_column=trace_column,
            process=process,
            seed=seed,
            sla=sla,
            timeout=timeout,
            token_file=token_file,
            json_output=json_output,
        )
    )


@app.command()
def profile(
    file: ConfigFile,
    model: Annotated[
        list[str] | None, typer.Option(help="Only this model; repeatable. Default: all of them.")
    ] = None,
    cores: Annotated[
        str | None,
        typer.Option(
            help="Quotas to measure under, e.g. 0.25,0.5,1. Default: these and the model's most."
        ),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Inputs per request; 1 is always measured.")
    ] = "1,2,4,8",
    seconds: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Least seconds per pair of cores and batch.")
    ] = 3.0,
    body: Annotated[
        list[str] | None,
        typer.Option(
            help="MODEL=FILE with one JSON body, or a .jsonl file with one per line; repeatable. "
            "Default: the model's warm-up body, or numbers in the shape of its signature."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write. Default: what FILE names as `profile`, or profile.yaml beside it."
        ),
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
) -> None:
    """Measure on this machine what a request of each model of FILE costs; write a profile."""
    from roma.cli import profile_command

    profile_command.run(
        profile_command.ProfileOptions(
            file=file,
            models=model or (),
            cores=cores,
            batch=batch,
            seconds=seconds,
            bodies=body or (),
            out=out,
            json_output=json_output,
        )
    )


@app.command()
def demo(
    cache: Annotated[Path, typer.Option(help="Where prepared models are kept.")] = Path(".cache"),
    seconds: Annotated[float, typer.Option(min=10, help="Length of the stepping load.")] = 90.0,
    law: Annotated[str, typer.Option(help="Control law to show.")] = "late_share",
    compare: Annotated[
        bool, typer.Option("--compare", help="Run the same load again under the law `rules`.")
    ] = False,
    seed: int = 1,
    picture: Annotated[
        Path | None, typer.Option(help="Save the live table and the result as an SVG file.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print the results as JSON.")] = False,
) -> None:
    """Keep two real TensorFlow models under their SLAs on this machine, and report honestly."""
    from roma.tools.demo.run import DemoOptions, run

    sys.exit(run(DemoOptions(cache, seconds, law, compare, seed, picture, json_output)))


def _checked(file: Path) -> "Config":
    """Load a file and check what only the registries know."""
    from controllers import registry
    from roma.config import schema

    loaded = schema.load(file)
    try:
        registry.build(loaded.control.law, loaded.control.gains)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error
    return loaded


def _checked_secrets(loaded: "Config") -> None:
    """Read what the file names and a program would read; raise ConfigError naming the file."""
    from roma.config.placement import executables
    from roma.security import api_keys, tokens
    from roma.security.tls import server_context

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
    for executable in executables(loaded):
        tokens.watched(executable.token, f"executable {executable.name}: token")


def _expired_keys(loaded: "Config") -> list[str]:
    from roma.security import api_keys

    path = loaded.gateway.keys
    lines = [] if path is None else api_keys.expired(api_keys.load(path), datetime.now(UTC))
    return [f"gateway.keys: {path}: {line}" for line in lines]


def _program(file: Path) -> "Config":
    """Load what a program runs by, and log from now on as it says."""
    loaded = _checked(file)
    logs.apply(loaded.log.format, loaded.log.level)
    return loaded


def _named_path(text: str) -> tuple[str, Path]:
    name, separator, path = text.partition("=")
    if not (name and separator and path):
        raise ConfigError(f"--model = {text}: must be NAME=DIRECTORY")
    return name, Path(path)
