"""`tensorflow_model_server`, as TensorFlow Serving's own tests start it, over `roma up`.

Its flags become a roma.yaml. As that program does, it opens its TCP ports when its models answer,
and not before: they lead to those of the gateway, byte for byte. Flags without a counterpart
(batching parameters, channel arguments) are read and change nothing.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path

import aiohttp
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

from roma.telemetry.orphans import die_with_parent
from roma.tools.demo.ports import free_ports


def main() -> None:
    """Run until killed, or until `roma up` ends."""
    options = _options()
    if options.model_config_file is None:
        models = {options.model_name: options.model_base_path}
    else:
        models = _read(options.model_config_file)
    sys.exit(asyncio.run(_run(options, models)))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in ("port", "rest_api_port", "rest_api_timeout_in_ms"):
        parser.add_argument(f"--{flag}", type=int, required=True)
    parser.add_argument("--model_config_file_poll_wait_seconds", type=float, default=0)
    parser.add_argument("--model_name", default="default")
    for flag in ("grpc_socket_path", "model_base_path", "model_config_file"):
        parser.add_argument(f"--{flag}", type=Path)
    for flag in ("monitoring_config_file", "batching_parameters_file", "grpc_channel_arguments"):
        parser.add_argument(f"--{flag}")
    parser.add_argument("--enable_batching", action="store_true")
    return parser.parse_args()


def _read(file: Path) -> dict[str, Path]:
    """Return the base paths, by model name, of a ModelServerConfig."""
    config = model_server_config_pb2.ModelServerConfig()
    try:
        text_format.Parse(file.read_text(), config)
    except text_format.ParseError as error:
        sys.exit(f"Error parsing text-format tensorflow.serving.ModelServerConfig: {error}")
    return {one.name: Path(one.base_path) for one in config.model_config_list.config}


async def _run(options: argparse.Namespace, models: dict[str, Path]) -> int:
    rest, grpc, admin, control, *executables = free_ports(24)
    file = Path(tempfile.mkdtemp(prefix="roma-")) / "roma.yaml"

    def write(models: dict[str, Path]) -> None:
        text = yaml.safe_dump(
            {
                "name": f"tfs-{os.getpid()}",
                "models": {
                    name: {
                        "path": str(path),
                        "sla": {"response_time": options.rest_api_timeout_in_ms / 1000},
                        "cpu": {"max": 2, "initial": 2},
                    }
                    for name, path in models.items()
                },
                "workers": [
                    {"name": "local", "cores": 4, "base_port": executables[0], "grpc_offset": 10}
                ],
                "control": {"port": control, "dry_run": True},
                "gateway": {
                    "port": rest,
                    "grpc_port": grpc,
                    "grpc_socket": str(options.grpc_socket_path),
                    "admin_port": admin,
                    "client_metrics": options.monitoring_config_file is not None,
                },
            }
        )
        new = file.with_suffix(".new")
        new.write_text(text)
        new.replace(file)

    write(models)
    up = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roma", "up", str(file)), preexec_fn=die_with_parent
    )
    following = asyncio.create_task(_follow(options, models, write))
    serving = asyncio.create_task(_open(options, rest, grpc))
    try:
        return await up.wait()
    finally:
        following.cancel()
        serving.cancel()


async def _follow(options, models, write) -> None:
    """Write roma.yaml again whenever the file of models has changed."""
    while period := options.model_config_file_poll_wait_seconds:
        await asyncio.sleep(period)
        found = _read(options.model_config_file)
        if found != models:
            models = found
            write(models)


async def _open(options: argparse.Namespace, rest: int, grpc: int) -> None:
    """Listen where the flags say, once every model answers."""
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"http://127.0.0.1:{rest}/readyz") as answer:
                    if answer.status == 200:
                        break
            await asyncio.sleep(0.1)
    async with contextlib.AsyncExitStack() as stack:
        for outer, inner in ((options.rest_api_port, rest), (options.port, grpc)):
            server = await asyncio.start_server(_to(inner), "localhost", outer)
            await stack.enter_async_context(server)
        await asyncio.Event().wait()


def _to(port: int):
    """Return a handler that passes connections on."""

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(ConnectionError, OSError):
            writer.write_eof()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", port)
        try:
            await asyncio.gather(copy(reader, back), copy(there, writer))
        finally:
            back.close()
            writer.close()

    return handle


if __name__ == "__main__":
    main()
