"""Each alert fires when it must and stays quiet when it must not, by Prometheus' own promtool.

A case gives series in promtool's notation, one sample a minute, and which alerts fire at its end.
Rules are evaluated every ten minutes of a day, else every minute: a window of days is slow to add.
"""

import json
import shutil
import subprocess

import pytest

from roma.deploy.alerts import ALERTS, BURNS, WINDOWS, rules
from tests.support import prometheus

DAY = 24 * 60

COUNTED, LATE = 'roma_sla_requests_total{model="m"}', 'roma_sla_late_requests_total{model="m"}'
BUDGETS = [f'roma_sla_budget_ratio{{model="m", instance="{i}"}}' for i in (1, 2)]
"""As each of two dispatchers tells it."""
TICKS, PERIOD = 'roma_ticks_total{worker="w"}', 'roma_control_period_seconds{worker="w"}'
DISPATCHER, SUPERVISOR = 'up{job="dispatcher"}', 'up{job="supervisor"}'
FAILURES = 'roma_actuation_failures_total{executable="m@w"}'
MET = 'roma_worker_demand_met_ratio{worker="w"}'
CONTROLLABLE = {
    f'roma_controllable_executables{{worker="w", instance="{i}"}}': "2x30" for i in (1, 2)
}
CONTROLLED = [f'roma_controlled_executables{{worker="w", instance="{i}"}}' for i in (1, 2)]
STARTS = 'roma_executable_starts_total{executable="m@w"}'


def counter(*parts):
    """Return a counter's samples; a part is (minutes, increase per minute)."""
    values, at = ["0"], 0
    for minutes, rate in parts:
        values.append(f"{at + rate}+{rate}x{minutes - 1}")
        at += rate * minutes
    return " ".join(values)


def served(*parts, budget=0.02):
    """A thousand requests a minute; a part is (minutes, share of them that breaks the promise)."""
    total = sum(minutes for minutes, _ in parts)
    budgets = {} if budget is None else dict.fromkeys(BUDGETS, f"{budget}x{total}")
    return budgets | {
        COUNTED: counter(*[(minutes, 1000) for minutes, _ in parts]),
        LATE: counter(*[(minutes, round(1000 * share)) for minutes, share in parts]),
    }


def in_two_namespaces(*parts):
    """Serve a model in each, by one of which the promise is kept."""
    return {
        series.replace("{", f'{{namespace="{n}", '): values
        for n, breaks in (("a", True), ("b", False))
        for series, values in served(*[(m, share * breaks) for m, share in parts]).items()
    }


def burns(*windows):
    return {("RomaPromiseBurns", window) for window in windows}


