"""What protobuf's own classes read of a request, beside the dispatcher's reader."""

from google.protobuf.message import DecodeError
from tensorflow_serving.apis.get_model_status_pb2 import GetModelStatusRequest

from dispatcher.live.grpc import wire


def truth(spec):
    """What protobuf's own classes say."""
    which = spec.WhichOneof("version_choice")
    version = spec.version.value if which == "version" else None
    return wire.WireModelSpec(
        spec.name, version, spec.version_label if which == "version_label" else None
    )


def agrees(data):
    """Whether both read the same, or refuse the same, of any bytes.

    A GetModelStatusRequest has no field but the model: what protobuf refuses, it refuses for what
    is read here too, but for the text of a signature's name, which is left to the model server.
    """
    try:
        expected = truth(GetModelStatusRequest.FromString(data).model_spec)
    except DecodeError:
        expected = None
    try:
        found = wire.model_spec(data)
    except wire.Malformed:
        found = None
    return found == expected or (expected is None and _has_bad_signature(data))


def _has_bad_signature(data):
    reader = wire._Reader(data)
    for number, kind, begins, ends in reader.fields(0, len(data)):
        if (number, kind) == (1, 2):
            for inner, inner_kind, a, b in reader.fields(begins, ends):
                if (inner, inner_kind) == (3, 2):
                    try:
                        data[a:b].decode()
                    except UnicodeDecodeError:
                        return True
    return False
