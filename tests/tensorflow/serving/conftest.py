"""Small real SavedModels, built once, and a server over them in this process."""

import io
import json
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from roma.serving.server import ModelServer, ServerSettings


@pytest.fixture(scope="session")
def saved_models(tmp_path_factory) -> Path:  # noqa: C901 - each model is one function
    """A folder of models; each has a base folder of versions."""
    from roma.serving.session import import_tensorflow

    tf = import_tensorflow()
    root = tmp_path_factory.mktemp("models")

    def spec(name, shape, dtype=tf.float32):
        return tf.TensorSpec(shape, dtype, name=name)

    def save(path, functions, variables=()):
        module = tf.Module()
        module.held = list(variables)
        signatures = {}
        for name, (function, specs) in functions.items():
            traced = tf.function(function)
            setattr(module, name, traced)
            signatures[name] = traced.get_concrete_function(*specs)
        tf.saved_model.save(module, str(root / path), signatures=signatures)

    def serve(function, *specs):
        return {"serving_default": (function, specs)}

    def plus(offset):
        return lambda x: {"y": x * 0.5 + offset}

    for version in (1, 2, 3):
        save(f"half/{version}", serve(plus(float(version)), spec("x", [None])))

    weights = tf.Variable(tf.random.stateless_normal([4, 3], seed=(1, 2)), name="weights")
    save(
        "linear/1", serve(lambda x: {"y": tf.nn.tanh(x @ weights)}, spec("x", [None, 4])), [weights]
    )

    save(
        "two/1",
        serve(
            lambda a, n: {"sum": a + tf.cast(n, tf.float32)[:, None], "twice": 2 * n},
            spec("a", [None, 2]),
            spec("n", [None], tf.int64),
        )
        | {"total": (lambda x: {"total": tf.reduce_sum(x)}, (spec("x", [None]),))},
    )
    save("count/1", serve(lambda: {"y": tf.constant([1, 2, 3])}))
    every = ["float16", "bfloat16", "float32", "float64", "bool", "string"]
    every += [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
    same = {
        dtype: (lambda x: {"y": tf.identity(x)}, (spec("x", None, tf.as_dtype(dtype)),))
        for dtype in every
    }
    save("same/1", same)
    save("log/1", serve(lambda x: {"y": tf.math.log(x)}, spec("x", [None])))
    save(
        "text/1",
        serve(
            lambda s: {
                "length": tf.strings.length(s),
                "same": s,
                "raw_bytes": tf.strings.substr(tf.io.encode_base64(s), 0, 3),
            },
            spec("s", [None], tf.string),
        ),
    )
    save("echo/1", serve(lambda s: {"same_bytes": s}, spec("s", None, tf.string)))

    def parse(inputs):
        features = {
            "x": tf.io.FixedLenFeature([], tf.float32),
            "shared": tf.io.FixedLenFeature([], tf.float32, default_value=0.0),
        }
        parsed = tf.io.parse_example(inputs, features)
        return parsed["x"] + parsed["shared"]

    def classify(inputs):
        x = parse(inputs)
        names = tf.tile([["low", "high"]], [tf.size(x), 1])
        return {"classes": names, "scores": tf.stack([1 - x, x], axis=1)}

    strings = spec("inputs", [None], tf.string)
    save(
        "examples/1",
        {
            "serving_default": (classify, (strings,)),
            "scores_only": (lambda inputs: {"scores": classify(inputs)["scores"]}, (strings,)),
            "half": (lambda inputs: {"outputs": parse(inputs)[:, None] / 2}, (strings,)),
        },
    )

    def gate(folder):
        # Says that it has begun, then computes until the file `open` is there.
        begun = tf.io.write_file(folder + "/begun", "")
        with tf.control_dependencies([begun]):
            turns = tf.while_loop(
                lambda _: tf.size(tf.io.matching_files(folder + "/open")) < 1,
                lambda turns: (turns + 1,),
                (tf.constant(0, tf.int64),),
            )[0]
        return {"waited": turns >= 0}

    for base in ("gate", "slow_start"):
        save(f"{base}/1", serve(gate, spec("folder", [], tf.string)))

    (root / "broken/1").mkdir(parents=True)
    (root / "broken/1/saved_model.pb").write_bytes(b"no model")
    (root / "empty").mkdir()
    return root


class Client:
    """Calls of one server; `predict` and `get` return the status and the parsed answer."""

    def __init__(self, session: aiohttp.ClientSession, url: str):
        self.session, self.url = session, url

    async def get(self, path):
        async with self.session.get(self.url + path) as answer:
            return await self._read(answer)

    async def post(self, path, body):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=io.BytesIO(data)) as answer:
            return await self._read(answer)

    async def _read(self, answer):
        assert answer.headers["Content-Type"] == "application/json"
        return answer.status, json.loads(await answer.read())


@pytest.fixture
def serving(saved_models):
    """Start a server over some of the models: `async with serving("half") as client`."""

    @asynccontextmanager
    async def start(*names, loaded=True, **options):
        paths = {name: saved_models / name for name in names}
        server = ModelServer(ServerSettings(paths, port=0, inter_op=2, **options))
        await server.start()
        try:
            if loaded:
                await server.loading
            async with aiohttp.ClientSession() as session:
                client = Client(session, server.url)
                client.server = server
                yield client
        finally:
            assert not await server.stop()

    return start