CASES = {
    # Promises: each burn rate just above and just below, and what has ended.
    "kept": (served((DAY, 0.019)), set()),
    "broken in one of two namespaces": (in_two_namespaces((DAY, 0), (60, 0.3)), burns("1h")),
    "always a bit too late": (served((DAY, 0.021)), burns("3d")),
    "was a bit too late": (served((DAY, 0.03), (370, 0)), set()),
    "broken for six hours": (served((2 * DAY, 0), (360, 0.13)), burns("6h")),
    "not enough in six hours": (served((2 * DAY, 0), (360, 0.11)), set()),
    "two days after a bad day": (served((DAY, 0.1), (2 * DAY, 0), (350, 0.03)), burns("3d")),
    "four days after a bad day": (served((DAY, 0.1), (4 * DAY, 0), (350, 0.03)), set()),
    "broken for an hour": (served((DAY, 0), (60, 0.3)), burns("1h")),
    "not enough in an hour": (served((DAY, 0), (60, 0.27)), set()),
    "a bad minute": (served((DAY, 0), (9, 0), (1, 1)), set()),
    "a bad hour that is over": (served((2 * DAY, 0), (60, 0.6), (10, 0)), set()),
    "all is broken": (served((60, 1)), burns("1h", "6h", "3d")),
    "nobody came": (served((60, 0)) | {COUNTED: counter((60, 0))}, set()),
    # Each budget has its own bounds, and none of them is out of reach.
    "kept by a wide budget": (served((DAY, 0.049), budget=0.05), set()),
    "a wide budget burns": (served((DAY, 0), (60, 0.75), budget=0.05), burns("1h")),
    "kept by a narrow budget": (served((DAY, 0.009), budget=0.01), set()),
    "a narrow budget burns": (served((DAY, 0), (60, 0.16), budget=0.01), burns("1h")),
    "half of them may be late": (served((DAY, 0.45), budget=0.5), set()),
    "all but a few of them are": (served((DAY, 0), (60, 0.95), budget=0.5), burns("1h")),
    "a mean has no budget to burn": (served((DAY, 0.5), budget=None), set()),
    # Control.
    "ticks": ({TICKS: counter((30, 60)), PERIOD: "1x30"}, set()),
    "slow ticks by configuration": ({TICKS: counter((30, 1)), PERIOD: "60x30"}, set()),
    "few ticks are missed": ({TICKS: counter((30, 50)), PERIOD: "1x30"}, set()),
    "no tick": (
        {TICKS: counter((20, 60), (5, 0)), PERIOD: "1x25"},
        {"RomaControlStalled"},
    ),
    "every third tick": (
        {TICKS: counter((20, 60), (5, 20)), PERIOD: "1x25"},
        {"RomaControlStalled"},
    ),
    "all is up": ({DISPATCHER: "1x10", SUPERVISOR: "1x10"}, set()),
    "a missed scrape": ({DISPATCHER: "1x10 0", SUPERVISOR: "1x10 0"}, set()),
    "no dispatcher is left": (
        {DISPATCHER: "1x10 stale _x4", SUPERVISOR: "1x15"},
        {"RomaDispatcherDown"},
    ),
    "no supervisor is left": (
        {DISPATCHER: "1x15", SUPERVISOR: "1x10 stale _x4"},
        {"RomaSupervisorDown"},
    ),
    "no dispatcher": ({DISPATCHER: "1x10 0x2", SUPERVISOR: "1x12"}, {"RomaDispatcherDown"}),
    "no supervisor": ({DISPATCHER: "1x12", SUPERVISOR: "1x10 0x2"}, {"RomaSupervisorDown"}),
    "quotas move": ({FAILURES: counter((30, 0))}, set()),
    "a quota failed once": ({FAILURES: counter((20, 0), (1, 1), (9, 0))}, set()),
    "quotas failed and move again": ({FAILURES: counter((20, 0), (9, 60), (5, 0))}, set()),
    "quotas fail": ({FAILURES: counter((20, 0), (9, 60))}, {"RomaActuationFails"}),
    # Whether anything controls, as each of two dispatchers tells it.
    "all are controlled": (CONTROLLABLE | {CONTROLLED[0]: "2x30", CONTROLLED[1]: "2x30"}, set()),
    "one is controlled": (CONTROLLABLE | {CONTROLLED[0]: "1x30", CONTROLLED[1]: "1x30"}, set()),
    "one dispatcher does not see it": (
        CONTROLLABLE | {CONTROLLED[0]: "0x30", CONTROLLED[1]: "2x30"},
        set(),
    ),
    "nothing is controlled": (
        CONTROLLABLE | {CONTROLLED[0]: "0x30", CONTROLLED[1]: "0x30"},
        {"RomaNotControlling"},
    ),
    "nothing is controlled yet": (
        CONTROLLABLE | {CONTROLLED[0]: "0x4 2x26", CONTROLLED[1]: "0x4 2x26"},
        set(),
    ),
    "nothing is to be controlled": (
        dict.fromkeys((*CONTROLLABLE, *CONTROLLED), "0x30"),
        set(),
    ),
    # A worker.
    "idle": ({MET: " ".join(["Inf"] * 30)}, set()),
    "enough cores": ({MET: "1.2x30"}, set()),
    "a burst": ({MET: "1.2x30 0.7x6 1.2x3"}, set()),
    "too few cores": ({MET: "1.2x30 0.7x16"}, {"RomaWorkerSaturated"}),
    "too few cores but for a moment": ({MET: "1.2x30 0.7x14 1.1 0.7x6"}, {"RomaWorkerSaturated"}),
    # Executables.
    "started": ({STARTS: "0x5 1x30"}, set()),
    "restarted now and then": ({STARTS: "1x5 2x15 3x15"}, set()),
    # The missed scrape makes Prometheus extrapolate, as one between two evaluations always does.
    "restarted three times": ({STARTS: "1x5 2x5 3x5 4x14 _"}, set()),
    "restarts again and again": ({STARTS: "1x5 2x5 3x5 4x5 5x5"}, {"RomaExecutableRestarts"}),
    "restarted long ago": ({STARTS: "1 2 3 4 5 6 7x40"}, set()),
    "its dispatcher starts again": ({STARTS: "1x20 0 1 1 1x3 0 1"}, set()),
}


