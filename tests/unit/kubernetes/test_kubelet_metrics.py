"""The kubelet's metrics, reduced to the use of our containers."""

from supervisor.actuators.kubelet_meters import usage

TEXT = """\
# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="model-server",namespace="a",pod="p-1"} 12.5 1732700000000
container_cpu_usage_seconds_total{container="model-server",namespace="a",pod="p-2"} 1e-05
container_cpu_usage_seconds_total{container="sidecar",namespace="a",pod="p-1"} 99
container_cpu_usage_seconds_total{container="model-server",namespace="b",pod="p-3"} 99 1732700000000
container_memory_working_set_bytes{container="model-server",namespace="a",pod="p-1"} 1.6e+07
node_cpu_usage_seconds_total 1000
"""


def test_the_use_of_our_containers_is_found_and_no_other():
    assert usage(TEXT, "a", "model-server") == {"p-1": 12.5, "p-2": 1e-05}


def test_a_text_that_is_cut_short_has_no_wrong_value():
    whole = usage(TEXT, "a", "model-server")
    for end in range(len(TEXT)):
        found = usage(TEXT[:end], "a", "model-server")
        assert found.items() <= whole.items()


def test_what_no_container_can_have_used_is_left_out():
    assert "p-1" not in usage(TEXT.replace(" 12.5 ", " 1e999 "), "a", "model-server")


def test_what_is_no_metrics_is_no_use():
    assert usage("", "a", "model-server") == {}
    assert usage("container_cpu_usage_seconds_total{pod=", "a", "model-server") == {}
