"""The paper's measurements (Tables 2 to 5), by devices and policy, in the order of its hours."""

from collections.abc import Mapping
from typing import Final

from roma.lab.experiments.qos.setting import CLUSTER, SINGLE

Row = tuple[float, float, float, float]

QUALITY: Final[Mapping[tuple[str, ...], Mapping[str, Row]]] = {
    SINGLE: {
        "fixed": (0.883, 0.818, 0.860, 0.863),
        "qos": (0.968, 0.915, 0.950, 0.939),
        "qos-rl": (0.978, 0.931, 0.961, 0.949),
    },
    CLUSTER: {
        "fixed": (0.820, 0.767, 0.801, 0.813),
        "qos": (0.948, 0.883, 0.925, 0.916),
        "qos-rl": (0.955, 0.895, 0.933, 0.922),
    },
}
"""Mean response quality (Tables 2 and 4); our `qos` is the paper's heuristic."""

DEVIATION: Final[Mapping[tuple[str, ...], Mapping[str, Row]]] = {
    SINGLE: {
        "fixed": (0.204, 0.235, 0.218, 0.218),
        "qos": (0.117, 0.185, 0.146, 0.161),
        "qos-rl": (0.084, 0.149, 0.114, 0.132),
    },
    CLUSTER: {
        "fixed": (0.231, 0.242, 0.237, 0.234),
        "qos": (0.148, 0.210, 0.176, 0.186),
        "qos-rl": (0.139, 0.202, 0.168, 0.179),
    },
}
"""Standard deviation of the quality (Tables 2 and 4)."""

TINY: Final[Mapping[tuple[str, ...], Mapping[str, Row]]] = {
    SINGLE: {
        "fixed": (0.202, 0.338, 0.250, 0.254),
        "qos": (0.055, 0.163, 0.092, 0.117),
        "qos-rl": (0.020, 0.082, 0.041, 0.061),
    },
    CLUSTER: {
        "fixed": (0.326, 0.435, 0.365, 0.344),
        "qos": (0.096, 0.228, 0.144, 0.164),
        "qos-rl": (0.082, 0.206, 0.128, 0.148),
    },
}
"""Share of queries that the tiny model answered (Tables 3 and 5)."""
