"""PyTorch runtime, on CPU or GPU: TorchScript (`.pt`) and exported programs (`.pt2`).

A model's weights are one block of host memory, pinned if the device is a GPU, and the model's
parameters and buffers are views of it. LOAD copies that block to the device as a whole, at the full
speed of the bus and with one allocation, and points the views to the copy; UNLOAD points them back
and frees the copy. PyTorch allocates the block itself, so pages are only a count here, not
addresses: the allocator may fragment free memory, which the 16 MB pages of Clockwork's own runtime
(§5.2) rule out.

On a GPU each step has its own stream: LOAD, INPUT, EXEC and OUTPUT overlap, and a device runs one
of each at a time. On a CPU a LOAD is a copy from memory to memory; inputs and outputs are not
copied.

An exported program contains its signature. TorchScript does not; `model.pt.json` beside it gives
it:

    {"inputs": [["x", "float32", [-1, 3, 224, 224]]], "outputs": [["y", "float32", [-1, 1000]]]}
"""

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.utils import _pytree

from roma.device.runtimes.base import DEFAULT_SIGNATURE, RuntimeModel
from roma.device_protocol import BYTES, DTYPES, Array, Signature, TensorSpec
from roma.device_protocol.tensors import dtype_of
from roma.domain.actions import ModelCapabilities
from roma.domain.errors import ConfigError, LaunchError, RomaError, TensorError

RESERVED = 2**30
"""Bytes of a GPU reserved for workspace and inputs, 512 MB each (§5.2)."""
_ALIGNMENT = 512
"""Alignment in bytes, that of the GPU's own allocator."""

_DTYPES = {getattr(torch, name): name for name in sorted(DTYPES)}


