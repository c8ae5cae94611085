"""Stories: whole interactions with the two cores as text, one command a line, its effects below.

A file begins with a roma.yaml, then come commands; a line that begins with `>` is what the one above
caused: commands of the dispatcher, what changed of its state, decisions of a supervisor in words.
`pytest tests/stories --rewrite` writes these lines anew. Time is the file's: `at SECONDS`.
"""

import inspect
import math
import shlex

from dispatcher import reports
from dispatcher.assembly import build_core as build_dispatcher
from roma.config import schema
from roma.config.placement import executables
from roma.domain.actions import Capabilities, ModelCapabilities
from roma.domain.events import (
    Abort,
    CoresApplied,
    CoresNeeded,
    DiscardResults,
    Execute,
    ExecutionEnded,
    ExecutionUnreachable,
    ExecutorAdded,
    ExecutorLost,
    ExecutorReady,
    ExecutorRemoved,
    ExecutorSuspected,
    Fail,
    LoadEnded,
    LoadModel,
    ModelAdded,
    ModelRemoved,
    Reject,
    RequestArrived,
    RequestCancelled,
    Result,
    UnloadModel,
    Woken,
)
from roma.domain.model import Device, Priority, Request
from supervisor.assembly import build_core as build_supervisor
from supervisor.decision_text import explain
from supervisor.executables import Reading


class Story:
    """The two halves of a deployment, driven by the lines of a file."""

    def __init__(self, config):
        self.config = config
        self.now = 0.0
        self.core = build_dispatcher(config)
        self.supervisors = {w.name: build_supervisor(config, w) for w in config.workers}
        self.specs = {e.spec.name: e.spec for e in executables(config)}
        self.requests = self.epoch = 0
        self.usage = dict.fromkeys(self.specs, 0.0)
        self.lines = []
        for spec in self.specs.values():
            self.handle(ExecutorAdded(spec))
        self.state = self.look()

    def play(self, line):
        """Run one command; return what it caused, a line each."""
        self.lines = []
        name, *words = shlex.split(line, comments=True)
        given = [w for w in words if "=" not in w]
        options = dict(w.split("=", 1) for w in words if "=" in w)
        command = getattr(self, f"do_{name.replace('-', '_')}", None)
        if command is None:
            raise ValueError(f"{line}: no such command")
        try:
            inspect.signature(command).bind(*given, **options)
        except TypeError as error:
            raise ValueError(f"{line}: {error}") from None
        command(*given, **options)
        before, self.state = self.state, self.look()
        changed = [f"{key}: {text}" for key, text in self.state.items() if before.get(key) != text]
        gone = [f"{key}: gone" for key in before if key not in self.state]
        return self.lines + changed + gone

    def handle(self, event):
        """Give the dispatcher an event, and note its commands."""
        self.lines += map(said, self.core.handle(event, now=self.now))

    def look(self):
        """Return what there is to see, by what it is of."""
        found = {}
        for executor in self.core.executors:
            signs = [executor.state.value]
            signs += [sign for sign in ("ejected", "probing") if getattr(executor, sign)]
            limit = 1 if executor.spec.device is Device.GPU else executor.limit
            signs.append(f"{len(executor.running)}/{limit} in flight")
            if executor.spec.device is Device.CPU:
                signs.append(f"{executor.cores:g} cores")
            if executor.planned is not None:
                loaded = sorted(m for m, held in executor.planned.held.items() if held)
                signs.append(f"has {', '.join(loaded) or 'no model'}")
            found[executor.spec.name] = ", ".join(signs)
        for model, queue in self.core.queues.items():
            counts = {
                "wait": len(queue),
                "answered": queue.cpu.answered + queue.gpu.answered,
                "late": queue.late,
                "rejected": sum(queue.rejected.values()),
                "failed": queue.failed,
                "cancelled": queue.cancelled,
            }
            low = self.core.low_priority.get(model)
            if low is not None:
                counts |= {"low wait": len(low), "low answered": low.completed.total()}
            found[f"model {model}"] = (
                ", ".join(f"{n} {what}" for what, n in counts.items() if n) or "idle"
            )
        return found

    # Time

    def do_at(self, seconds):
        """Go on to a point in time; what the core wants to be woken for happens on the way."""
        until = float(seconds)
        assert until >= self.now, "time goes on"
        for _ in range(1000):
            at = self.core.next_wakeup()
            if at is None or at > until:
                break
            self.now = max(self.now, at)
            before = len(self.lines)
            self.handle(Woken())
            self.lines[before:] = [f"{self.now:.3f} s: {line}" for line in self.lines[before:]]
            if len(self.lines) == before and self.core.next_wakeup() == at:
                break
        self.now = until

    # Requests and executions

    def do_arrive(self, model, count="1", priority="interactive", deadline="inf"):
        """Let requests of a model arrive."""
        for _ in range(int(count)):
            self.requests += 1
            patience = min(self.core.queues[model].spec.deadline, float(deadline))
            if priority == "low":
                patience = 60.0
            request = Request(
                self.requests, model, self.now, self.now + patience, priority=Priority(priority)
            )
            self.handle(RequestArrived(request))

    def do_cancel(self, request):
        """Let the client of a request hang up."""
        self.handle(RequestCancelled(int(request)))

    def do_answer(self, execution, took="nan"):
        """End an execution well; `took` are its seconds on a planned device."""
        duration = float(took)
        self.handle(
            ExecutionEnded(int(execution), Result.OK, None if math.isnan(duration) else duration)
        )

    def do_fail(self, execution):
        """End an execution with an error of the model server."""
        self.handle(ExecutionEnded(int(execution), Result.ERROR, None))

    def do_unreachable(self, execution):
        """Say that an execution could not be sent: the executable is gone."""
        self.handle(ExecutionUnreachable(int(execution)))

    def do_loaded(self, load, took="0.02"):
        """End a LOAD well."""
        self.handle(LoadEnded(int(load), True, float(took)))

    # Executables

    def do_ready(self, *names):
        """Let executables be ready."""
        for name in names:
            self.handle(ExecutorReady(name))

    def do_device(self, name, pages="100", load="0.02", loaded=""):
        """Connect a planned device: each model has 2 pages, and batches of n take 8 + 2n ms."""
        models = {
            model: ModelCapabilities(
                2, float(load), {n: 0.008 + 0.002 * n for n in (1, 2, 4, 8, 16)}
            )
            for model in self.core.queues
        }
        offer = Capabilities(int(pages), models, tuple(filter(None, loaded.split(","))))
        self.handle(ExecutorReady(name, offer))

    def do_suspect(self, name):
        """Say that an executable does not answer its health check."""
        self.handle(ExecutorSuspected(name))

    def do_lose(self, name):
        """Say that an executable is gone, with all that it ran."""
        self.handle(ExecutorLost(name))

    def do_remove(self, name):
        """Take an executable out of the deployment."""
        self.handle(ExecutorRemoved(name))

    def do_add_model(self, name, like):
        """Add a model with the promise of another one."""
        spec = next(s for s in self.config.model_specs if s.name == like)
        self.handle(ModelAdded(type(spec)(name, spec.sla, spec.deadline, spec.max_waiting)))

    def do_remove_model(self, name):
        """Take a model out of the deployment."""
        self.handle(ModelRemoved(name))

    # Control

    def do_use(self, name, cores_seconds):
        """Let an executable use CPU time."""
        self.usage[name] += float(cores_seconds)

    def do_restart(self):
        """Restart the dispatcher, as its supervisors see it: a new epoch."""
        self.epoch += 1

    def do_tick(self, worker, reply="yes", actuator="works"):
        """Do one control period of a worker's supervisor, and confirm what it applies."""
        core = self.supervisors[worker]
        replies = {"d": reports.reply(self.core, f"e{self.epoch}", self.now)}
        if reply == "no":
            replies = {"d": None}
        readings = {
            name: Reading(
                status.applied if status.applied is not None else status.managed.initial,
                self.usage[name],
                0,
                0,
            )
            for name, status in core.status.items()
        }
        applied = core.tick(replies, readings, now=self.now)
        for apply in applied:
            if actuator != "works":
                core.on_failed(apply.executable, actuator)
                continue
            core.on_applied(apply.executable, apply.cores)
            self.handle(CoresApplied(apply.executable, apply.cores))
        self.lines += [f"{d.executable}: {explain(d)}" for d in core.last()]


