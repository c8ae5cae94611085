"""The real server over real SavedModels, through its socket."""

import asyncio
import base64
import errno
import gzip
import io
import json
import math
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from roma.serving.errors import ListenError, ModelDirectoryError, ModelLoadError
from roma.serving.server import ModelServer, ServerSettings, run_model_server
from roma.serving.session import import_tensorflow, load
from tests.support.waiting import until


def available(version):
    return {
        "version": version,
        "state": "AVAILABLE",
        "status": {"error_code": "OK", "error_message": ""},
    }


async def test_answers_equal_direct_execution(serving, saved_models):
    import tensorflow as tf

    direct = tf.saved_model.load(str(saved_models / "linear/1")).signatures["serving_default"]
    rows = np.random.default_rng(3).standard_normal((5, 4)).astype(np.float32)
    expected = direct(x=tf.constant(rows))["y"].numpy()
    async with serving("linear") as client:
        for layout, key in (("instances", "predictions"), ("inputs", "outputs")):
            status, answer = await client.post("/v1/models/linear:predict", {layout: rows.tolist()})
            assert status == 200
            np.testing.assert_allclose(np.array(answer[key]), expected, rtol=1e-5, atol=1e-6)


async def test_status_of_one_and_of_many_models(serving):
    async with serving("half", "linear") as client:
        assert await client.get("/v1/models/half") == (
            200,
            {"model_version_status": [available("3")]},
        )
        assert await client.get("/v1/models/linear/versions/1") == (
            200,
            {"model_version_status": [available("1")]},
        )
        answer = (await client.post("/v1/models/half:predict", {"instances": [1, 2]}))[1]
        assert answer == {"predictions": [3.5, 4.0]}
        answer = (await client.post("/v1/models/linear:predict", {"inputs": [[0] * 4]}))[1]
        assert answer == {"outputs": [[0, 0, 0]]}


async def test_versions_and_labels(serving):
    async with serving("half", labels={"half": {"stable": 1, "new": 3}}) as client:
        for path, offset in (
            ("half", 3.0),
            ("half/versions/3", 3.0),
            ("half/versions/1", 1.0),
            ("half/labels/stable", 1.0),
            ("half/labels/new", 3.0),
        ):
            answer = await client.post(f"/v1/models/{path}:predict", {"instances": [0]})
            assert answer == (200, {"predictions": [offset]})
        status = (await client.get("/v1/models/half"))[1]
        assert status == {"model_version_status": [available("3"), available("1")]}
        status = (await client.get("/v1/models/half/labels/stable"))[1]
        assert status == {"model_version_status": [available("1")]}
        metadata = (await client.get("/v1/models/half/labels/stable/metadata"))[1]
        assert metadata["model_spec"] == {"name": "half", "signature_name": "", "version": "1"}


async def test_metadata_is_tensorflow_servings(serving):
    async with serving("two") as client:
        status, answer = await client.get("/v1/models/two/metadata")
    assert status == 200
    assert answer["model_spec"] == {"name": "two", "signature_name": "", "version": "1"}
    signatures = answer["metadata"]["signature_def"]["signature_def"]
    assert signatures.keys() == {"__saved_model_init_op", "serving_default", "total"}
    default = signatures["serving_default"]
    assert default["method_name"] == "tensorflow/serving/predict"
    assert default["inputs"]["a"] == {
        "dtype": "DT_FLOAT",
        "tensor_shape": {
            "dim": [{"size": "-1", "name": ""}, {"size": "2", "name": ""}],
            "unknown_rank": False,
        },
        "name": "serving_default_a:0",
    }
    assert default["outputs"]["twice"]["dtype"] == "DT_INT64"


