"""Builds the dispatcher core that a configuration describes, live and simulated alike."""

from dispatcher.core import Dispatcher
from dispatcher.schedulers import registry
from roma.config.schema import Config, learned_policy


def build_core(config: Config, *, reaction: float | None = None) -> Dispatcher:
    """Return the core; the caller adds the executors.

    `reaction` is the longest time, in seconds, in which cores follow a new load; default: that of
    the configuration.
    """
    scheduling, specs = config.scheduling, config.model_specs
    reaction = config.reaction if reaction is None else reaction
    return Dispatcher(
        specs,
        gpu=registry.GPU[scheduling.gpu],
        cpu=registry.CPU[scheduling.cpu],
        options=scheduling,
        learned=learned_policy(scheduling.quality, specs),
        window=config.window,
        reaction=reaction,
        grace=reaction if config.decides_early else 0.0,
    )
