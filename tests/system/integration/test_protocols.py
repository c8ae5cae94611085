"""What clients of the model server see through the gateway: the same tests, with it in between.

Real clients, real SavedModels, real sockets; answers are compared with direct execution.
"""

# ruff: noqa: F401, F811 - tests and fixtures are taken over by name

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import aiohttp
import pytest

from dispatcher.live import app
from roma.config import schema
from roma.serving.server import ModelServer, ServerSettings
from roma.tools.demo.ports import free_ports
from tests.tensorflow.serving.conftest import Client, saved_models
from tests.tensorflow.serving.test_serving_oip_clients import (
    kind,
    test_answers_equal_direct_execution,
    test_curl,
    test_every_type_and_rank_comes_back,
    test_several_inputs_outputs_versions_and_ids,
    test_the_blocking_clients,
    test_typed_contents_are_answered_with_typed_contents,
    triton,
)
from tests.tensorflow.serving.test_serving_predict_grpc import (
    stubs,
    test_a_signature_without_inputs,
    test_an_output_filter_chooses_what_is_answered,
    test_classify_and_regress,
    test_every_type_and_rank_comes_back_bit_by_bit,
    test_metadata_has_the_models_own_signatures,
    test_missing_values_repeat_the_last_one,
    test_multi_inference_equals_direct_execution,
    test_multi_inference_names_what_is_wrong,
    test_predict_equals_direct_execution,
    test_the_answer_names_model_signature_and_version,
)
from tests.tensorflow.serving.test_serving_server import (
    test_answers_equal_direct_execution as test_rest_answers_equal_direct_execution,
)
from tests.tensorflow.serving.test_serving_server import (
    test_classify_and_regress as test_rest_classify_and_regress,
)
from tests.tensorflow.serving.test_serving_server import (
    test_gzip_bodies,
    test_metadata_is_tensorflow_servings,
    test_not_finite_numbers_in_and_out,
    test_several_inputs_outputs_and_signatures,
    test_text_and_bytes_in_and_out,
    test_versions_and_labels,
)

MODEL = "  {name}: {{sla: {{response_time: 30}}, cpu: {{max: 2, initial: 2}}}}\n"
CONFIG = """
models:
{models}
workers:
  - backend: static
    cores: 64
    executables: [{{url: "{url}", grpc: "{target}", device: gpu}}]  # one of all models
gateway: {{port: {port}, admin_port: {admin}, grpc_port: {grpc}}}
"""


@pytest.fixture
def serving(saved_models):
    """Start a model server and a gateway in front: `async with serving("half") as client`."""

    @asynccontextmanager
    async def start(*names, **options):
        paths = {name: saved_models / name for name in names}
        options = {"grpc_port": 0, **options}
        server = ModelServer(ServerSettings(paths, port=0, inter_op=2, **options))
        await server.start()
        try:
            await server.loading
            async with through(server, names) as client:
                yield client
        finally:
            assert not await server.stop()

    return start


@asynccontextmanager
async def through(server, names):
    port, admin, grpc = free_ports(3)
    text = CONFIG.format(
        models="".join(MODEL.format(name=name) for name in names),
        url=server.url,
        target=server.grpc_address,
        port=port,
        admin=admin,
        grpc=grpc,
    )
    async with app.running(schema.parse(text)) as running, aiohttp.ClientSession() as session:
        core = running.service.driver.core
        async with asyncio.timeout(30):
            while not all(e.live for e in core.executors):
                await asyncio.sleep(0.01)
        client = Client(session, f"http://127.0.0.1:{port}")
        client.server = SimpleNamespace(grpc_address=f"127.0.0.1:{grpc}")
        yield client
        answered = sum(q.completed.total() for q in core.queues.values())
        assert answered or not core.live  # and what came was seen by the dispatcher
