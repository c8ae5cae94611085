"""Open Inference Protocol over REST, with Triton's binary tensor data; no socket, no model.

    GET  /v2   /v2/health/live   /v2/health/ready
    GET  /v2/models/{model}[/versions/{version}][/ready]
    POST /v2/models/{model}[/versions/{version}]/infer

The JSON is read and written in TensorFlow Serving's dialect, in which NaN and Infinity are numbers.
Beyond the protocol, FP16 and BF16 may be JSON numbers, and an element of BYTES may be `{"b64": …}`.
Bytes that are not UTF-8 can only be returned as binary data.

Sources: open-inference-protocol's specification/protocol/inference_rest.md and Triton's
docs/protocol/extension_binary_data.md.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import numpy as np
import orjson

from roma.serving import oip, oip_tensors
from roma.serving.api import ServingAction, ServingCall
from roma.serving.errors import Code, RequestError
from roma.serving.metrics import REST
from roma.serving.models import Models
from roma.serving.oip import InferAnswer, InferRequest
from roma.serving.oip_tensors import Header
from roma.serving.route import RestResponse, RestRoute
from roma.tensors import jsontext
from roma.tensors.arrays import Array, ServingTensorSpec, decode, is_finite, plain

HEADER_LENGTH = "Inference-Header-Content-Length"
"""Header with the length of the JSON; the binary data follows it."""

_MODEL = re.compile(
    r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?(?P<about>/infer|/ready)?"
)
_WIDE = {"UINT16": "uint32", "FP16": "double", "BF16": "double"}
"""Types used to read JSON values of datatypes that TensorFlow Serving's JSON lacks."""


def owns(target: str) -> bool:
    """Return whether a request's target belongs to this protocol."""
    path = target.partition("?")[0]
    return path == "/v2" or path.startswith("/v2/")


def route(method: str, target: str) -> RestRoute:
    """Return the route of a request line; raises RequestError."""
    path = target.partition("?")[0].rstrip("/")
    match = _MODEL.fullmatch(path)
    if match is None and path not in _SERVER:
        raise RequestError("Not Found", Code.NOT_FOUND)
    computes = match is not None and match["about"] == "/infer"
    if method != ("POST" if computes else "GET"):
        raise RequestError(f"Malformed request: {method} {path}")
    if match is None:
        return RestRoute(_SERVER[path])
    model, version = unquote(match["model"]), unquote(match["version"] or "")
    call = oip.call_of(
        ServingAction.PREDICT if computes else ServingAction.METADATA, model, version
    )
    return RestRoute(partial(_ABOUT[match["about"]], call), computes)


def _server(_models: Models, _body: bytes, _headers: Mapping[str, str]) -> RestResponse:
    version = oip.server_version()
    return _json({"name": oip.SERVER, "version": version, "extensions": oip.EXTENSIONS})


def _live(_models: Models, _body: bytes, _headers: Mapping[str, str]) -> RestResponse:
    return _json({"live": True})


def _ready(models: Models, _body: bytes, _headers: Mapping[str, str]) -> RestResponse:
    ready = bool(models.is_ready())
    return _json({"ready": ready}, 200 if ready else 503)


_SERVER = {"/v2": _server, "/v2/health/live": _live, "/v2/health/ready": _ready}


def _model_ready(
    call: ServingCall, models: Models, _body: bytes, _headers: Mapping[str, str]
) -> RestResponse:
    ready = models.is_callable(call)
    return _json({"name": call.model, "ready": ready}, 200 if ready else 503)


def _metadata(
    call: ServingCall, models: Models, _body: bytes, _headers: Mapping[str, str]
) -> RestResponse:
    told = oip.metadata(models, call)
    tensors = {
        side: [{"name": name, "datatype": datatype, "shape": shape} for name, datatype, shape in of]
        for side, of in (("inputs", told.inputs), ("outputs", told.outputs))
    }
    versions = [str(number) for number in told.versions]
    return _json({"name": call.model, "versions": versions, "platform": oip.PLATFORM} | tensors)


