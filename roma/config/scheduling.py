"""The `scheduling` section of roma.yaml: GPU and CPU policies. Times are seconds."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from roma.config.names import CpuPolicyName, GpuPolicyName
from roma.config.yaml_file import Fault, FilePath, Section

QUALITY = ("fixed", "qos", "qos-opt", "qos-rl")
"""GPU policies that choose batch size and variant."""

PLANNED = ("clockwork", "clockwork_paper", *QUALITY)
"""GPU policies of planned devices."""


class QualityConfig(Section):
    """Parameters of the policies that choose variants (docs/howto/variants.md)."""

    utility: Literal["linear", "step", "convex"] = "linear"
    """Shape by which an answer's value falls from 1 at the soft deadline (the model's
    response_time) to 0 at the hard one (its deadline): evenly, at once, or quickly at first."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α of `qos`: weight of future requests against waiting ones."""
    beta: Annotated[float, Field(gt=0, le=10)] = 0.5
    """β of `qos`: factor on its batch sizes."""
    bin: Annotated[float, Field(ge=0.001, le=10)] = 0.2
    """Δt in seconds: width of the bins by which requests are ordered by deadline."""
    policy: FilePath | None = None
    """Learned policy for `qos-rl`: a file written by `roma qos train`, relative to roma.yaml. It
    works only with the variants and the devices that it was trained for."""


class SchedulingConfig(Section):
    """Scheduling policies and their parameters."""

    gpu: GpuPolicyName = "gpu_savings_first"
    """GPU policy. `gpu_savings_first` gives a GPU to the model that would cost a CPU most (decision
    4); `roma` gives it to the model with the largest error (paper Alg. 1). `clockwork` plans
    batches and loads models, only on GPUs with `actions`; `clockwork_paper` keeps the paper's order
    where ours would let a larger batch go first. `fixed`, `qos`, `qos-opt` and `qos-rl` also choose
    batch size and variant on such GPUs."""
    cpu: CpuPolicyName = "balance"
    """CPU policy. `balance` gives a CPU what GPUs would reach too late, and fills the executable
    with the most cores first; `round_robin` takes the next one, as the paper does."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of expected against measured response time in the GPU policy `roma`."""
    spill: Annotated[float, Field(ge=0, le=1)] = 0.2
    """θ: a CPU gets a request only if no GPU can start it before θ·SLA. The paper uses 0."""
    ahead: Annotated[float, Field(ge=0.0005, le=1)] = 0.005
    """Seconds of work that a planned GPU is sent ahead of time. A larger value bridges a slower
    network or a late gateway; a smaller one decides later, with more requests to choose from."""
    latency: Annotated[float, Field(ge=0, le=0.1)] = 0.0005
    """Seconds that a message takes to a planned GPU; the same again for the way back."""
    quality: QualityConfig = QualityConfig()

    @model_validator(mode="after")
    def _check(self) -> "SchedulingConfig":
        policy, is_learned = self.quality.policy, self.gpu == "qos-rl"
        if (policy is not None) != is_learned:
            bound = "set where gpu is qos-rl" if is_learned else f"absent where gpu is {self.gpu}"
            raise Fault("quality.policy", str(policy), bound)
        return self

    @property
    def is_planned(self) -> bool:
        """True if the GPU policy sends actions to planned devices."""
        return self.gpu in PLANNED

    @property
    def has_variants(self) -> bool:
        """True if the GPU policy chooses among a model's variants."""
        return self.gpu in QUALITY
