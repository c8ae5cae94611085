"""ROMA: the vocabulary shared by both halves, and the wiring that starts them.

This file imports nothing of it, so that a core module can use the vocabulary without dragging in
the wiring above it. `roma.aiohttp_app` is `dispatcher.live.aiohttp_endpoint`'s.
"""

from importlib import import_module
from typing import Any

__all__ = ["aiohttp_app"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("dispatcher.live.aiohttp_endpoint"), name)
