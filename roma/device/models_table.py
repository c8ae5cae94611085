"""The models of Clockwork's Table 1 as data, for emulated and simulated devices.

The paper measured them on an NVIDIA Tesla V100 with TVM 0.7. Megabytes and kilobytes are powers of
ten: ResNet50 has 25.56 million weights of four bytes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from roma.domain.actions import BATCHES, ModelCapabilities, pages_of
from roma.domain.errors import ConfigError

MAX_COPIES = 10_000
"""Most copies of one model on one device; the paper's largest experiment has 4,026 models."""


@dataclass(frozen=True, slots=True)
class TableModel:
    """A row of the table; sizes in bytes, times in seconds."""

    weights: float
    transfer: float
    """Seconds of the copy from host to device."""
    executions: Mapping[int, float]
    """Seconds of an execution by batch size."""
    input_shape: tuple[int, ...]
    """Shape of one example of 32-bit numbers; its bytes equal the table's input size."""
    output_shape: tuple[int, ...]

    @property
    def pages(self) -> int:
        """Number of pages that the weights fill."""
        return pages_of(self.weights)

    def offer(self) -> ModelCapabilities:
        """Return the row as a device would have measured it."""
        return ModelCapabilities(self.pages, self.transfer, dict(self.executions))


def _row(
    megabytes: float,
    transfer_ms: float,
    executions_ms: tuple[float, ...],
    input_shape: tuple[int, ...],
    output_shape: tuple[int, ...] = (1000,),
) -> TableModel:
    executions = {b: round(ms / 1e3, 5) for b, ms in zip(BATCHES, executions_ms, strict=True)}
    return TableModel(
        megabytes * 1e6, round(transfer_ms / 1e3, 5), executions, input_shape, output_shape
    )


_IMAGE = (3, 224, 224)
TABLE_1: Mapping[str, TableModel] = {
    "densenet169": _row(56.5, 4.50, (5.18, 6.29, 8.57, 12.82, 21.85), _IMAGE),
    "inceptionv3": _row(95.3, 7.77, (4.46, 6.85, 10.99, 16.45, 26.17), (3, 299, 299)),
    "mobile_pose_mobilenetv3": _row(
        19.0, 1.55, (1.29, 1.92, 3.13, 5.71, 11.62), (3, 256, 192), (17, 64, 48)
    ),
    "resnet18": _row(46.7, 3.81, (1.27, 1.86, 2.73, 4.06, 7.02), _IMAGE),
    "resnet50": _row(102.3, 8.33, (2.61, 3.78, 5.61, 9.13, 15.67), _IMAGE),
    "resnet152": _row(240.9, 19.58, (7.71, 11.14, 16.21, 26.48, 44.60), _IMAGE),
}


def parse(text: str) -> dict[str, int]:
    """Parse counts such as `resnet50:15,resnet18:3`; return the number of copies by model.

    Raises ConfigError naming the model, the count and the bound.
    """
    counts: dict[str, int] = {}
    for part in text.split(","):
        name, _, count = part.strip().partition(":")
        if name not in TABLE_1:
            raise ConfigError(f"model = {name}: must be one of {', '.join(TABLE_1)}")
        if not (count.isascii() and count.isdigit() and 1 <= int(count) <= MAX_COPIES):
            raise ConfigError(f"{name}: count = {count}: must be from 1 to {MAX_COPIES}")
        counts[name] = counts.get(name, 0) + int(count)
    return counts


def copies(counts: Mapping[str, int]) -> dict[str, TableModel]:
    """Return so many copies of each model, by name: resnet50-0 and so on."""
    return {f"{name}-{i}": TABLE_1[name] for name, count in counts.items() for i in range(count)}


def offers(counts: Mapping[str, int]) -> dict[str, ModelCapabilities]:
    """Return the capabilities of `copies`."""
    return {name: model.offer() for name, model in copies(counts).items()}
