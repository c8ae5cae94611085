"""Builds the dispatcher core that a configuration describes, live and simulated alike."""

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from dispatcher.schedulers.base import PolicyOptions
from dispatcher.state.utility import QualityOptions
from roma.config.schema import Config, learned_policy


def build_core(config: Config, *, reaction: float | None = None) -> Dispatcher:
    """Return the core; the caller adds the executors.

    `reaction` is the longest time, in seconds, in which cores follow a new load; default: that of
    the configuration.
    """
    scheduling, quality = config.scheduling, config.scheduling.quality
    return Dispatcher(
        config.model_specs,
        gpu=registry.GPU[scheduling.gpu],
        cpu=registry.CPU[scheduling.cpu],
        options=PolicyOptions(
            beta=scheduling.beta,
            spill=scheduling.spill,
            ahead=scheduling.ahead,
            latency=scheduling.latency,
            quality=QualityOptions(
                utility=quality.utility,
                alpha=quality.alpha,
                beta=quality.beta,
                bin=quality.bin,
                policy=learned_policy(quality, config.model_specs),
            ),
        ),
        window=config.window,
        reaction=config.reaction if reaction is None else reaction,
    )
