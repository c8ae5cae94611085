"""The text that Prometheus reads: names that need escaping come through, whatever the format."""

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as plain

from dispatcher.core import Dispatcher
from dispatcher.live.admin.metrics import collect
from dispatcher.schedulers.registry import CPU, GPU
from roma.domain.events import ExecutionEnded, ExecutorAdded, ExecutorReady, RequestArrived, Result
from roma.domain.model import Device, ExecutorSpec, ModelSpec, Request, Sla
from roma.telemetry import prometheus

ODD = 'a"b\\c\nd{e="f"} é ☂,'

FORMATS = {
    "text/plain; version=0.0.4": plain,
    "application/openmetrics-text; version=1.0.0": openmetrics,
}


@pytest.mark.parametrize("accept", FORMATS)
async def test_a_label_says_what_its_model_is_called(accept):
    core = Dispatcher([ModelSpec(ODD, Sla(0.3), 1.0)], gpu=GPU["roma"], cpu=CPU["round_robin"])
    core.handle(ExecutorAdded(ExecutorSpec(f"{ODD}@w", Device.CPU, (ODD,))), now=0.0)
    core.handle(ExecutorReady(f"{ODD}@w"), now=0.0)
    core.handle(RequestArrived(Request(1, ODD, 0.0, 1.0)), now=0.0)
    core.handle(ExecutionEnded(1, Result.OK), now=0.25)
    request = make_mocked_request("GET", "/metrics", headers={"Accept": accept})
    answer = await prometheus.response(request, collect(core, 0.25))
    assert answer.content_type == accept.partition(";")[0]
    families = list(FORMATS[accept](answer.body.decode()))
    samples = [s for family in families for s in family.samples]
    assert {s.labels["model"] for s in samples if "model" in s.labels} == {ODD}
    assert {s.labels["executable"] for s in samples if "executable" in s.labels} == {f"{ODD}@w"}
    buckets = {
        float(s.labels["le"]): s.value
        for s in samples
        if s.name == "roma_request_duration_seconds_bucket"
    }
    # Cumulative, in order, and the model's own promise among the round numbers.
    assert list(buckets) == sorted(buckets)
    assert (buckets[0.2], buckets[0.3], buckets[float("inf")]) == (0, 1, 1)
    (total,) = [s.value for s in samples if s.name == "roma_request_duration_seconds_sum"]
    assert total == 0.25
