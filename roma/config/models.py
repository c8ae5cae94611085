"""The `models` section of roma.yaml: promises, CPU bounds, variants and limits of each model."""

from typing import Annotated, Final, assert_never

from pydantic import ByteSize, Field, model_validator

from roma.config import profile as profiles
from roma.config.workers import AbsolutePath, Cores, Image, Name, ObjectName, Seconds
from roma.config.yaml_file import Fault, FilePath, Section
from roma.domain.model import BUDGETS, MEAN_ALPHA, Sla, Statistic
from roma.domain.variants import Variant

DEFAULT_BUDGET: Final = 0.02
"""Default share of the requests that may be late."""


class SlaConfig(Section):
    """The promise on a model's response time (queue plus execution)."""

    response_time: Seconds
    """Seconds."""
    budget: Annotated[float, Field(ge=1e-6, le=0.5)] | None = None
    """Share of the requests that may be late, refused or failed; default: 0.02."""
    statistic: Statistic | None = None
    """Alternative to a budget: `p95` and `p99` mean budgets of 0.05 and 0.01, `each` a budget of
    0.001 whose deadline is the response time; `mean` bounds the mean (the ROMA paper's promise)."""
    alpha: Annotated[float, Field(gt=0, le=1)] | None = None
    """Set point as a share of a promise on the mean; default: 0.8 (paper §5)."""
    deadline: Seconds | None = None
    """Longest useful response time: no request waits beyond it. Default: the response time itself
    for `each`, twice that for the others."""

    @model_validator(mode="after")
    def _check(self) -> "SlaConfig":
        if self.deadline is not None and self.deadline < self.response_time:
            raise Fault("deadline", self.deadline, f"≥ response_time ({self.response_time:g})")
        if self.budget is not None and self.statistic is not None:
            raise Fault("budget", self.budget, f"absent where statistic = {self.statistic}")
        if self.alpha is not None and self.statistic is not Statistic.MEAN:
            given = "is absent" if self.statistic is None else f"= {self.statistic}"
            raise Fault("alpha", self.alpha, f"absent where statistic {given}: only mean has it")
        return self

    @property
    def promise(self) -> Sla:
        """The promise as the cores know it, with its defaults filled in."""
        match self.statistic:
            case None:
                return Sla.within(self.response_time, self.budget or DEFAULT_BUDGET)
            case Statistic.P95 | Statistic.P99:
                return Sla.within(self.response_time, BUDGETS[self.statistic])
            case Statistic.EACH:
                return Sla(self.response_time, Statistic.EACH)
            case Statistic.MEAN:
                return Sla(self.response_time, Statistic.MEAN, self.alpha or MEAN_ALPHA)
            case _:
                assert_never(self.statistic)

    @property
    def effective_deadline(self) -> float:
        """The deadline with its default filled in."""
        if self.deadline is not None:
            return self.deadline
        return self.response_time * (1 if self.statistic is Statistic.EACH else 2)


