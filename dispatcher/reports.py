"""The dispatcher's report to supervisors: reads the core's state, only expires its windows."""

from dispatcher.core import Dispatcher
from dispatcher.state.queues import ModelQueue
from roma.domain.exchange import ExchangeReply, ExecutorReport, ModelReport
from roma.domain.model import Priority, Request, Statistic
from roma.domain.stats import SlidingWindow

_INTERACTIVE = Priority.INTERACTIVE  # the others may wait, and demand no cores
_QUANTILE = {Statistic.P95: 0.95, Statistic.P99: 0.99, Statistic.EACH: 1.0}


def reply(core: Dispatcher, epoch: str, now: float) -> ExchangeReply:
    """Return the whole report at time `now`."""
    in_flight = dict.fromkeys(core.queues, 0)
    waited_for: dict[str, list[Request]] = {model: [] for model in core.queues}
    for execution in core.running():
        in_flight[execution.model] += len(execution.requests)
        waited_for[execution.model] += [
            r for r in execution.requests if r.priority is _INTERACTIVE and core.waits_for(r.id)
        ]
    return ExchangeReply(
        epoch=epoch,
        models=tuple(
            _model(q, in_flight[name], waited_for[name], now) for name, q in core.queues.items()
        ),
        executors=tuple(
            ExecutorReport(e.spec.name, e.state.value, len(e.running), e.completed)
            for e in core.executors
        ),
    )


def _model(queue: ModelQueue, in_flight: int, waited_for: list[Request], now: float) -> ModelReport:
    head = queue.head
    arrived = [r.arrived for r in waited_for] + ([head.arrived] if head is not None else [])
    return ModelReport(
        model=queue.spec.name,
        arrivals=queue.arrivals,
        completed_cpu=queue.cpu.answered,
        completed_gpu=queue.gpu.answered,
        failed=queue.failed,
        invalid=queue.invalid,
        cancelled=queue.cancelled,
        cancelled_late=queue.cancelled_late,
        rejected_by_client=queue.rejected_by_client,
        late=queue.late,
        rejected={reason.value: n for reason, n in queue.rejected.items()},
        waiting=len(queue),
        in_flight=in_flight,
        oldest_age=now - min(arrived) if arrived else 0.0,
        response_time=_statistic(queue.response, queue.spec.sla.statistic, now),
        mean_time=queue.response.mean(now),
    )


def _statistic(window: SlidingWindow, statistic: Statistic, now: float) -> float | None:
    if statistic is Statistic.MEAN:
        return window.mean(now)
    return window.quantile(_QUANTILE[statistic], now)
