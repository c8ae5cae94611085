"""Nodes as the API server describes them, reduced to what placement of workers needs. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the cluster."""

    name: str


def parse_node(found: Mapping[str, Any]) -> Node:
    """Return a node from its JSON object; raise ValueError for an object that is none."""
    try:
        return Node(str(found["metadata"]["name"]))
    except (KeyError, TypeError) as error:
        raise ValueError(f"an object that is no node: {error!r}") from error
