"""The dashboard against Grafana's own schema, by the models that Grafana generates from it."""

import copy
import json

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from roma.deploy.grafana import dashboard


@pytest.fixture(scope="module", autouse=True)
def _panels_are_known():
    """Else what is inside a panel would pass unread."""
    register_default_plugins()


def unknown(written):
    """Return the path of every value that Grafana's models do not keep as it was written."""
    read = Dashboard.from_json(copy.deepcopy(written))
    return list(_lost(written, json.loads(JSONEncoder().encode(read))))


def _lost(written, kept, path=""):
    if isinstance(written, dict) and isinstance(kept, dict):
        for key, value in written.items():
            yield from _lost(value, kept.get(key), f"{path}.{key}")
    elif isinstance(written, list) and isinstance(kept, list) and len(written) == len(kept):
        for i, (a, b) in enumerate(zip(written, kept, strict=True)):
            yield from _lost(a, b, f"{path}[{i}]")
    elif written != kept:
        yield path


def test_grafana_knows_every_field():
    assert unknown(dashboard()) == []


@pytest.mark.parametrize(
    ("where", "key"),
    [
        ((), "titel"),
        (("templating", "list", 0), "multiple"),
        (("panels", 0), "repeats"),
        (("panels", 1, "gridPos"), "width"),
        (("panels", 1, "targets", 0), "legend"),
        (("panels", 1, "fieldConfig", "defaults"), "units"),
        (("panels", -1, "options"), "calc"),
    ],
)
def test_a_field_that_it_does_not_know_is_seen(where, key):
    """Else the test above could not fail."""
    written = place = dashboard()
    for step in where:
        place = place[step]
    place[key] = 1
    (path,) = unknown(written)
    assert path.endswith(f".{key}")


def test_no_two_charts_overlap_and_each_has_its_number():
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered = [
        (x, y)
        for p in (panel["gridPos"] for panel in panels)
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(set(covered)) == len(covered)
    assert max(x for x, _ in covered) < 24


def test_what_is_shown_per_model_is_in_the_row_that_repeats():
    rows, repeats = [], False
    for panel in dashboard()["panels"]:
        if panel["type"] == "row":
            repeats = panel.get("repeat") == "model"
            rows.append(repeats)
        else:
            asks = any("$model" in target["expr"] for target in panel["targets"])
            assert asks == repeats, panel["title"]
    assert rows.count(True) == 1
