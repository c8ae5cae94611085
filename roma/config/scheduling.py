"""The `scheduling` section of roma.yaml: what runs next where. Times are seconds."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from roma.config.yaml_file import Fault, FilePath, Section

QUALITY = ("fixed", "qos", "qos-opt", "qos-rl")
"""GPU policies that choose batch size and variant."""

PLANNED = ("clockwork", "clockwork_paper", *QUALITY)
"""GPU policies of planned devices."""


class QualityConfig(Section):
    """What `fixed`, `qos` and `qos-rl` go by (docs/howto/variants.md)."""

    utility: Literal["linear", "step", "convex"] = "linear"
    """How an answer's value falls from 1 at the soft deadline, the model's response_time, to 0 at
    the hard one, its deadline: evenly, at once, or quickly at first."""
    alpha: Annotated[float, Field(ge=0, le=1)] = 0.5
    """α of `qos`: weight of the requests that will come against those that wait."""
    beta: Annotated[float, Field(gt=0, le=10)] = 0.5
    """β of `qos`: what its batches are multiplied by."""
    bin: Annotated[float, Field(ge=0.001, le=10)] = 0.2
    """Δt: requests are in order of their deadlines up to so many seconds."""
    policy: FilePath | None = None
    """What `qos-rl` learned: a file of `roma qos train`, relative to roma.yaml. It serves the
    variants and the devices that it was trained for, and no others."""


class SchedulingConfig(Section):
    """What runs next where."""

    gpu: Literal[
        "roma",
        "round_robin",
        "fcfs",
        "edf",
        "gpu_savings_first",
        "clockwork",
        "clockwork_paper",
        "fixed",
        "qos",
        "qos-opt",
        "qos-rl",
    ] = "gpu_savings_first"
    """`gpu_savings_first` gives a GPU to the model that a CPU would pay most for (decision 4),
    `roma` to the one with the largest error (paper Alg. 1). `clockwork` plans batches and loads
    models on GPUs with `actions`, and on no others; `clockwork_paper` takes the paper's order where
    ours would let a larger batch go first. `qos` and its kin choose batch size and variant
    there."""
    cpu: Literal["round_robin", "balance"] = "balance"
    """`balance` takes the executable whose cores have the least work; `round_robin`, the next one,
    is the paper's."""
    beta: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of expected against measured response time in the GPU policy `roma`."""
    spill: Annotated[float, Field(ge=0, le=1)] = 0.2
    """θ: a CPU gets a request only if no GPU can reach it before θ·SLA. 0 is the paper's."""
    ahead: Annotated[float, Field(ge=0.0005, le=1)] = 0.005
    """Seconds of work that a planned GPU is given before it needs it. More bridges a slower
    network or a gateway that is late; less decides later, with more requests to choose from."""
    latency: Annotated[float, Field(ge=0, le=0.1)] = 0.0005
    """Seconds that a message takes to a planned GPU, and back again."""
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
        """Whether the GPU policy gives planned devices actions."""
        return self.gpu in PLANNED

    @property
    def has_variants(self) -> bool:
        """Whether the GPU policy chooses among a model's variants."""
        return self.gpu in QUALITY
