"""An open-loop load generator for services that speak TensorFlow Serving's REST API.

Send times come from the arrival process alone: the generator never waits for an answer before it
sends the next request, and it measures response times from the intended send. `run_load` runs a
plan of streams; `arrivals` and `trace` make send times, `payload` makes bodies.
"""

from roma.load.arrivals import (
    Process,
    Profile,
    Step,
    from_counts,
    from_timestamps,
    paced,
    poisson,
    send_times,
)
from roma.load.errors import LoadError, LoadInputError
from roma.load.generator import Load, Stream, run_load
from roma.load.outcomes import Outcome, Progress, Result
from roma.load.payload import cycled, read_bodies
from roma.load.report import Distribution, ModelReport, Report
from roma.load.trace import TraceKind, read_trace

__all__ = [
    "Distribution",
    "Load",
    "LoadError",
    "LoadInputError",
    "ModelReport",
    "Outcome",
    "Process",
    "Profile",
    "Progress",
    "Report",
    "Result",
    "Step",
    "Stream",
    "TraceKind",
    "cycled",
    "from_counts",
    "from_timestamps",
    "paced",
    "poisson",
    "read_bodies",
    "read_trace",
    "run_load",
    "send_times",
]