def said(command):
    """Return a command of the dispatcher as a line."""
    match command:
        case Execute():
            requests = ", ".join(map(str, command.requests))
            begin = f" from {command.window[0]:.3f} s" if command.window[0] else ""
            return f"execute {command.execution}: {command.model} {requests} on {command.executor}{begin}"
        case LoadModel():
            return f"load {command.load}: {command.model} on {command.executor}"
        case DiscardResults():
            return f"discard what {command.execution} left on {command.executor}"
        case UnloadModel():
            return f"unload {command.model} from {command.executor}"
        case Reject():
            again = "" if command.retry_after is None else f", again in {command.retry_after:.2f} s"
            return f"reject {command.request}: {command.reason.value}{again}: {command.detail}"
        case Fail():
            line = f"fail {command.request}: {command.detail}"
        case Abort():
            line = f"abort execution {command.execution}"
        case CoresNeeded():
            line = f"cores needed: {command.model}"
        case _:
            raise AssertionError(command)
    return line


def replayed(text):
    """Return a story's text with the lines that its commands cause now."""
    head, separator, body = text.partition("\n---\n")
    assert separator, "a story is a roma.yaml, a line of three dashes, and commands"
    story = Story(schema.parse(head))
    out = [head, "---"]
    for line in body.rstrip("\n").split("\n"):
        if line.startswith(">"):
            continue
        out.append(line)
        if line.strip() and not line.startswith("#"):
            out += [f"> {caused}" for caused in story.play(line)]
    return "\n".join(out) + "\n"
