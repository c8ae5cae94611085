"""docs/howto/variants.md for real: its models on `roma device`, behind a gateway."""

import asyncio
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import aiohttp
import numpy as np
import pytest
import yaml
from sklearn.datasets import load_digits

from roma.serving import session
from roma.tensors.tfjson import Layout, encode_predict
from roma.tools.demo.ports import free_ports
from tests.protocol.gateway.conftest import GatewayHarness
from tests.support.planned import PlannedDeployment
from tests.support.program import Program

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples/variants.yaml"
NAMES = ("digits-large", "digits-small")
BATCHES = ("--batches", "1,2,4,8,16,32")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """What the example writes, and what it says of it."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "examples/variants.py", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    found = dict(re.findall(r"^(\S+): (0\.\d+)$", done.stdout, re.MULTILINE))
    assert tuple(found) == NAMES
    variants = yaml.safe_load(EXAMPLE.read_text())["models"]["digits"]["variants"]
    part = float(found["digits-small"]) / float(found["digits-large"])
    assert part == pytest.approx(variants["digits-small"]["accuracy"], abs=0.02)
    return folder


@pytest.fixture(scope="module")
def direct(saved):
    """The same models in this process."""
    loaded = {name: session.load(saved / name, 1) for name in NAMES}
    yield loaded
    for model in loaded.values():
        model.close()


@pytest.fixture
async def deployment(saved):
    harness = GatewayHarness()
    async with harness.stack:
        variants = yaml.safe_load(EXAMPLE.read_text())["models"]["digits"]["variants"]
        deployment = await PlannedDeployment(harness).open(
            models=("digits",), model={"variants": variants}, policy="fixed", serve=False
        )
        deployment.program = Program(saved, deployment.device_port, *BATCHES)
        harness.stack.callback(deployment.program.end)
        await deployment.program.start()
        await deployment.serve()
        await deployment.ready()
        device = deployment.executor.planned
        await harness.until(lambda: all(device.has(name) for name in NAMES))
        yield deployment


def pixels(first, count):
    return load_digits().data[first : first + count].astype(np.float32)


def body(rows):
    return json.dumps({"instances": [{"pixels": row.tolist()} for row in rows]}).encode()


def ask(deployment, rows, **headers):
    path = "/v1/models/digits:predict"
    return asyncio.ensure_future(deployment.harness.predict(body(rows), path=path, headers=headers))


async def test_what_waits_together_is_answered_as_by_direct_execution(deployment, direct):
    for variant in NAMES:
        for size in (1, 3, 7, 31, 32):
            deployment.tap.results.clear()
            headers, count = {"X-Roma-Variant": variant}, len(deployment.tap.infers)
            first = ask(deployment, pixels(0, 1), **headers)
            await deployment.harness.until(lambda n=count: len(deployment.tap.infers) == n + 1)
            rows = pixels(size, size)
            parts = [rows[: size // 2], rows[size // 2 :]] if size > 1 else [rows]
            asked = [ask(deployment, part, **headers) for part in parts]
            await deployment.waiting(size, "digits")
            deployment.tap.results.set()
            assert (await first)[0] == 200
            answers = [await one for one in asked]
            submitted = deployment.tap.infers[-1]
            # A SavedModel takes any batch: nothing fills it up.
            assert (submitted.action.model, submitted.action.batch) == (variant, size)
            assert np.array_equal(submitted.inputs["pixels"], rows)
            outputs = direct[variant].run("serving_default", submitted.inputs)
            start = 0
            for part, (status, found, told) in zip(parts, answers, strict=True):
                assert (status, told["X-Roma-Variant"]) == (200, variant)
                expected = {k: o[start : start + len(part)] for k, o in outputs.items()}
                assert json.loads(found) == json.loads(encode_predict(expected, Layout.ROW))
                start += len(part)


async def test_the_howto_between_three_processes(saved, tmp_path):
    """The file of the example, `roma device` and `roma dispatcher` as programs."""
    device_port, port, admin = free_ports(3)
    data = yaml.safe_load(EXAMPLE.read_text())
    data["workers"][0]["executables"][0]["actions"] = f"127.0.0.1:{device_port}"
    data["gateway"] = {"port": port, "admin_port": admin}
    data["models"]["digits"]["sla"] = {"response_time": 30, "deadline": 60}  # however busy it is
    file = tmp_path / "roma.yaml"
    file.write_text(yaml.safe_dump(data))
    program = Program(saved, device_port, *BATCHES)
    dispatcher = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "roma", "dispatcher", str(file)),
        cwd=ROOT,
        stderr=asyncio.subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        await program.start()
        async with aiohttp.ClientSession() as client:
            await up(client, f"{url}/readyz")

            async def predict(**headers):
                path = f"{url}/v1/models/digits:predict"
                async with client.post(path, data=body(pixels(0, 5)), headers=headers) as answer:
                    return answer.status, answer.headers.get("X-Roma-Variant"), await answer.json()

            for variant in NAMES:
                status, told, found = await predict(**{"X-Roma-Variant": variant})
                assert (status, told) == (200, variant)
                read = [row.index(max(row)) for row in found["predictions"]]
                assert sum(a == b for a, b in zip(read, range(5), strict=True)) >= 4
            assert (await predict(**{"X-Roma-Min-Accuracy": "0.99"}))[1] == "digits-large"
            assert (await predict(**{"X-Roma-Min-Accuracy": "1.1"}))[0] == 400
            async with client.get(f"http://127.0.0.1:{admin}/metrics") as answer:
                text = await answer.text()
            for variant, count in zip(NAMES, ("10.0", "5.0"), strict=True):
                labels = f'model="digits",variant="{variant}"'
                assert f"roma_variant_answers_total{{{labels}}} {count}" in text
    finally:
        program.end()
        dispatcher.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(dispatcher.wait(), 60) == 0


async def up(client, url):
    """Wait until somebody says that he is ready."""
    async with asyncio.timeout(60):
        while True:
            try:
                async with client.get(url) as answer:
                    if answer.status == 200:
                        return
            except aiohttp.ClientConnectionError:
                pass
            await asyncio.sleep(0.05)
