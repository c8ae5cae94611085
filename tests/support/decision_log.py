"""What a run wrote down, checked by whoever reads it: live and simulated alike."""

from pydantic import TypeAdapter

from controllers import registry
from roma.telemetry import decision_log
from supervisor.decision_log import Decision

parsed = TypeAdapter(Decision).validate_json


def lines(directory, name):
    """The lines of a file, those of the rotated one first."""
    files = [file for file in decision_log.files(directory, name) if file.exists()]
    return [line for file in files for line in file.read_bytes().splitlines()]


def decisions(directory, worker):
    """The decisions of each executable of a worker, in order."""
    found = {}
    for line in lines(directory, decision_log.decisions(worker)):
        decision = parsed(line)
        found.setdefault(decision.executable, []).append(decision)
    return found


def replay(law, told):
    """Feed the recorded measurements of an executable to its law; yield decisions and new demands.

    Decisions before the law's first known state, or after a missing decision, are skipped until the
    law restarts.
    """
    state, known, last = None, False, None
    for decision in told:
        # Each decision records its exact distance from the one before.
        known = known and decision.time - last == decision.dt
        last = decision.time
        if decision.measurement is None:
            continue
        known = known or decision.fresh
        if not known:
            continue
        state = None if decision.fresh else state
        bounds = {"lo": decision.minimum, "hi": decision.maximum}
        demand, state = law(state, decision.measurement, dt=decision.dt, **bounds)
        yield decision, demand


def replayed(control, told):
    """Feed the recorded measurements of an executable to its law; recorded and new demands."""
    law = registry.build(control.law, control.gains)
    pairs = [(decision.demand, demand) for decision, demand in replay(law, told)]
    return [recorded for recorded, _ in pairs], [again for _, again in pairs]
