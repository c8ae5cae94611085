"""HandleReloadConfigRequest: TensorFlow Serving's message that changes the served models.

Off unless the server was started with it (`Models.may_follow`): a caller could have any folder of
the machine loaded, and a SavedModel's graph can read and write files.

A model's platform, its logging and a custom configuration are not supported; the answer's metrics
are 0, because the server keeps none under the names of TensorFlow's registry.
Source: tensorflow_serving/model_servers/{model_service_impl, server_core}.cc (2.19).
"""

from pathlib import Path

from roma.serving import versions
from roma.serving.errors import Code, ModelDirectoryError, ModelLoadError, RequestError
from roma.serving.messages import Message, parse
from roma.serving.models import Models, Source
from roma.serving.versions import Policy

PLATFORM = "tensorflow"


def reload_config(models: Models, request: bytes, _most_bytes: int) -> bytes:
    """Serve the models of a ReloadConfigRequest; blocks until they are loaded."""
    from tensorflow_serving.apis import model_management_pb2  # noqa: PLC0415

    message = parse(model_management_pb2.ReloadConfigRequest(), request)
    if not models.may_follow:
        raise RequestError(
            "HandleReloadConfigRequest: the server serves what it was started with, for it was "
            "started without --allow-reload",
            Code.UNIMPLEMENTED,
        )
    if message.config.WhichOneof("config") != "model_config_list":
        raise RequestError(
            "ServerModelConfig type not supported by HandleReloadConfigRequest. "
            "Only ModelConfigList is currently supported"
        )
    sources = _sources(message.config.model_config_list)
    try:
        models.follow(sources)
    except ModelDirectoryError as error:
        raise RequestError(str(error)) from error
    except ModelLoadError as error:
        raise RequestError(str(error), Code.UNKNOWN) from error
    response = model_management_pb2.ReloadConfigResponse()
    response.status.SetInParent()
    for name in message.metric_names:
        response.metric.add(name=name, int64_value_increase=0)
    return bytes(response.SerializeToString())


def _sources(listed: Message) -> dict[str, Source]:
    found: dict[str, Source] = {}
    for config in listed.config:
        name = config.name
        if not name:
            raise RequestError("ModelConfig: name is empty")
        if name in found:
            raise RequestError(f"Illegal to list model {name} multiple times in config list")
        if not config.base_path.startswith("/"):
            raise RequestError(
                f"Expected model {name} to have an absolute path or URI; "
                f"got base_path()={config.base_path}"
            )
        if config.model_platform not in ("", PLATFORM):
            platform = config.model_platform
            raise RequestError(f"model {name}: model_platform = {platform}: must be {PLATFORM}")
        policy = _policy(config.model_version_policy)
        found[name] = Source(Path(config.base_path), dict(config.version_labels), policy)
    return found


def _policy(message: Message) -> Policy:
    match message.WhichOneof("policy_choice"):
        case "all":
            return lambda found: found
        case "specific":
            wanted = frozenset(message.specific.versions)
            return lambda _: wanted
        case "latest":
            return versions.latest(message.latest.num_versions or 1)
    return versions.LATEST
