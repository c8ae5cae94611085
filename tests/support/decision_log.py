"""What a run wrote down, checked by whoever reads it: live and simulated alike."""

from controllers import registry
from roma.telemetry import decision_log
from supervisor.decision_log import parse, replay


def decisions(directory, worker):
    """The decisions of each executable of a worker, in order."""
    found = {}
    for line in decision_log.read(directory, decision_log.decisions(worker)):
        decision = parse(line)
        found.setdefault(decision.executable, []).append(decision)
    return found


def replayed(control, told):
    """Feed the recorded measurements of an executable to its law; recorded and new demands."""
    law = registry.build(control.law, control.gains)
    pairs = [(decision.demand, demand) for decision, demand in replay(law, told)]
    return [recorded for recorded, _ in pairs], [again for _, again in pairs]
