"""A roma.yaml of two models on one worker, and what is said of a faulty one."""

import pytest

from roma.config import schema
from roma.domain.errors import ConfigError

GOOD = """
models:
  digits:
    path: models/digits
    sla: {response_time: 0.25, statistic: p95}
    cpu: {min: 0.1, max: 1.5, initial: 0.5, threads: 2}
  photos:
    path: models/photos
    sla: {response_time: 0.5}
workers:
  - {name: local, cores: 2, reserved: 0.5}
"""


MODELS = ("digits", "photos")


def faults(text):
    """Return the lines of the error that a file's text raises."""
    with pytest.raises(ConfigError) as e:
        schema.parse(text)
    return str(e.value).splitlines()