async def test_several_inputs_outputs_and_signatures(serving):
    async with serving("two") as client:
        path = "/v1/models/two:predict"
        rows = [{"a": [1, 2], "n": 3}, {"a": [4, 5], "n": 6}]
        assert await client.post(path, {"instances": rows}) == (
            200,
            {"predictions": [{"sum": [4, 5], "twice": 6}, {"sum": [10, 11], "twice": 12}]},
        )
        assert await client.post(path, {"inputs": {"a": [[1, 2]], "n": [3]}}) == (
            200,
            {"outputs": {"sum": [[4, 5]], "twice": [6]}},
        )
        total = {"signature_name": "total", "inputs": [1, 2, 3.5]}
        assert await client.post(path, total) == (200, {"outputs": 6.5})
        # A scalar has no rows to answer with.
        status, answer = await client.post(path, {"signature_name": "total", "instances": [1]})
        assert (status, answer["error"]) == (
            400,
            "Tensor name: total has no shape information ",
        )


async def test_not_finite_numbers_in_and_out(serving):
    async with serving("log") as client:
        body = b'{"instances": [1, 0, -1, NaN, Infinity]}'
        status, answer = await client.post("/v1/models/log:predict", body)
    assert status == 200
    zero, minus, *nans, infinity = answer["predictions"]
    assert (zero, minus, infinity) == (0, -math.inf, math.inf)
    assert all(math.isnan(value) for value in nans)


async def test_text_and_bytes_in_and_out(serving):
    raw = bytes(range(256)) + b"\0\0"
    async with serving("text", "echo") as client:
        status, answer = await client.post("/v1/models/text:predict", {"instances": ["abc", "é"]})
        assert status == 200
        first = {
            "length": 3,
            "same": "abc",
            "raw_bytes": {"b64": base64.b64encode(b"YWJ").decode()},
        }
        assert answer["predictions"][0] == first
        assert answer["predictions"][1]["same"] == "é"
        coded = {"b64": base64.b64encode(raw).decode()}
        for body, expected in (
            ({"instances": [coded]}, {"predictions": [coded]}),
            ({"inputs": coded}, {"outputs": coded}),
            ({"inputs": [[coded]]}, {"outputs": [[coded]]}),
        ):
            assert await client.post("/v1/models/echo:predict", body) == (200, expected)


async def test_text_with_more_dimensions_than_tensorflow_reads_is_refused(serving):
    def nested(rank):
        return json.loads("[" * rank + '"a"' + "]" * rank)

    async with serving("echo") as client:
        assert (await client.post("/v1/models/echo:predict", {"inputs": nested(32)}))[0] == 200
        refused = 'Input "s" has 33 dimensions, expected at most 32 of a tensor of strings'
        answer = await client.post("/v1/models/echo:predict", {"inputs": nested(33)})
        assert answer == (400, {"error": refused})
        text = {"name": "s", "datatype": "BYTES", "shape": [1] * 33, "data": ["a"]}
        answer = await client.post("/v2/models/echo/infer", {"inputs": [text]})
        assert answer == (400, {"error": refused})


async def test_classify_and_regress(serving):
    async with serving("examples", "half") as client:
        two = {"context": {"shared": 0.25}, "examples": [{"x": 0.5}, {"x": [0.25]}]}
        assert await client.post("/v1/models/examples:classify", two) == (
            200,
            {"results": [[["low", 0.25], ["high", 0.75]], [["low", 0.5], ["high", 0.5]]]},
        )
        one = {"signature_name": "scores_only", "examples": [{"x": 0.5}]}
        assert await client.post("/v1/models/examples:classify", one) == (
            200,
            {"results": [[["", 0.5], ["", 0.5]]]},
        )
        half = {"signature_name": "half", "examples": [{"x": 3.0}, {"x": 5.0}]}
        assert await client.post("/v1/models/examples:regress", half) == (
            200,
            {"results": [1.5, 2.5]},
        )
        body = {"examples": [{"x": 3.0}]}
        for path, text in (
            ("half:classify", "No classification inputs found in SignatureDef: serving_default"),
            ("half:regress", "No regression inputs found in SignatureDef: serving_default"),
            ("examples:regress", "Expected one output Tensor."),
        ):
            status, answer = await client.post(f"/v1/models/{path}", body)
            assert status == 400
            assert text in answer["error"]
        body = {"context": {"text": "a" * 2**20}, "examples": [{"x": 3.0}] * 300}
        status, answer = await client.post("/v1/models/examples:classify", body)
        assert status == 400
        assert "for 300 examples: each is computed with a copy of it" in answer["error"]


