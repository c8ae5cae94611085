"""Hand-made control periods that tests of laws begin with; bounds in seconds and cores."""

from dataclasses import replace

from controllers.measurement import Measurement

BASE = Measurement(
    response_time=0.4,
    oldest_age=0.0,
    arrivals=10,
    completed_gpu=0,
    completed_here=10,
    failed=0,
    shed=0,
    waiting=0,
    in_flight=0,
    usage=0.5,
    applied=1.0,
    sla=0.5,
    set_point=0.4,
    deadline=1.0,
)
IDLE = replace(BASE, response_time=None, arrivals=0, completed_here=0, usage=0.0)
BOUNDS = {"dt": 1.0, "lo": 0.1, "hi": 4.0}


def settled(law, measurement=BASE, periods=30):
    """Run a law until it knows the cost; return its state."""
    state = None
    for _ in range(periods):
        demand, state = law(state, measurement, **BOUNDS)
    return demand, state