def _infer(
    call: ServingCall, models: Models, body: bytes, headers: Mapping[str, str]
) -> RestResponse:
    request, form = decode_request(call, body, headers)
    return encode_answer(call.model, oip.infer(models, request, REST), form)


_ABOUT = {None: _metadata, "/ready": _model_ready, "/infer": _infer}


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """Requested format of an answer: its id, and the outputs that are binary."""

    id: str | None
    binary: Mapping[str, bool]
    otherwise: bool
    """True if outputs not listed in `binary` are binary."""


def decode_request(
    call: ServingCall, body: bytes, headers: Mapping[str, str]
) -> tuple[InferRequest, AnswerFormat]:
    """Decode a request's body; raises RequestError."""
    length = _header_length(headers, len(body))
    document = jsontext.parse(body[:length])
    root = document.root
    parameters = _parameters(root, "the request")
    oip.check_parameters(parameters, oip.REFUSED_OF_REQUEST, "the request")
    raw = memoryview(body)[length:]
    inputs = []
    for entry in _list(root, "inputs"):
        value, raw = _input(entry, raw, exact_types=document.has_booleans)
        inputs.append(value)
    if raw:
        raise RequestError(f"{len(raw)} bytes of binary data belong to no input")
    names, binary = [], {}
    for entry in [] if root.get("outputs") is None else _list(root, "outputs"):
        name = oip_tensors.name_of(entry.get("name"), "an output")
        requested = _parameters(entry, f'Output "{name}"')
        oip.check_parameters(requested, oip.REFUSED_OF_TENSOR, f'Output "{name}"')
        if "binary_data" in requested:
            binary[name] = _flag(requested, "binary_data", f'Output "{name}"')
        names.append(name)
    request = InferRequest(call, oip.signature_of(parameters), inputs, names)
    is_binary = _flag(parameters, "binary_data_output", "the request")
    return request, AnswerFormat(_id(root), binary, is_binary)


def _id(root: Mapping[str, Any]) -> str | None:
    found = root.get("id")
    if found is not None and not isinstance(found, str):
        raise RequestError(f"id = {jsontext.preview(found)}: expected a string")
    try:
        (found or "").encode()  # the answer repeats it
    except UnicodeEncodeError:
        raise RequestError(f"id = {jsontext.preview(found)}: expected UTF-8") from None
    return found


def _flag(parameters: Mapping[str, Any], name: str, of: str) -> bool:
    found = parameters.get(name, False)
    if not isinstance(found, bool):
        raise RequestError(f"{of}: {name} = {jsontext.preview(found)}: expected true or false")
    return found


def encode_answer(model: str, answer: InferAnswer, form: AnswerFormat) -> RestResponse:
    """Encode an answer; raises RequestError for bytes that JSON cannot carry."""
    outputs: list[dict[str, Any]] = []
    parts = [b""]
    for head, array in answer.outputs:
        entry: dict[str, Any] = {
            "name": head.name,
            "datatype": head.datatype.name,
            "shape": list(head.shape),
        }
        if form.binary.get(head.name, form.otherwise):
            parts.append(oip_tensors.to_raw(array))
            entry["parameters"] = {"binary_data_size": len(parts[-1])}
        else:
            entry["data"] = to_json(head, array)
        outputs.append(entry)
    root: dict[str, Any] = {"model_name": model, "model_version": str(answer.version)}
    if form.id is not None:
        root["id"] = form.id
    parts[0] = _dump(root | {"outputs": outputs})
    if len(parts) == 1:
        return RestResponse(parts[0])
    kind = {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(parts[0]))}
    return RestResponse(b"".join(parts), headers=kind)


