"""The gains of `late_share`, apart from the law, which is compiled.

pydantic reads their bounds from the annotations, which a compiled class does not keep.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field


@dataclass(frozen=True, slots=True)
class LateShareGains:
    """`step` is s: how much of a nat one late request moves the margin."""

    step: Annotated[float, Field(gt=0, le=1)] = 0.1
