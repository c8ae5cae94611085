"""`clockwork` on a GPU: `python -m bench.gpu_planned`; needs PyTorch, and `make wheel` before.

One `roma device` owns the GPU and has copies of a convolutional network of 4.4 G multiply-adds,
each a model of its own; a gateway plans for it, and an open-loop client sends Poisson arrivals to
every copy alike. With fewer `--pages` than the copies need, their weights are loaded and unloaded
over the bus. Without CUDA the CPU stands in for the GPU, and the first line says so.
"""

import argparse
from pathlib import Path

import torch
from torch import nn

from bench.gpu_server import SHAPES, network
from bench.planned import Plant, sweep
from bench.proxies import needs, scratch
from roma.cli.console import wide_console

COPIES = 15
"""As in Clockwork's Fig. 5."""

THUMB = 8
"""Side of the image in a request, three colours; the model enlarges it, so that JSON parsing is not
what is measured."""

MOST = 16
START = 300.0
"""Seconds that a worker may take to start: it executes every copy in every batch size."""


class Enlarged(nn.Module):
    """The network behind an enlargement of its input."""

    def __init__(self) -> None:
        super().__init__()
        self._shape = SHAPES["large"]
        self.network = network(self._shape)

    def forward(self, thumbs: torch.Tensor) -> torch.Tensor:
        """Return 10 numbers per image, from (batch, 3, THUMB, THUMB)."""
        images = nn.functional.interpolate(thumbs, (self._shape.side, self._shape.side))
        answer: torch.Tensor = self.network(images)
        return answer


def export(path: Path) -> None:
    """Write the network as a program for batches up to MOST."""
    batch = torch.export.Dim("batch", min=1, max=MOST)
    example = (torch.zeros(2, 3, THUMB, THUMB),)
    program = torch.export.export(Enlarged().eval(), example, dynamic_shapes=({0: batch},))
    torch.export.save(program, path)


def main() -> None:
    """Print a table for each promise."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--slo", default="100,25,10", help="promises in ms")
    parser.add_argument("--rates", default="250,500,1000,1500,2000", help="requests per second")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--copies", type=int, default=COPIES)
    parser.add_argument("--pages", type=int, help="of the GPU's memory; default: all of it")
    options = parser.parse_args()
    needs("gpu_planned")
    is_gpu = torch.cuda.is_available()
    told = f"GPU: {torch.cuda.get_device_name()}" if is_gpu else "no GPU: the CPU plays it"
    console = wide_console()
    console.print(f"{told}; torch {torch.__version__}, weights random")
    models = [f"net-{i}" for i in range(options.copies)]
    with scratch() as directory:
        file = directory / "net.pt2"
        export(file)
        argv = ["--runtime", "torch", "--device", "cuda:0" if is_gpu else "cpu"]
        argv += [word for model in models for word in ("--model", f"{model}={file}")]
        memory = "all in memory"
        if options.pages is not None:
            argv += ["--pages", f"{options.pages}"]
            memory = f"{options.pages} pages"
        body = f'{{"instances": [{[[[0.5] * THUMB] * THUMB] * 3}]}}'
        rates = [float(rate) for rate in options.rates.split(",")]
        for slo in [float(ms) / 1e3 for ms in options.slo.split(",")]:
            title = f"{len(models)} models, {memory}, SLO {slo * 1e3:g} ms"
            plant = Plant(argv, models, slo, body, start=START)
            console.print(sweep(plant, title, rates, options.seconds))


if __name__ == "__main__":
    main()