class CpuConfig(Section):
    """Bounds of a model's CPU allocation, per executable."""

    min: Cores | None = None
    """Cores it keeps when idle; default: 0.02 (0.1 with laws other than `late_share`). Once the
    cost of a request is known, the default is at least enough for one request in time, unless GPUs
    serve the model."""
    max: Cores | None = None
    """Most cores it can use; default: what its worker can allocate."""
    initial: Cores | None = None
    """Cores at start, before the first measurement; default: max. Loading and warming up are the
    most expensive operations of a model server; they get only the cores that serving models leave
    free."""
    threads: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads that one request can use; also sizes the model server's intra-op pool."""
    in_flight: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Most requests in flight per executable; default: it follows the cores, max(1, ceil(cores /
    threads)). A fixed limit only moves the queue into the model server, where no scheduler can
    reorder it: `roma experiment run ablation` shows the cost."""

    @model_validator(mode="after")
    def _check(self) -> "CpuConfig":
        least = self.min or 0.0
        if self.max is not None and self.max < least:
            raise Fault("max", self.max, f"≥ min ({least:g})")
        if self.initial is not None and self.initial < least:
            raise Fault("initial", self.initial, f"≥ min ({least:g})")
        if self.initial is not None and self.max is not None and self.initial > self.max:
            raise Fault("initial", self.initial, f"≤ max ({self.max:g})")
        return self


class VariantConfig(Section):
    """A version of a model, under the name by which planned devices hold it."""

    accuracy: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
    """κ: value of one of its answers relative to those of the best variant, which has 1."""


class PodsConfig(Section):
    """The Deployment of a model that `roma render kubernetes` writes: where its files come from.

    Exactly one of the keys, which are Kubernetes' own names.
    """

    image: Image | None = None
    """Image of a model server that has the model at /models/NAME."""
    persistentVolumeClaim: ObjectName | None = None  # noqa: N815
    """Claim whose root holds the numbered version directories; it is mounted read-only."""
    hostPath: AbsolutePath | None = None  # noqa: N815
    """Directory of the node with them; for the overlay `dev` only."""

    @model_validator(mode="after")
    def _check(self) -> "PodsConfig":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            bound = "exactly one of image, persistentVolumeClaim and hostPath"
            raise Fault("image", ", ".join(given) or None, bound)
        return self


class ModelConfig(Section):
    """A model: its files, its SLA and its limits."""

    path: FilePath | None = None
    """Directory with numbered version directories (a SavedModel each). Relative to roma.yaml.
    Needed by backends that start the model server."""
    volume: Name | None = None
    """A named volume that holds these directories, instead of `path`. Backend `docker` only."""
    sla: SlaConfig
    cpu: CpuConfig = CpuConfig()
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1.0
    """Relative weight of its share when the worker is short of cores; `control.sharing: max_min`
    only."""
    replicas: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Number of CPU executables, each on a different worker; default: one on every worker. Workers
    of backend `static` do not count. Can change while the deployment runs, if that moves no other
    model: `roma models scale` sees to it."""
    workers: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    """Names of the workers that run its replicas, in place of `replicas`; default: chosen by
    `placement`. Backends `process` and `docker`."""
    memory: Annotated[ByteSize, Field(ge=64 * 2**20)] | None = None
    """Memory limit of each of its containers, e.g. 2GiB; default: none. Backend `docker`, and
    what `roma render kubernetes` writes."""
    kubernetes: PodsConfig | None = None
    """Its pods, for `roma render kubernetes`; nothing else reads it."""
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = 1000
    """Most requests that may wait."""
    max_body_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31)] | None = None
    """Largest request body; default: `gateway.max_body_bytes`."""
    max_answer_bytes: Annotated[ByteSize, Field(ge=1024, le=2**31 - 1)] | None = None
    """Largest answer of its model servers; default: `gateway.max_answer_bytes`."""
    slot: Annotated[int, Field(ge=0, le=60_000)] | None = None
    """Number that sets its executables' port: base_port + gpus + slot; default: the first number
    that no other model has. `roma models remove` writes it where the default would change."""
    profile: profiles.ModelProfile | None = None
    """Cost of one request; default: its entry in the file `profile`, if there is one."""
    variants: dict[Name, VariantConfig] = Field(default_factory=dict)
    """Versions of the model that may answer for it; default: the model itself. For scheduling.gpu
    `fixed`, `qos`, `qos-opt` and `qos-rl`, on planned devices that hold all of them."""

    @model_validator(mode="after")
    def _check(self) -> "ModelConfig":
        if self.workers is not None and self.replicas is not None:
            raise Fault("replicas", self.replicas, "absent where workers is set")
        workers = self.workers or ()
        for name in workers:
            if workers.count(name) > 1:
                raise Fault("workers", name, "listed once (never two replicas on one worker)")
        return self

    @property
    def ordered_variants(self) -> tuple[Variant, ...]:
        """The variants, most accurate first."""
        found = [Variant(name, v.accuracy) for name, v in self.variants.items()]
        return tuple(sorted(found, key=lambda v: -v.accuracy))
