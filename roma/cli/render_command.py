"""`roma render`: a deployment as files for Compose and for Kubernetes."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from roma.cli.loading import checked
from roma.cli.options import ConfigFile
from roma.config import file_edit
from roma.config.schema import Config
from roma.deploy import secrets
from roma.deploy.compose import SETTINGS, render
from roma.deploy.kubernetes import helm
from roma.deploy.kubernetes.render import Images, default_image, left_out
from roma.deploy.kubernetes.render import render as render_kubernetes
from roma.domain.errors import ConfigError

command = typer.Typer(
    help="Write a deployment for other tools.", no_args_is_help=True, add_completion=False
)


class PullPolicy(StrEnum):
    """Rule by which nodes pull an image, in Kubernetes' own words."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


@command.command()
def compose(
    file: ConfigFile,
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("compose"),
) -> None:
    """Write FILE's deployment as compose.yaml, and the files that its containers read."""
    loaded = checked(file)
    files = render(loaded, file, out)
    done = _write(out, files, file, kept=(SETTINGS,))
    _let_containers_read(out, files)
    done += _write_secrets(loaded, out)
    print(*done, sep="\n")


@command.command()
def kubernetes(
    file: ConfigFile,
    out: Annotated[Path, typer.Option(help="Directory to write into.")] = Path("k8s"),
    image: Annotated[
        str | None,
        typer.Option(
            help=f"Image of the model servers. Default: {Images.model_server}, or TensorFlow "
            "Serving's where kubernetes.server is tensorflow_serving."
        ),
    ] = None,
    control_image: Annotated[
        str, typer.Option(help="Image of gateway and supervisor.")
    ] = Images.control,
    pull_policy: Annotated[
        PullPolicy, typer.Option(help="When nodes pull the images.")
    ] = PullPolicy.IF_NOT_PRESENT,
    gateways: Annotated[
        int, typer.Option(min=1, max=16, help="Pods of the gateway, behind one Service.")
    ] = 2,
) -> None:
    """Write FILE's deployment as a kustomize base with overlays, and as a Helm chart."""
    loaded = checked(file)
    server_image = default_image(loaded) if image is None else image
    images = Images(control_image, server_image, pull_policy.value)
    done = _write(out, render_kubernetes(loaded, file, images, gateways), file)
    done += _write_secrets(loaded, out / "base")
    done += _write_values(out / "base" / secrets.FOLDER)
    print(*done, sep="\n")
    if why := left_out(loaded):
        parts = (out / "overlays" / "production", out / helm.FOLDER)
        print(f"left out {parts[0]} and {parts[1]}: {why}")
        if stale := [str(part) for part in parts if part.exists()]:
            raise ConfigError(f"{', '.join(stale)}: of an earlier rendering; must be removed")


# What was done is printed once all is done: a reader of it that goes away must not cut it short.


def _write(
    out: Path, files: Mapping[str, str], source: Path, kept: Collection[str] = ()
) -> list[str]:
    done = []
    with file_edit.writing(f"out = {out}"):
        for name in files:
            if (out / name).exists() and (out / name).samefile(source):
                bound = f"another directory: {name} there is the file to render"
                raise ConfigError(f"--out = {out}: must be {bound}")
        for name, text in files.items():
            if name in kept and (out / name).exists():
                done.append(f"kept  {out / name}")
                continue
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            (out / name).write_text(text, encoding="utf-8")
            done.append(f"wrote {out / name}")
    return done


def _let_containers_read(out: Path, files: Collection[str]) -> None:
    """Let the users inside containers read what is mounted there, whatever the umask says."""
    with file_edit.writing(f"out = {out}"):
        for file in (Path(name) for name in files if name != SETTINGS):
            for path in (file, *file.parents[:-1]):  # without `out` itself
                mode = (out / path).stat().st_mode & 0o777
                wanted = mode | (0o444 if path == file else 0o555)
                if mode != wanted:
                    (out / path).chmod(wanted)


def _write_secrets(config: Config, out: Path) -> list[str]:
    with file_edit.writing(f"out = {out}"):
        return [f"wrote {path}" for path in secrets.write(config, out)]


def _write_values(folder: Path) -> list[str]:
    """Write the secrets as values of the chart, for their owner alone."""
    with file_edit.writing(f"out = {folder}"):
        file = folder / helm.VALUES
        file.touch(mode=0o600)
        file.write_text(helm.values(folder), encoding="ascii")
    return [f"wrote {file}"]