class TorchRuntime:
    """Models by name, one file each; `device` is `cpu` or `cuda:N`.

    `threads` is the number of threads inside one operation on a CPU. Raises ConfigError for a
    missing device and LaunchError for a model that cannot be read.
    """

    def __init__(self, paths: Mapping[str, Path], device: str = "cpu", threads: int = 1) -> None:
        self._device = _device(device)
        self._count = threads
        self._counted = threading.local()
        self._is_cuda = self.copies = self._device.type == "cuda"
        self._idle: dict[str, list[Any]] = {"load": [], "input": [], "execute": [], "output": []}
        """Idle streams by step: one each, unless several threads execute."""
        self._models = {name: _read(name, path, self._device) for name, path in paths.items()}
        self.models = {
            name: RuntimeModel(model.host.numel(), {DEFAULT_SIGNATURE: model.signature})
            for name, model in self._models.items()
        }

    @property
    def memory(self) -> int | None:
        """Free bytes of the GPU minus RESERVED; None on a CPU."""
        if not self._is_cuda:
            return None
        return max(0, int(torch.cuda.mem_get_info(self._device)[0]) - RESERVED)

    def known(self, name: str) -> ModelCapabilities | None:
        """Return None: costs must be measured."""
        return None

    def load(self, name: str) -> None:
        """Copy the weights to the device and make the model use the copy."""
        model = self._models[name]
        if not self._is_cuda:
            model.use(model.host.clone())
            return
        with self._streaming("load"):
            block = torch.empty(model.host.shape, dtype=torch.uint8, device=self._device)
            block.copy_(model.host, non_blocking=True)
        model.use(block)

    def unload(self, name: str) -> None:
        """Make the model use host memory again and free its device memory."""
        # Nothing executes the model: the caller of an UNLOAD ensures that.
        self._models[name].use(self._models[name].host)

    def stage(self, name: str, inputs: Mapping[str, Array]) -> list[torch.Tensor]:
        """Copy the inputs to the device, in the model's order."""
        tensors = [torch.from_numpy(inputs[s.name]) for s in self._models[name].signature.inputs]
        if not self._is_cuda:
            return tensors
        with self._streaming("input"):
            return [
                # Only a copy from pinned memory runs concurrently with kernels.
                tensor.pin_memory().to(self._device, non_blocking=True)
                for tensor in tensors
            ]

    def execute(self, name: str, signature: str, staged: list[torch.Tensor]) -> list[torch.Tensor]:
        """Run the model on staged inputs."""
        if not hasattr(self._counted, "done"):
            # OpenMP's thread count is per calling thread, and BLAS uses only OpenMP's: without
            # this, 0.2 ms became 40 ms where two threads shared cores with other programs.
            torch.set_num_threads(self._count)
            self._counted.done = True
        try:
            with torch.inference_mode(), self._streaming("execute"):
                return _leaves(self._models[name].call(*staged))
        except (AssertionError, IndexError) as error:  # a guard of the export; an index
            raise TensorError(str(error)) from error

    def fetch(self, name: str, signature: str, outputs: list[torch.Tensor]) -> dict[str, Array]:
        """Copy outputs back from the device, under the signature's names."""
        if self._is_cuda:
            with torch.inference_mode(), self._streaming("output"):
                outputs = [_to_host(tensor) for tensor in outputs]
        specs = self._models[name].signature.outputs
        if len(outputs) != len(specs):
            raise RomaError(f"outputs = {len(outputs)}: must be {len(specs)}, as the .json says")
        found = {s.name: t.numpy() for s, t in zip(specs, outputs, strict=True)}
        for spec in specs:
            told, array = (spec.dtype, len(spec.shape)), found[spec.name]
            if told != (dtype_of(array), array.ndim):
                shape = f"{dtype_of(array)} {list(array.shape)}"
                raise RomaError(
                    f"output {spec.name} = {shape}: must be {spec.dtype} {list(spec.shape)}, "
                    "as the .json says"
                )
        return found

    def close(self) -> None:
        """Free every model."""
        self._models.clear()

    @contextmanager
    def _streaming(self, step: str) -> Iterator[None]:
        """Run the block in a stream of this step; at its end the device has finished the work.

        So tensors may pass from one step's stream to another's: each is complete before the next
        step sees it, and is no longer in use when it is freed. Streams are reused, because PyTorch
        caches memory freed in a stream for that stream only.
        """
        if not self._is_cuda:
            yield
            return
        idle = self._idle[step]
        stream: Any = idle.pop() if idle else _stream(self._device)
        try:
            with torch.cuda.stream(stream):
                yield
            stream.synchronize()
        finally:
            idle.append(stream)


@dataclass(slots=True)
class _Model:
    """A model, its weights in host memory, and the offset of each weight in that block."""

    signature: Signature
    call: Callable[..., Any]
    host: torch.Tensor
    """The block of weights, as bytes."""
    places: Sequence[tuple[torch.Tensor, int]]
    """Parameters and buffers, each with its byte offset in the block."""

    def use(self, block: torch.Tensor) -> None:
        """Make every parameter and buffer a view of this block."""
        with torch.no_grad():
            for tensor, start in self.places:
                tensor.data = _view(block, start, tensor)


def _stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # PyTorch has no types there


def _device(text: str) -> torch.device:
    try:
        device = torch.device(text)
    except RuntimeError:
        raise ConfigError(f"device = {text}: must be cpu or cuda:N") from None
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device.type != "cuda" or (device.index or 0) >= count:
        here = ", ".join(["cpu", *(f"cuda:{i}" for i in range(count))])
        raise ConfigError(f"device = {text}: must be one of {here}, which are here")
    return torch.device("cuda", device.index or 0)


def _read(name: str, path: Path, device: torch.device) -> _Model:
    is_exported = path.suffix == ".pt2"
    try:
        module, signature = _read_exported(path, device) if is_exported else _read_script(path)
        return _model(module, signature, is_pinned=device.type == "cuda")
    except RomaError as error:
        raise LaunchError(f"model {name}: {path}: {error}") from error
    except Exception as error:  # PyTorch's loaders raise what they like
        raise LaunchError(f"model {name}: {path}: cannot be loaded: {error}") from error


