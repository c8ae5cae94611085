"""The fixtures of a device server, which these runtimes stand behind, too."""

from tests.protocol.device.conftest import working

__all__ = ["working"]
