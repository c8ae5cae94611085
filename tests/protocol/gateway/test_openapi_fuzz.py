"""Requests made from the OpenAPI document, valid ones and others: it says what really happens.

The document is what clients generate code from. So each status must be in it, each error must have
its shape, and no request, however odd, may be answered by an error of the gateway's own making.
"""

import asyncio
import json
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

import dispatcher.live
from tests.support.deployment import Deployment
from tests.support.examples import examples

DOCUMENT = Path(dispatcher.live.__file__).with_name("openapi.json")
OPERATIONS = {
    f"{found.ok().method.upper()} {found.ok().path}": found.ok()
    for found in schemathesis.openapi.from_dict(
        json.loads(DOCUMENT.read_text())
    ).get_all_operations()
}
EXECUTABLES = (502, 503, 504)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """A real gateway with a model `m`."""
    deployment = Deployment(tmp_path_factory.mktemp("openapi"), cores=8)
    with asyncio.Runner() as runner:
        runner.run(deployment.__aenter__())
        try:
            yield deployment.url
            assert not deployment.gateway.ended
            assert "Traceback" not in deployment.gateway.log.read_text()
        finally:
            runner.run(deployment.__aexit__())


@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)
def test_what_happens_is_what_the_document_says(url, operation, mode):
    cases, known = (
        operation.as_strategy(generation_mode=mode),
        operation.definition.raw["responses"],
    )

    @seed(1)
    @settings(max_examples=examples(10), database=None, suppress_health_check=list(HealthCheck))
    @given(cases, st.booleans())
    def check(case, ours):
        if ours and "model" in case.path_parameters:
            case.path_parameters["model"] = "m"
        try:
            answer = case.call(base_url=url, timeout=30)
        except (requests.exceptions.InvalidHeader, UnicodeError):
            return  # no client sends this
        said = f"{case.as_curl_command()}: {answer.status_code} {answer.text[:200]}"
        assert str(answer.status_code) in known, said
        assert answer.status_code < 500 or answer.status_code in EXECUTABLES, said
        if answer.status_code >= 400:
            assert isinstance(json.loads(answer.content)["error"], str), said

    check()
