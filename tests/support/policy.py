"""Policies of a few numbers: they take one action, whatever they see."""

from roma.config.policy_file import Policy, PolicyAction
from roma.domain.actions import ModelCapabilities
from roma.domain.variants import Variant

GOOD, FAST = Variant("good", 1.0), Variant("fast", 0.5)
SECONDS = {
    "slow": {"good": {1: 0.2, 2: 0.3}, "fast": {1: 0.1, 2: 0.15, 4: 0.2}},
    "quick": {"good": {1: 0.1, 2: 0.15, 4: 0.2}, "fast": {1: 0.05, 2: 0.06, 4: 0.08}},
}
ACTIONS = (
    PolicyAction(batch=0),
    *(PolicyAction(batch=b, variant=v) for v in ("good", "fast") for b in (1, 2, 4)),
)
WAIT = 0


def number(batch, variant):
    return ACTIONS.index(PolicyAction(batch=batch, variant=variant))


def offers(kind, **factors):
    return {
        name: ModelCapabilities(
            1, 0.001, {b: t * factors.get(name, 1.0) for b, t in found.items()}, any_batch=False
        )
        for name, found in SECONDS[kind].items()
    }


def data(action=1, **changes):
    """The JSON of a policy for one slow device and two quick ones."""
    inputs = 4 + 6 + 2 + 2 + 3
    return {
        "format": 1,
        "variants": [{"name": v.name, "accuracy": v.accuracy} for v in (GOOD, FAST)],
        "devices": [
            {"name": "slow", "count": 1, "seconds": SECONDS["slow"]},
            {"name": "quick", "count": 2, "seconds": SECONDS["quick"]},
        ],
        "utility": "linear",
        "bin": 0.2,
        "before": 4,
        "after": 6,
        "wait": 0.05,
        "actions": [a.model_dump() for a in ACTIONS],
        "mean": [0.0] * inputs,
        "scale": [1.0] * inputs,
        "hidden": {"weights": [[0.0, 0.0]] * inputs, "bias": [0.0, 0.0]},
        "output": {
            "weights": [[0.0] * len(ACTIONS)] * 2,
            "bias": [float(i == action) for i in range(len(ACTIONS))],
        },
        "training": {
            "command": "by hand",
            "seed": 0,
            "hours": "9-12",
            "rounds": 0,
            "score": 0.0,
            "teacher": 0.0,
        },
        **changes,
    }


def policy(action=1, **changes):
    return Policy.model_validate(data(action, **changes))
