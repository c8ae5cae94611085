"""The device of tests/protocol/device, with real models."""

from tests.protocol.device.conftest import working

__all__ = ["working"]
