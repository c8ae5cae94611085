"""Convolutional networks behind TensorFlow Serving's REST API, on PyTorch; for `bench.gpu`.

    GET  /v1/models/M             {"model_version_status": [{"state": "AVAILABLE", …}]}
    POST /v1/models/M:predict     {"instances": [{"b64": pixels}]} → {"predictions": [[10 numbers]]}
    GET  /device                  what computes here, and the sides of the images by model

Pixels are the raw bytes of a square image, three per pixel. Weights are random, from a fixed seed:
every server of a model gives the same answers. It listens once all models are loaded and warm.
"""

import argparse
import asyncio
import base64
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import orjson
import torch
from aiohttp import web
from torch import nn


@dataclass(frozen=True, slots=True)
class Shape:
    """A network: stages of `depth` 3×3 convolutions, the first of each halving the image."""

    side: int
    widths: tuple[int, ...]
    depth: int


SHAPES = {
    "small": Shape(96, (64, 128, 256), 2),  # 0.3 G multiply-adds per image
    "large": Shape(224, (64, 128, 256, 512), 3),  # 4.4 G, about what ResNet-50 takes
}

WARM_UP = 5
"""Requests before the first real one: CUDA loads its kernels at first use."""


def network(shape: Shape) -> nn.Module:
    """Return the network with random weights, the same ones every time."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    before = 3
    for width in shape.widths:
        for place in range(shape.depth):
            layer = nn.Conv2d(before, width, 3, stride=2 if place == 0 else 1, padding=1)
            # PyTorch's own start shrinks the signal from layer to layer: answers would hardly
            # depend on the image.
            nn.init.kaiming_normal_(layer.weight)
            layers += [layer, nn.ReLU()]
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10))


class Server:
    """Answers for `models` on `device`; at most `slots` requests compute at once."""

    def __init__(self, device: str, models: list[str], slots: int) -> None:
        self._device = device
        self._networks = {name: network(SHAPES[name]).to(device).eval() for name in models}
        self._pool = ThreadPoolExecutor(slots)
        for name in models:
            pixels = base64.b64encode(bytes(3 * SHAPES[name].side ** 2)).decode()
            for _ in range(WARM_UP):
                # In the pool: cuDNN has a handle per thread.
                body = orjson.dumps({"instances": [{"b64": pixels}]})
                self._pool.submit(self._infer, name, body).result()

    def application(self) -> web.Application:
        """Return the three calls."""
        app = web.Application(client_max_size=64 * 2**20)
        app.router.add_get("/device", self._describe)
        app.router.add_get("/v1/models/{model}", self._status)
        app.router.add_post("/v1/models/{call}", self._predict)
        return app

    async def _describe(self, _: web.Request) -> web.Response:
        device = "no GPU: PyTorch finds no CUDA here, the CPU plays the GPU"
        if self._device == "cuda":
            device = f"GPU: {torch.cuda.get_device_name()}"
        return web.json_response(
            {
                "device": device,
                "torch": torch.__version__,
                "sides": {name: SHAPES[name].side for name in self._networks},
            }
        )

    async def _status(self, request: web.Request) -> web.Response:
        if request.match_info["model"] not in self._networks:
            return _error(404, "no such model")
        status = {"error_code": "OK", "error_message": ""}
        version = {"version": "1", "state": "AVAILABLE", "status": status}
        return web.json_response({"model_version_status": [version]})

    async def _predict(self, request: web.Request) -> web.Response:
        model, _, verb = request.match_info["call"].partition(":")
        if model not in self._networks or verb != "predict":
            return _error(404, "no such model or method")
        loop, content = asyncio.get_running_loop(), await request.read()
        try:
            answer = await loop.run_in_executor(self._pool, self._infer, model, content)
        except (ValueError, KeyError, TypeError) as error:
            return _error(400, f"{type(error).__name__}: {error}")
        except RuntimeError as error:  # PyTorch's exception, also for a lost GPU
            print(f"{model}: {error}", file=sys.stderr)
            return _error(500, str(error))
        return web.Response(body=answer, content_type="application/json")

    def _infer(self, model: str, request: bytes) -> bytes:
        side = SHAPES[model].side
        images = [base64.b64decode(item["b64"]) for item in orjson.loads(request)["instances"]]
        if not images or any(len(image) != 3 * side**2 for image in images):
            raise ValueError(f"instances: each must be the {3 * side**2} bytes of an image")
        pixels = torch.frombuffer(bytearray(b"".join(images)), dtype=torch.uint8)
        with torch.inference_mode():
            batch = pixels.reshape(-1, 3, side, side).to(self._device).float() / 255 - 0.5
            # tolist() waits for the GPU.
            return orjson.dumps({"predictions": self._networks[model](batch).tolist()})


def _error(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), default="cpu")
    parser.add_argument("--model", action="append", choices=tuple(SHAPES), required=True)
    parser.add_argument("--slots", type=int, default=1)
    options: Any = parser.parse_args()
    device = "cuda" if options.device == "gpu" and torch.cuda.is_available() else "cpu"
    server = Server(device, options.model, options.slots)
    web.run_app(
        server.application(),
        host="127.0.0.1",
        port=options.port,
        print=None,
        access_log=None,
        # Connections belong to the dispatcher's pool, which closes them itself.
        keepalive_timeout=3600,
        shutdown_timeout=1,
    )


if __name__ == "__main__":
    main()