def _read_script(path: Path) -> tuple[Any, Signature]:
    text = path.with_name(path.name + ".json").read_bytes()
    signature = msgspec.json.decode(text, type=Signature)
    if any(spec.dtype == BYTES for spec in (*signature.inputs, *signature.outputs)):
        raise ConfigError(f"{path.name}.json: dtype = {BYTES}: PyTorch has no strings")
    with warnings.catch_warnings():
        # TorchScript is deprecated but still works, and its use here is intended.
        warnings.simplefilter("ignore", DeprecationWarning)
        module = torch.jit.load(str(path), map_location="cpu")  # type: ignore[no-untyped-call]  # likewise
    return module.eval(), signature


def _read_exported(path: Path, device: torch.device) -> tuple[Any, Signature]:
    with warnings.catch_warnings():
        # PyTorch 2.11 reads weights into `bytes`, which warns once a process; they are copied here.
        warnings.filterwarnings("ignore", "The given buffer is not writable", UserWarning)
        program = torch.export.load(path)
    signature = _signature(program)
    if device.type == "cpu":
        return program.module(), signature
    from torch.export.passes import move_to_device_pass  # noqa: PLC0415

    # The graph contains devices where it creates tensors. The pass also moves the weights, and
    # copies a weight that two layers share: restore the weights as they were read.
    weights = dict(program.state_dict)
    module = move_to_device_pass(program, device).module()
    module.load_state_dict(weights, strict=False, assign=True)  # the rest are constants
    return module, signature


def _signature(program: Any) -> Signature:
    """Return an exported program's signature, from the tensors that it was traced with."""
    inputs = set(program.graph_signature.user_inputs)
    outputs = program.graph_signature.user_outputs
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    names = [n.name for n in program.graph.nodes if n.op == "placeholder" and n.name in inputs]
    return Signature(
        tuple(_spec(name, values[name]) for name in names),
        tuple(
            _spec("output" if len(outputs) == 1 else f"output_{i}", values[name])
            for i, name in enumerate(outputs)
        ),
    )


def _spec(name: str, value: Any) -> TensorSpec:
    if not isinstance(value, torch.Tensor) or value.dtype not in _DTYPES or not value.dim():
        raise ConfigError(f"{name} = {value}: must be a tensor with a batch, of a type of NumPy's")
    # A free dimension is a symbol.
    shape = tuple(side if type(side) is int else -1 for side in value.shape)
    return TensorSpec(name, _DTYPES[value.dtype], shape)


def _model(module: Any, signature: Signature, *, is_pinned: bool) -> _Model:
    places: list[tuple[torch.Tensor, int]] = []
    size = 0
    shared: dict[tuple[int, torch.Size, torch.dtype], int] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        # A weight that layers share is stored once.
        key = tensor.data_ptr(), tensor.shape, tensor.dtype
        if key not in shared or not tensor.numel():
            shared[key] = size
            size += -(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        places.append((tensor, shared[key]))
    host = torch.empty(size, dtype=torch.uint8, pin_memory=is_pinned)
    with torch.no_grad():
        for tensor, start in places:
            _view(host, start, tensor).copy_(tensor)
    model = _Model(signature, module, host, places)
    model.use(host)
    return model


def _view(block: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    size = like.numel() * like.element_size()
    return block[start : start + size].view(like.dtype).view(like.shape)


def _leaves(outputs: Any) -> list[torch.Tensor]:
    leaves, _ = _pytree.tree_flatten(outputs)
    return list(leaves)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Start copying a tensor to pinned memory; the copy is complete when the stream is done."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)


def save_sample(path: Path) -> Path:
    """Write a network of three dense layers of 512 as an exported program; return its path."""
    torch.manual_seed(1)
    layers = [layer for _ in range(3) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]
    module = torch.nn.Sequential(*layers).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(module, (torch.zeros(2, 512),), dynamic_shapes=({0: batch},))
    torch.export.save(program, path)
    return path