async def test_errors_have_tensorflow_servings_status_and_text(serving):
    good = {"instances": [1]}
    table = [
        ("foo:predict", good, 404, "Servable not found for request: Latest(foo)"),
        ("half/versions/9:predict", good, 404, "Servable not found for request: Specific(half, 9)"),
        # The older version is there, but only the latest is served.
        ("half/versions/1:predict", good, 404, "Servable not found for request: Specific(half, 1)"),
        ("half/labels/x:predict", good, 400, "Unrecognized servable version label: x"),
        ("foo:predict", b"{", 400, "JSON Parse error: Missing a name for object member."),
        ("half:predict", b"", 400, "JSON Parse error: The document is empty"),
        ("half:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
        ("half:predict", {"instances": ["a"]}, 400, "is not of expected type: float (input"),
        (
            "half:predict",
            good | {"signature_name": "no"},
            400,
            'Serving signature name: "no" not found in signature def',
        ),
        (
            "half:predict",
            good | {"signature_name": "__saved_model_init_op"},
            400,
            "Failed to get input map for signature: __saved_model_init_op",
        ),
        ("half:train", good, 400, "Malformed request: POST /v1/models/half:train"),
        # TensorFlow's own refusal comes out with its code and words.
        (
            "two:predict",
            {"inputs": {"a": [[1, 2], [3, 4]], "n": [1, 2, 3]}},
            400,
            "Incompatible shapes: [3,1] vs. [2,2]",
        ),
        # They may quote bytes of an input that are no text.
        (
            "examples:predict",
            {"instances": [{"b64": "/w=="}]},
            400,
            "Could not parse example input, value: '\N{REPLACEMENT CHARACTER}'",
        ),
    ]
    async with serving("half", "two", "examples") as client:
        for path, body, code, text in table:
            status, answer = await client.post(f"/v1/models/{path}", body)
            assert (status, answer.keys()) == (code, {"error"}), path
            assert text in answer["error"]
        for path, code, text in (
            ("/v1/models/foo", 404, "Could not find any versions of model foo"),
            ("/v1/models/half/versions/9", 404, "Could not find version 9 of model half"),
            ("/v1/models/foo/metadata", 404, "Servable not found for request: Latest(foo)"),
            ("/v1/models/half:predict", 400, "Malformed request: GET /v1/models/half:predict"),
            ("/other", 404, "Not Found"),
        ):
            assert await client.get(path) == (code, {"error": text})


async def test_an_oversize_body_is_413_and_the_server_lives_on(serving):
    async with serving("half", max_body_bytes=2_000_000) as client:
        path = "/v1/models/half:predict"
        refusal = (413, {"error": "Request body is larger than 2000000 bytes"})
        assert await client.post(path, b"[" * 2_000_001) == refusal

        async def pieces():
            for _ in range(3):
                yield b"[" * 1_000_000

        async with client.session.post(client.url + path, data=pieces()) as answer:
            assert (answer.status, await answer.json()) == refusal
        # A small body that would become a large one.
        packed, headers = gzip.compress(b"[" * 2_000_001), {"Content-Encoding": "gzip"}
        async with client.session.post(client.url + path, data=packed, headers=headers) as answer:
            assert (answer.status, await answer.json()) == refusal
        # aiohttp alone would refuse more than 1 MiB.
        body = io.BytesIO(json.dumps({"instances": [1.0] * 300_000}).encode())
        async with client.session.post(client.url + path, data=body, expect100=True) as answer:
            assert answer.status == 200
            assert len((await answer.json())["predictions"]) == 300_000


async def test_gzip_bodies(serving):
    body = gzip.compress(b'{"instances": [1]}')
    bad_header = "Error -3 while decompressing data: incorrect header check"
    async with serving("half") as client:
        url, headers = client.url + "/v1/models/half:predict", {"Content-Encoding": "gzip"}
        for data, expected in (
            (body, (200, {"predictions": [3.5]})),
            (body[:-9], (400, {"error": "Malformed gzip body: it ends too early"})),
            (b"no gzip", (400, {"error": f"Malformed gzip body: {bad_header}"})),
        ):
            async with client.session.post(url, data=data, headers=headers) as answer:
                assert (answer.status, await answer.json()) == expected


async def test_a_model_is_loading_until_it_is_warm(serving, saved_models, tmp_path):
    extra = saved_models / "slow_start/1/assets.extra"
    extra.mkdir(exist_ok=True)
    (extra / "roma_warmup.json").write_text(json.dumps({"inputs": str(tmp_path)}))
    try:
        async with serving("slow_start", "half", loaded=False) as client:
            await until((tmp_path / "begun").exists)  # loaded, and inside its warm-up
            status = (await client.get("/v1/models/slow_start"))[1]["model_version_status"]
            assert [s["state"] for s in status] == ["LOADING"]
            status = (await client.get("/v1/models/half"))[1]["model_version_status"]
            assert [s["state"] for s in status] == ["START"]
            assert await client.post("/v1/models/slow_start:predict", {"inputs": "x"}) == (
                404,
                {"error": "Servable not found for request: Latest(slow_start)"},
            )
            (tmp_path / "open").touch()
            await client.server.loading
            status = (await client.get("/v1/models/slow_start"))[1]
            assert status == {"model_version_status": [available("1")]}
    finally:
        shutil.rmtree(extra)


async def test_a_bad_warm_up_request_ends_the_model(serving, saved_models, tmp_path):
    shutil.copytree(saved_models / "echo", tmp_path / "echo")
    (tmp_path / "echo/1/assets.extra").mkdir()
    (tmp_path / "echo/1/assets.extra/roma_warmup.json").write_text('{"instances": [1]}')
    server = ModelServer(ServerSettings({"echo": tmp_path / "echo"}, port=0))
    await server.start()
    with pytest.raises(ModelLoadError, match=r"roma_warmup\.json: Failed to process element: 0"):
        await server.loading
    assert not await server.stop()


async def test_a_model_that_cannot_be_loaded_ends_alone(serving):
    async with serving("broken", "half") as client:
        (status,) = (await client.get("/v1/models/broken"))[1]["model_version_status"]
        assert (status["version"], status["state"]) == ("1", "END")
        assert status["status"]["error_code"] != "OK"
        assert status["status"]["error_message"]
        assert (await client.post("/v1/models/broken:predict", {"instances": [1]}))[0] == 404
        assert (await client.post("/v1/models/half:predict", {"instances": [1]}))[0] == 200


def test_a_signature_that_cannot_be_run_leaves_the_others(tmp_path):
    v1 = import_tensorflow().compat.v1
    info, signature = v1.saved_model.build_tensor_info, v1.saved_model.build_signature_def
    with v1.Graph().as_default(), v1.Session() as session:
        x, many = v1.placeholder("float", [None]), v1.sparse_placeholder("float", [None, 3])
        signatures = {
            "serving_default": signature({"x": info(x)}, {"y": info(2 * x)}),
            "sparse": signature({"s": info(many)}, {"y": info(v1.sparse_reduce_sum(many))}),
            "silent": signature({"x": info(x)}, {}),
        }
        builder = v1.saved_model.Builder(str(tmp_path / "1"))
        builder.add_meta_graph_and_variables(session, ["serve"], signatures)
        builder.save()
    model = load(tmp_path / "1", 1)
    assert model.metadata.keys() == {"serving_default", "sparse", "silent"}
    assert model.signatures.keys() == {"serving_default"}
    assert model.run("serving_default", {"x": np.ones(1, np.float32)}) == {"y": [2]}


async def test_what_can_be_known_at_the_start_is_said_at_the_start(saved_models):
    def settings(name, **options):
        return ServerSettings({name: saved_models / name}, port=0, **options)

    with pytest.raises(ModelDirectoryError, match="No such file"):
        ModelServer(settings("none"))
    with pytest.raises(ModelDirectoryError, match="holds no version"):
        ModelServer(settings("empty"))
    with pytest.raises(ModelDirectoryError, match="labels of other"):
        ModelServer(settings("half", labels={"other": {"stable": 1}}))
    with pytest.raises(ModelLoadError, match="broken version 1"):
        await run_model_server(settings("broken"))


async def test_a_taken_port_is_one_clear_line(serving, saved_models):
    async with serving("half") as client:
        port = int(client.url.rpartition(":")[2])
        second = ModelServer(ServerSettings({"half": saved_models / "half"}, port=port))
        with pytest.raises(ListenError, match=f"cannot listen on 127.0.0.1:{port}: .*in use"):
            await second.start()


@pytest.mark.parametrize("host", ["a..b", "x" * 64])
async def test_a_host_that_no_resolver_takes_is_one_clear_line(saved_models, host):
    server = ModelServer(ServerSettings({"half": saved_models / "half"}, host=host, port=0))
    with pytest.raises(ListenError, match=rf"cannot listen on {host}:0: .*label .*too long"):
        await server.start()


async def test_an_ipv6_address_that_is_not_here_is_named_as_in_a_url(saved_models):
    server = ModelServer(
        ServerSettings({"half": saved_models / "half"}, host="2001:db8::1", port=0)
    )
    with pytest.raises(ListenError, match=r"cannot listen on \[2001:db8::1\]:0: "):
        await server.start()


async def test_status_is_answered_while_every_worker_computes(serving, tmp_path):
    folders = [tmp_path / name for name in "abc"]
    for folder in folders:
        folder.mkdir()
    async with serving("gate") as client:
        calls = [
            asyncio.ensure_future(client.post("/v1/models/gate:predict", {"inputs": str(folder)}))
            for folder in folders[:2]
        ]
        for folder in folders[:2]:
            await until((folder / "begun").exists)
        third = asyncio.ensure_future(
            client.post("/v1/models/gate:predict", {"inputs": str(folders[2])})
        )
        workers = client.server._workers
        await until(lambda: len(workers) == 3)
        assert (await client.get("/v1/models/gate"))[0] == 200
        # Two workers, both busy: the third waits, and leaves the queue with its client.
        third.cancel()
        await until(lambda: len(workers) == 2)
        for folder in folders:
            (folder / "open").touch()
        for call in calls:
            assert await call == (200, {"outputs": True})
    assert not (folders[2] / "begun").exists()


async def test_a_request_in_flight_is_answered_before_the_server_stops(saved_models, tmp_path):
    settings = ServerSettings({"gate": saved_models / "gate"}, port=0)
    server = ModelServer(settings)
    await server.start()
    await server.loading
    async with aiohttp.ClientSession() as session:
        url = f"{server.url}/v1/models/gate:predict"
        call = asyncio.ensure_future(session.post(url, json={"inputs": str(tmp_path)}))
        await until((tmp_path / "begun").exists)
        stopping = asyncio.ensure_future(server.stop())

        async def is_refused():
            try:
                async with session.get(url):
                    return False
            except aiohttp.ClientConnectorError:
                return True

        async with asyncio.timeout(60):
            while not await is_refused():
                await asyncio.sleep(0.005)
        assert not stopping.done()
        (tmp_path / "open").touch()
        async with await call as answer:
            assert (answer.status, await answer.json()) == (200, {"outputs": True})
        assert await stopping is False


@pytest.mark.parametrize("stuck", [False, True], ids=["idle", "computing"])
async def test_sigterm_ends_the_process_with_status_0(saved_models, tmp_path, stuck):
    program = (
        "import asyncio, pathlib, resource, sys\n"
        "from roma.serving.server import ServerSettings, run_model_server\n"
        "_, most = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))\n"
        "models = {'gate': pathlib.Path(sys.argv[1])}\n"
        "asyncio.run(run_model_server(ServerSettings(models, port=0, drain_limit=0.2)))\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(saved_models / "gate"), stderr=subprocess.PIPE
    )
    try:
        line = await _ready_line(process)
        assert line.endswith(": gate/1\n")
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard, "it has a descriptor for each connection"
        url = line.split()[4].rstrip(":")
        async with aiohttp.ClientSession() as session:
            if stuck:
                call = session.post(f"{url}/v1/models/gate:predict", json={"inputs": str(tmp_path)})
                call = asyncio.ensure_future(call)
                await until((tmp_path / "begun").exists)
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            if stuck:
                with pytest.raises(aiohttp.ClientError):
                    await call
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _ready_line(process):
    async for line in process.stderr:
        if line.startswith(b"roma serve-model: ready on http://127.0.0.1:"):
            return line.decode()
    raise AssertionError("ended without being ready")


async def is_ready(running, capfd):
    """Wait until a server in this process is ready; return what it has written."""
    said = ""

    def has_said_so():
        nonlocal said
        said += capfd.readouterr().err
        return running.done() or "ready on" in said

    await until(has_said_so)
    return said


async def test_sigint_in_this_process_stops_it_too(saved_models, capfd):
    settings = ServerSettings({"half": saved_models / "half"}, port=0)
    running = asyncio.ensure_future(run_model_server(settings))
    said = await is_ready(running, capfd)
    os.kill(os.getpid(), signal.SIGINT)
    await running
    assert said.count("\n") == said.count("ready on http://127.0.0.1:") == 1


async def test_a_server_without_descriptors_says_so_in_a_line_and_recovers(
    saved_models, path, monkeypatch, caplog, capfd
):
    settings = ServerSettings({"half": saved_models / "half"}, socket=path)
    running, loop = asyncio.ensure_future(run_model_server(settings)), asyncio.get_running_loop()
    before = loop.get_exception_handler()
    await is_ready(running, capfd)
    with monkeypatch.context() as exhausted:

        def accept(_):
            raise OSError(errno.EMFILE, "Too many open files")

        exhausted.setattr(asyncio.constants, "ACCEPT_RETRY_DELAY", 0.01)
        exhausted.setattr(socket.socket, "accept", accept)
        answer = asyncio.ensure_future(_status_by(path))
        await until(lambda: caplog.records)
    assert await answer == 200
    os.kill(os.getpid(), signal.SIGINT)
    await running
    loop.set_exception_handler(before)
    said = "connections cannot be accepted (too many open files): trying again every second"
    assert [record.message for record in caplog.records] == [f"{said} (ulimit -n)"]


@pytest.fixture
def path():
    """A Unix socket's path: short, for the kernel takes 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="roma-") as directory:
        yield Path(directory, "m.sock")


async def _status_by(path):
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://localhost/v1/models/half") as response,
    ):
        return response.status


async def test_a_unix_socket_takes_the_place_of_a_port_and_goes_with_its_server(saved_models, path):
    server = ModelServer(ServerSettings({"half": saved_models / "half"}, socket=path))
    assert server.url == f"unix://{path}"
    await server.start()
    assert await _status_by(path) == 200
    await server.loading
    assert not await server.stop()
    assert not path.exists()


async def test_a_socket_of_the_dead_is_replaced_and_one_of_the_living_is_not(saved_models, path):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    settings = ServerSettings({"half": saved_models / "half"}, socket=path)
    first, second = ModelServer(settings), ModelServer(settings)
    await first.start()
    with pytest.raises(ListenError, match=f"cannot listen on {path}: address already in use"):
        await second.start()
    assert await _status_by(path) == 200
    # A successor's socket stays.
    path.rename(path.with_suffix(".old"))
    third = ModelServer(settings)
    await third.start()
    await first.stop()
    assert await _status_by(path) == 200
    await third.stop()


async def test_a_socket_without_a_place_is_refused(saved_models, tmp_path):
    models = {"half": saved_models / "half"}
    server = ModelServer(ServerSettings(models, socket=tmp_path / "no" / "m.sock"))
    with pytest.raises(ListenError, match=r"m\.sock: no such file or directory"):
        await server.start()
    long = tmp_path / ("x" * 108)
    with pytest.raises(ListenError, match=f"cannot listen on {long}: AF_UNIX path too long"):
        await ModelServer(ServerSettings(models, socket=long)).start()
