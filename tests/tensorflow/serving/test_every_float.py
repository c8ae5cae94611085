"""Every float there is leaves as JSON that reads back as the same value, by both protocols.

A model may answer any bit pattern: subnormals, infinities, quiet and signalling NaN. Types of 16
bits are tried whole; of the longer ones the corners and a sample of all bit patterns.
"""

import json

import ml_dtypes
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from roma.serving import oip_grpc, oip_rest
from roma.serving.oip import InferAnswer
from roma.serving.oip_tensors import DATATYPES, Header
from roma.tensors import tfjson
from roma.tensors.tfjson import Layout

SAMPLE = 20_000


def corners(fraction, exponent):
    """Bit patterns of both signs: zero, the ends of subnormals, of normals and of both NaNs."""
    infinity = (2**exponent - 1) << fraction
    quiet = 1 << (fraction - 1)
    found = [0, 1, 2**fraction - 1, 2**fraction, infinity - 1, infinity]
    found += [infinity + 1, infinity + quiet - 1, infinity + quiet, infinity + 2**fraction - 1]
    return [sign << (fraction + exponent) | bits for sign in (0, 1) for bits in found]


def patterns(dtype):
    bits = np.dtype(dtype).itemsize * 8
    unsigned = np.dtype(f"u{bits // 8}")
    if bits == 16:
        return np.arange(2**16, dtype=unsigned).view(dtype)
    ends = corners(23, 8) if bits == 32 else corners(52, 11)
    drawn = np.random.default_rng(bits).integers(0, 2**bits, SAMPLE, unsigned)
    return np.concatenate([np.array(ends, unsigned), drawn]).view(dtype)


def by_tensorflow_serving(values):
    (read,) = json.loads(tfjson.encode_predict({"y": values}, Layout.COLUMNAR)).values()
    return read


def by_open_inference(values):
    datatype = next(d for d in DATATYPES.values() if d.numpy == values.dtype)
    data = oip_rest.to_json(Header("y", datatype, values.shape), values)
    return json.loads(oip_rest._dump({"outputs": [{"data": data}]}))["outputs"][0]["data"]


def by_grpc(values):
    """In typed contents: raw ones are the array's own bytes."""
    datatype = next(d for d in DATATYPES.values() if d.numpy == values.dtype)
    answer = service_pb2.ModelInferResponse()
    outputs = [(Header("y", datatype, values.shape), values)]
    oip_grpc.encode_answer(InferAnswer(1, outputs), service_pb2.ModelInferRequest(), answer)
    contents = answer.outputs[0].contents
    return list(contents.fp32_contents or contents.fp64_contents)


@pytest.mark.parametrize(
    ("encode", "dtype"),
    [
        (by_tensorflow_serving, np.float32),
        (by_tensorflow_serving, np.float64),
        (by_open_inference, np.float16),
        (by_open_inference, ml_dtypes.bfloat16),
        (by_open_inference, np.float32),
        (by_open_inference, np.float64),
        (by_grpc, np.float32),
        (by_grpc, np.float64),
    ],
    ids=lambda value: value.__name__,
)
def test_every_float_reads_back_as_itself(encode, dtype):
    values = patterns(dtype)
    with np.errstate(invalid="ignore"):  # bfloat16's comparisons complain of a signalling NaN
        finite, is_nan = np.isfinite(values), np.isnan(values)
    assert is_nan.any()
    unsigned = f"u{values.itemsize}"
    # Finite numbers alone leave by the fast encoder; with one NaN among them, all by the slow one.
    for chosen in (finite, np.ones_like(finite)):
        read = np.array(encode(values[chosen]), np.float64).astype(dtype)
        np.testing.assert_array_equal(np.isnan(read), is_nan[chosen])
        numbers = ~is_nan[chosen]
        expected = values[chosen][numbers].view(unsigned)
        np.testing.assert_array_equal(read[numbers].view(unsigned), expected)