def from_json(head: Header, value: Any, *, exact_types: bool) -> Array:
    """Return a JSON value, flat or nested by its shape, as an array; raises RequestError.

    `exact_types` must be true if a boolean may be among the values.
    """
    dtype = _WIDE.get(head.datatype.name, head.datatype.tensorflow)
    array = decode(value, ServingTensorSpec(head.name, dtype, head.shape), exact_types=exact_types)
    oip_tensors.check_count(head, array.size)
    # An empty list does not show the sizes of its inner dimensions.
    if array.size and array.shape not in (head.shape, (head.count,)):
        shape = list(array.shape)
        text = f'Input "{head.name}" is nested as {shape}, its shape is {list(head.shape)}'
        raise RequestError(text)
    if head.datatype.name == "UINT16" and (array > 2**16 - 1).any():
        raise RequestError(f'Input "{head.name}" has a value over {2**16 - 1}')
    with np.errstate(over="ignore"):  # 1e300 is inf, as for FP32
        return array.astype(head.datatype.numpy, copy=False).reshape(head.shape)


def to_json(head: Header, array: Array) -> Any:
    """Return an array in a form that `_dump` writes as a flat list; raises RequestError."""
    flat = array.ravel()
    if flat.dtype == np.object_:
        try:
            return [value.decode() for value in flat]
        except UnicodeDecodeError:
            raise RequestError(
                f'Output "{head.name}" holds bytes that are no UTF-8, which JSON cannot carry: '
                "ask for it with the parameter binary_data"
            ) from None
    if head.datatype.name in ("FP16", "BF16"):
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            flat = flat.astype(np.float32)
    return flat if is_finite(flat) else _NotFinite(plain(flat))


class _NotFinite(list[Any]):
    """Numbers that orjson cannot write."""


def _dump(root: dict[str, Any]) -> bytes:
    if any(isinstance(output.get("data"), _NotFinite) for output in root["outputs"]):
        # The standard library writes NaN, Infinity and -Infinity.
        return json.dumps(root, ensure_ascii=False, default=plain, separators=(",", ":")).encode()
    return orjson.dumps(root, option=orjson.OPT_SERIALIZE_NUMPY)


def _input(
    entry: Mapping[str, Any], raw: memoryview, *, exact_types: bool
) -> tuple[tuple[Header, Array], memoryview]:
    """Return one input and the binary data that remains after it."""
    head = oip_tensors.header(entry.get("name"), entry.get("datatype"), entry.get("shape"))
    where = f'Input "{head.name}"'
    parameters = _parameters(entry, where)
    oip.check_parameters(parameters, oip.REFUSED_OF_TENSOR, where)
    size = parameters.get("binary_data_size")
    if (size is None) == (entry.get("data") is None):
        raise RequestError(f"{where}: expected either data or the parameter binary_data_size")
    if size is None:
        return (head, from_json(head, entry["data"], exact_types=exact_types)), raw
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= len(raw):
        raise RequestError(
            f"{where}: binary_data_size = {jsontext.preview(size)}: "
            f"expected an integer from 0 to {len(raw)}, the bytes that are left"
        )
    return (head, oip_tensors.from_raw(head, raw[:size])), raw[size:]


def _header_length(headers: Mapping[str, str], total: int) -> int:
    text = headers.get(HEADER_LENGTH)
    if text is None:
        return total
    is_number = text.isascii() and text.isdigit() and len(text) <= 18
    if not is_number or not 1 <= int(text) <= total:
        raise RequestError(
            f"{HEADER_LENGTH} = {text[:32]!r}: expected an integer from 1 to {total}, "
            "the bytes of the body"
        )
    return int(text)


def _list(root: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    entries = root.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise RequestError(f"{key} = {jsontext.preview(entries)}: expected a list of objects")
    return entries


def _parameters(entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    parameters = entry.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        text = f"{where}: parameters = {jsontext.preview(parameters)}: expected an object"
        raise RequestError(text)
    return parameters


def _json(value: dict[str, Any], status: int = 200) -> RestResponse:
    return RestResponse(orjson.dumps(value), status)
