"""An open-loop load generator for services that speak TensorFlow Serving's REST API.

Send times come from the arrival process alone: the generator never waits for an answer before it
sends the next request, and it measures response times from the intended send. `run_load` runs a
plan of streams; `roma.workload` makes send times, `payload` makes bodies.
"""

from roma.tools.load.errors import LoadError, LoadInputError
from roma.tools.load.generator import LoadRun, Stream, run_load
from roma.tools.load.outcomes import Progress, RequestEnd, RequestResult
from roma.tools.load.payload import cycled, read_bodies
from roma.tools.load.report import Distribution, LoadReport, ModelOutcomes

__all__ = [
    "Distribution",
    "LoadError",
    "LoadInputError",
    "LoadReport",
    "LoadRun",
    "ModelOutcomes",
    "Progress",
    "RequestEnd",
    "RequestResult",
    "Stream",
    "cycled",
    "read_bodies",
    "run_load",
]
