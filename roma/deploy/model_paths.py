"""Check that the model directories this machine is to serve contain a model."""

from roma.config.placement import on_worker
from roma.config.schema import Config
from roma.serving.errors import ModelDirectoryError
from roma.serving.versions import find


def unservable(config: Config) -> dict[str, str]:
    """Return, by model, the reason why `roma up` cannot serve it on this machine."""
    paths = {
        model: path
        for worker in config.workers
        if worker.is_local
        for executable in on_worker(config, worker)
        for model, path in executable.paths.items()
    }
    found = {}
    for model, path in paths.items():
        try:
            find(path)
        except ModelDirectoryError as error:
            found[model] = f"models.{model}.path = {error}"
    return found
