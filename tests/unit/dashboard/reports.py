"""Reports with a few numbers of interest."""

from roma.domain.exchange import ModelReport


def report(model="m", **values):
    base = {
        "arrivals": 0,
        "completed_cpu": 0,
        "completed_gpu": 0,
        "failed": 0,
        "invalid": 0,
        "cancelled": 0,
        "late": 0,
        "rejected": {},
        "waiting": 0,
        "in_flight": 0,
        "oldest_age": 0.0,
        "response_time": None,
        "mean_time": None,
    }
    return ModelReport(model=model, **(base | values))
