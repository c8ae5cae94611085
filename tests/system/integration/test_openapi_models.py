"""Answers of real models, through a real gateway, have the shape that the OpenAPI document gives them.

`tests/protocol/gateway/test_openapi_fuzz.py` asks a stand-in, whose answers mean nothing.
"""

import asyncio

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.protocol.gateway.test_openapi_fuzz import OPERATIONS
from tests.support.examples import examples
from tests.system.integration.test_protocols import serving
from tests.tensorflow.serving.conftest import saved_models

__all__ = ["saved_models", "serving"]

CHECKS = [content_type_conformance, response_schema_conformance, status_code_conformance]

EXAMPLES = st.lists(
    st.fixed_dictionaries({"x": st.floats(-10, 10, width=32)}), min_size=1, max_size=3
)
NUMBERS = st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=3)


def infer(numbers):
    tensor = {"name": "x", "shape": [len(numbers)], "datatype": "FP32", "data": numbers}
    return {"inputs": [tensor]}


VALID = {
    "POST /v1/models/{model}:predict": (
        "half",
        st.one_of(
            NUMBERS.map(lambda n: {"instances": n}), NUMBERS.map(lambda n: {"inputs": {"x": n}})
        ),
    ),
    "POST /v1/models/{model}:classify": (
        "examples",
        EXAMPLES.flatmap(
            lambda e: st.sampled_from([{}, {"signature_name": "scores_only"}]).map(
                lambda more: {"examples": e, **more}
            )
        ),
    ),
    "POST /v1/models/{model}:regress": (
        "examples",
        EXAMPLES.map(lambda e: {"examples": e, "signature_name": "half"}),
    ),
    "POST /v2/models/{model}/infer": ("half", NUMBERS.map(infer)),
    "GET /v1/models/{model}": ("examples", None),
    "GET /v1/models/{model}/metadata": ("examples", None),
    "GET /v2/models/{model}": ("half", None),
    "GET /v2/models/{model}/ready": ("half", None),
}


@pytest.mark.parametrize("name", VALID)
async def test_an_answer_has_the_shape_that_the_document_gives_it(serving, name):
    operation, (model, bodies) = OPERATIONS[name], VALID[name]

    def check(url):
        @seed(1)
        @settings(max_examples=examples(20), database=None, suppress_health_check=list(HealthCheck))
        @given(st.none() if bodies is None else bodies)
        def ask(body):
            more = {} if body is None else {"body": body, "media_type": "application/json"}
            case = operation.Case(path_parameters={"model": model}, **more)
            answer = case.call(base_url=url, timeout=30)
            assert answer.status_code == 200, answer.text
            case.validate_response(answer, checks=CHECKS)

        ask()

    async with serving("half", "examples") as client:
        await client.post("/v1/models/half:predict", {"instances": [1]})  # what `serving` waits for
        await asyncio.to_thread(check, client.url)


@pytest.mark.parametrize("mode", schemathesis.GenerationMode)
@pytest.mark.parametrize("name", VALID)
async def test_whatever_is_asked_the_answer_has_such_a_shape(serving, name, mode):
    operation, (model, _) = OPERATIONS[name], VALID[name]

    def check(url):
        @seed(1)
        @settings(max_examples=examples(10), database=None, suppress_health_check=list(HealthCheck))
        @given(operation.as_strategy(generation_mode=mode))
        def ask(case):
            case.path_parameters["model"] = model
            try:
                answer = case.call(base_url=url, timeout=30)
            except (requests.exceptions.InvalidHeader, UnicodeError):
                return  # no client sends this
            case.validate_response(answer, checks=CHECKS)

        ask()

    async with serving("half", "examples") as client:
        await client.post("/v1/models/half:predict", {"instances": [1]})
        await asyncio.to_thread(check, client.url)