@pytest.fixture(scope="module")
def promtool():
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")

    def run(*arguments, cwd):
        return subprocess.run(
            ["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False
        )

    return run


def minutes(series):
    """How many minutes the longest series lasts."""
    values = (_length(text) for text in series.values())
    return max(values) - 1


def _up(series):
    """Return that both programs answer for as long as a case lasts."""
    return dict.fromkeys((DISPATCHER, SUPERVISOR), f"1x{minutes(series)}")


def _length(text):
    return sum(int(part.partition("x")[2]) + 1 if "x" in part else 1 for part in text.split())


def run_tests(directory, promtool, tests, interval):
    file = {
        "rule_files": ["alerts.yaml"],
        "evaluation_interval": interval,
        # Else promtool takes them in any order, and alerts see what was recorded one interval ago.
        "group_eval_order": [group["name"] for group in rules()["groups"]],
        "tests": tests,
    }
    (directory / "tests.yaml").write_text(json.dumps(file))
    done = promtool("test", "rules", "tests.yaml", cwd=directory)
    assert done.returncode == 0, done.stdout + done.stderr


def label(name, window=""):
    labels = f'alertname="{name}"' + (f', window="{window}"' if window else "")
    return f"{{{labels}}}"


def test_the_rules_are_valid(tmp_path, promtool):
    (tmp_path / "alerts.yaml").write_text(json.dumps(rules()))
    done = promtool("check", "rules", "--lint-fatal", "alerts.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("long", [True, False])
def test_each_case_fires_what_it_must_and_nothing_else(long, tmp_path, promtool):
    cases = {name: case for name, case in CASES.items() if (minutes(case[0]) >= DAY) == long}
    interval = "10m" if long else "1m"
    data = rules()
    for group in data["groups"]:
        group["interval"] = interval
    (tmp_path / "alerts.yaml").write_text(json.dumps(data))
    firing = "count by (alertname, window) (ALERTS{alertstate='firing'})"
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": s, "values": v} for s, v in (_up(series) | series).items()],
            "promql_expr_test": [
                {
                    "expr": firing,
                    "eval_time": f"{minutes(series)}m",
                    "exp_samples": [
                        {"labels": label(*(a if isinstance(a, tuple) else (a,))), "value": 1}
                        for a in sorted(expected)
                    ],
                }
            ],
        }
        for name, (series, expected) in cases.items()
    ]
    run_tests(tmp_path, promtool, tests, interval)


def test_the_dashboard_asks_for_the_burn_rates_of_each_namespace_apart(tmp_path, promtool):
    (tmp_path / "alerts.yaml").write_text(json.dumps(rules()))
    series = in_two_namespaces((60, 0.3))
    queries = [query for query in prometheus.queries("m") if "roma_sla_budget_ratio" in query]
    assert len(queries) == len(WINDOWS) - 1
    test = {
        "interval": "1m",
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "promql_expr_test": [
            {
                "expr": f"round({query}) > 0 or count({query})",
                "eval_time": "1h",
                "exp_samples": [
                    {"labels": '{model="m", namespace="a"}', "value": 15},
                    {"labels": "{}", "value": 2},
                ],
            }
            for query in queries
        ],
    }
    run_tests(tmp_path, promtool, [test], "1m")


def test_every_alert_has_a_case_in_which_it_fires():
    fired = {a if isinstance(a, tuple) else (a, "") for _, found in CASES.values() for a in found}
    assert fired == {(alert.name, alert.window) for alert in ALERTS}


def test_every_window_that_a_burn_rate_looks_at_is_recorded():
    assert {w for burn in BURNS for w in (burn.long, burn.short)} == set(WINDOWS)


def test_what_an_alert_says_is_filled_in(tmp_path, promtool):
    """As a person reads it: no template is left, and the number is the one that is bad."""
    (tmp_path / "alerts.yaml").write_text(json.dumps(rules()))
    down, lost = (a for a in ALERTS if a.name in ("RomaDispatcherDown", "RomaSupervisorDown"))
    burn = next(a for a in ALERTS if a.window == "1h")
    series = served((60, 1)) | {'up{job="dispatcher", instance="d:1"}': "0x60"}
    said = [
        (
            down.name,
            {"severity": "page", "job": "dispatcher", "instance": "d:1"},
            "The dispatcher d:1 does not answer",
            down.description,
        ),
        (
            lost.name,
            {"severity": "page", "job": "supervisor"},
            "There is no supervisor to ask",
            lost.description,
        ),
    ]
    tests = {
        "interval": "1m",
        "input_series": [{"series": s, "values": v} for s, v in series.items()],
        "alert_rule_test": [
            {
                "eval_time": "1h",
                "alertname": name,
                "exp_alerts": [
                    {
                        "exp_labels": labels,
                        "exp_annotations": {"summary": summary, "description": description},
                    }
                ],
            }
            for name, labels, summary, description in said
        ],
    }
    tests["alert_rule_test"].append(
        {
            "eval_time": "1h",
            "alertname": burn.name,
            "exp_alerts": [
                {
                    "exp_labels": {"severity": b.severity, "window": b.long, "model": "m"},
                    "exp_annotations": {
                        "summary": "Model m breaks its promise too often",
                        "description": burn.description.replace(
                            "{{ $value | humanizePercentage }}", "100%"
                        ).replace("last 1h", f"last {b.long}"),
                    },
                }
                for b in BURNS
            ],
        }
    )
    run_tests(tmp_path, promtool, [tests], "1m")
