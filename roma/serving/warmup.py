"""Warm-up of a version before it is AVAILABLE, so that no client waits for a slow first run.

A model's folder may contain warm-up requests: `assets.extra/tf_serving_warmup_requests`, TensorFlow
Serving's records of PredictionLogs, and `assets.extra/roma_warmup.json`, one predict body. They are
replayed. Without either, one example of zeros is computed.

Source: tensorflow_serving/servables/tensorflow/{saved_model_warmup, saved_model_warmup_util}.cc.
"""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from roma.serving import predict_messages, session
from roma.serving.api import ServingAction
from roma.serving.errors import Code, RequestError
from roma.serving.inference import infer
from roma.serving.session import LoadedModel
from roma.tensors.arrays import NUMPY_TYPES, Array, ServingSignature
from roma.tensors.jsontext import parse
from roma.tensors.tfjson import DEFAULT_SIGNATURE

WARM_UP_FILE = Path("assets.extra/roma_warmup.json")
RECORDS_FILE = Path("assets.extra/tf_serving_warmup_requests")

MAX_RECORDS = 1000
"""Most records of a file, TensorFlow Serving's own limit: a longer file is refused."""

MAX_TENSOR_BYTES = 2**31 - 1
"""Largest tensor of a record in bytes; records are trusted as much as the model itself."""

_log = logging.getLogger(__name__)


def warm_up(model: LoadedModel, path: Path) -> None:
    """Run the requests in the version's folder `path`; raises RequestError or TensorFlow's errors.

    A failing request fails the version's load, as in TensorFlow Serving.
    """
    body, records = path / WARM_UP_FILE, path / RECORDS_FILE
    if body.exists():
        _answer(model, body)
    if records.exists():
        _replay(model, records)
    elif not body.exists():
        _try_zeros(model, path)


def invent(signature: ServingSignature) -> dict[str, Array] | None:
    """Return zeros in the shape of one example, or None if the signature does not allow it."""
    inputs: dict[str, Array] = {}
    for spec in signature.inputs.values():
        if spec.shape is None or spec.dtype == "string" or spec.dtype not in NUMPY_TYPES:
            return None
        shape = tuple(1 if size < 0 else size for size in spec.shape)
        inputs[spec.name] = np.zeros(shape, NUMPY_TYPES[spec.dtype])
    return inputs


def _answer(model: LoadedModel, file: Path) -> None:
    try:
        infer(model, ServingAction.PREDICT, parse(file.read_bytes()))
    except RequestError as error:
        raise RequestError(f"{file}: {error}", error.code) from error


def _replay(model: LoadedModel, file: Path) -> None:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # noqa: PLC0415
    from tensorflow_serving.apis import prediction_log_pb2  # noqa: PLC0415

    records = session.import_tensorflow().compat.v1.io.tf_record_iterator(str(file))
    for number, record in enumerate(records, start=1):
        where = f"{file}: record {number}"
        if number > MAX_RECORDS:
            raise RequestError(f"{where}: expected at most {MAX_RECORDS} records")
        try:
            log = prediction_log_pb2.PredictionLog.FromString(record)
        except DecodeError:
            raise RequestError(f"{where}: it is no tensorflow.serving.PredictionLog") from None
        try:
            _run(model, log)
        except RequestError as error:
            raise RequestError(f"{where}: {error}", error.code) from error


def _run(model: LoadedModel, log: Any) -> None:
    from tensorflow_serving.apis import (  # noqa: PLC0415
        classification_pb2,
        inference_pb2,
        predict_pb2,
        regression_pb2,
    )

    match log.WhichOneof("log_type"):
        case "predict_log":
            request, response = log.predict_log.request, predict_pb2.PredictResponse()
            predict_messages.predict(model, request, response, MAX_TENSOR_BYTES)
        case "classify_log":
            answer = classification_pb2.ClassificationResponse()
            predict_messages.classify(model, log.classify_log.request, answer)
        case "regress_log":
            values = regression_pb2.RegressionResponse()
            predict_messages.regress(model, log.regress_log.request, values)
        case "multi_inference_log":
            results = inference_pb2.MultiInferenceResponse()
            predict_messages.infer_tasks(model, log.multi_inference_log.request, results)
        case None:
            pass  # an empty log asks for nothing
        case other:
            raise RequestError(f"Unsupported log_type for warmup: {other}", Code.UNIMPLEMENTED)


def _try_zeros(model: LoadedModel, path: Path) -> None:
    """Run the default signature once, so that the first request is no slower than the second."""
    signature = model.signatures.get(DEFAULT_SIGNATURE)
    inputs = signature and invent(signature)
    if not inputs:
        return
    try:
        model.run(DEFAULT_SIGNATURE, inputs)
    except RequestError as error:
        # The input was invented: a refusal is no evidence about real inputs.
        _log.info("%s: no warm-up: %s", path, error)
