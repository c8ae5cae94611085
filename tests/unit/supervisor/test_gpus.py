"""GPUs through pynvml and a real shared library: NVML's where there is one, else a stand-in.

The stand-in is compiled here and found as NVML is, by its name, so pynvml is the real one. COUNT,
INIT (an error), LOST (an index) and MUTE, all in the environment, say how it behaves.
"""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.live.gpus import Gpus

ROOT = Path(__file__).parents[3]

# Signatures and error codes are nvml.h's.
LIBRARY = r"""
#include <stdio.h>
#include <stdlib.h>

enum { OK, NOT_SUPPORTED = 3, INVALID = 2, LOST = 15 };
static unsigned indices[8] = {0, 1, 2, 3, 4, 5, 6, 7};

static int number(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text && *text ? atoi(text) : otherwise;
}
int nvmlInitWithFlags(unsigned flags) { return number("INIT", OK); }
int nvmlShutdown(void) { fputs("SHUTDOWN\n", stderr); return OK; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = number("COUNT", 2); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, unsigned **device) {
    if (index >= 8) return INVALID;
    *device = &indices[index];
    return OK;
}
int nvmlDeviceGetName(unsigned *device, char *name, unsigned length) {
    snprintf(name, length, "NVIDIA Stand-in %u", *device);
    return OK;
}
int nvmlDeviceGetUtilizationRates(unsigned *device, unsigned percent[2]) {
    if ((int)*device == number("LOST", -1)) return LOST;
    if (number("MUTE", 0)) return NOT_SUPPORTED;
    percent[0] = 37 + *device, percent[1] = 5;
    return OK;
}
int nvmlDeviceGetMemoryInfo(unsigned *device, unsigned long long bytes[3]) {
    if ((int)*device == number("LOST", -1)) return LOST;
    if (number("MUTE", 0)) return NOT_SUPPORTED;
    bytes[0] = 80ull << 30, bytes[1] = 79ull << 30, bytes[2] = 1ull << 30;
    return OK;
}
"""

# One reading per argument, which is the index of the GPU that is lost by then.
READ = """
import dataclasses, json, logging, os, sys
from supervisor.live.gpus import Gpus
logging.basicConfig(level="INFO", format="%(levelname)s %(message)s")
with Gpus() as gpus:
    for os.environ["LOST"] in sys.argv[1:]:
        print(json.dumps([dataclasses.asdict(reading) for reading in gpus.read()]))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    directory = tmp_path_factory.mktemp("nvml")
    source = directory / "nvml.c"
    source.write_text(LIBRARY)
    command = ["cc", "-shared", "-fPIC", "-o", str(directory / "libnvidia-ml.so.1"), str(source)]
    subprocess.run(command, check=True)
    return directory


def read(library, *lost, code=READ, **environment):
    """Return the readings and what was said, from a process that finds its NVML in `library`."""
    done = subprocess.run(
        [sys.executable, "-c", code, *(lost or [""])],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(library), **environment},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr.splitlines()


def gpu(index, **other):
    return {
        "index": index,
        "name": f"NVIDIA Stand-in {index}",
        "utilization": 0.37 + index / 100,
        "memory_used": 2**30,
        "memory_total": 80 * 2**30,
        **other,
    }


def test_this_host_has_gpus_or_says_once_why_not(caplog):
    caplog.set_level(logging.INFO)
    with Gpus() as gpus:
        readings = gpus.read()
        assert len(gpus.read()) == len(readings)
    assert gpus.read() == ()
    assert all(0 <= r.memory_used <= r.memory_total for r in readings if r.memory_total)
    reasons = [r for r in caplog.records if r.message.startswith("no GPUs: ")]
    assert [r.levelname for r in reasons] == ([] if readings else ["INFO"])


SILENT = {"utilization": None, "memory_used": None, "memory_total": None}


@pytest.mark.parametrize(
    ("environment", "readings", "said"),
    [
        ({}, [gpu(0), gpu(1)], ["SHUTDOWN"]),
        # What a GPU does not tell is none.
        ({"COUNT": "1", "MUTE": "1"}, [gpu(0, **SILENT)], ["SHUTDOWN"]),
        ({"INIT": "9"}, [], ["INFO no GPUs: NVML: Driver Not Loaded"]),
        ({"INIT": "4"}, [], ["INFO no GPUs: NVML: Insufficient Permissions"]),
        ({"COUNT": "0"}, [], ["INFO no GPUs: NVML finds none", "SHUTDOWN"]),
    ],
)
def test_what_each_gpu_does_is_read_or_there_is_a_reason(library, environment, readings, said):
    assert read(library, **environment) == ([readings], said)


def test_a_lost_gpu_is_left_out_and_said_once_per_loss(library):
    readings, said = read(library, "", "0", "0", "", "0")
    both, one = [gpu(0), gpu(1)], [gpu(1)]
    assert readings == [both, one, one, both, one]
    assert said == ["WARNING GPU 0 cannot be read: GPU is lost"] * 2 + ["SHUTDOWN"]


def test_a_library_that_cannot_be_loaded(tmp_path):
    """As on a host without one: a file that is no library hides a real one."""
    (tmp_path / "libnvidia-ml.so.1").write_text("")
    assert read(tmp_path) == ([[]], ["INFO no GPUs: NVML: NVML Shared Library Not Found"])


def test_without_the_package(library):
    hidden = "import sys; sys.modules['pynvml'] = None\n" + READ
    readings, said = read(library, code=hidden)
    assert readings == [[]]
    assert said == ["INFO no GPUs: the package nvidia-ml-py (extra `gpu`) is not installed"]
