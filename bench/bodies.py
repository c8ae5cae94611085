"""Cost of parsing a predict body in the model server: orjson against the standard library."""

import json
import timeit
from collections.abc import Callable
from statistics import median

import numpy as np
import orjson
from rich.console import Console

from bench.tables import new_table

ROUNDS = 9


def run() -> None:
    """Print ms per body, for a digit and for a 224×224×3 image written as numbers."""
    table = new_table("reading a predict body, ms (median)", "body", "size", "json", "orjson")
    for name, shape in (("8×8 digit", (8, 8)), ("224×224×3 image", (224, 224, 3))):
        pixels = np.random.default_rng(1).random(shape)
        body = orjson.dumps({"instances": [pixels.tolist()]})
        cells = [f"{_ms(read, body):.3f}" for read in (json.loads, orjson.loads)]
        table.add_row(name, f"{len(body) / 1024:.0f} KiB", *cells)
    Console().print(table)


def _ms(read: Callable[[bytes], object], body: bytes) -> float:
    # With garbage collection, as in a model server: `timeit` would disable it.
    times = timeit.repeat(lambda: read(body), "gc.enable()", number=1, repeat=ROUNDS)
    return median(times) * 1000
