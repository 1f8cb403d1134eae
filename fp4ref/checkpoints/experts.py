"""Experts that a model keeps in one tensor, such as gpt-oss's in high precision: views of each, as a weight [N, K].

Rules: CNV-24.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.convention import FLOATS
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.errors import DomainError
from fp4ref.files.tensors import DTYPES

STACK = re.compile(r"(?P<head>.*\bexperts)\.(?P<part>gate_up_proj|gate_proj|up_proj|down_proj)(\.weight)?")
JOINED = {"gate_up_proj": ("gate_proj", "up_proj")}  # tensors with the rows of two weights
INTERLEAVED = ("gpt_oss",)  # models whose joined rows alternate; those of others are two halves


class ExpertStack(NamedTuple):
    """A tensor of experts. shape: [experts, N, K]; turned: it is stored as [experts, K, N]."""

    tensor: StoredTensor
    head: str
    part: str
    shape: tuple[int, ...]
    turned: bool
    interleaved: bool

    @property
    def module(self) -> str:
        """The module's name."""
        return f"{self.head}.{self.part}"

    def whole(self) -> StoredTensor:
        """Return all experts as one tensor [experts, N, K]."""
        return self._view(f"{self.module}.weight", self.shape, range(self.shape[0]), slice(None))

    def parts(self, bias: StoredTensor | None) -> Iterator[StoredTensor]:
        """Yield the weights of each expert, and their biases."""
        names = JOINED.get(self.part, (self.part,))
        for expert in range(self.shape[0]):
            for number, name in enumerate(names):
                rows = self.shape[1] // len(names)
                taken = slice(number, None, 2) if self.interleaved else slice(number * rows, (number + 1) * rows)
                module = f"{self.head}.{expert}.{name}"
                yield self._view(f"{module}.weight", (rows, self.shape[2]), range(expert, expert + 1), taken)
                if bias is not None:
                    flat = self._replace(tensor=bias, shape=(*bias.shape, 1), turned=False)
                    yield flat._view(f"{module}.bias", (rows,), range(expert, expert + 1), taken)

    def _view(self, name: str, shape: tuple[int, ...], experts: range, rows: slice) -> StoredTensor:
        first = self.tensor
        count = first.count // first.size
        for size in shape:
            count *= size
        return ExpertView(name, first.dtype, shape, first.shard, first.start, count, self, experts, rows)


@dataclass(frozen=True)
class ExpertView(StoredTensor):
    """Some rows of the weights of some experts of a stack."""

    stack: ExpertStack
    experts: range
    taken: slice

    def bytes(self, begin: int = 0, count: int | None = None) -> bytes:
        """Return some of the tensor's bytes."""
        count = self.count - begin if count is None else count
        each = self.count // len(self.experts)
        found = []
        while count:
            number, offset = divmod(begin, each)
            rows = _expert(self.stack, self.experts[number])[self.taken]
            width = each // len(rows)
            last = min(offset + count, each)
            part = np.ascontiguousarray(rows[offset // width : -(-last // width)]).view(np.uint8).reshape(-1)
            found.append(part[offset % width :][: last - offset].tobytes())
            begin, count = begin + last - offset, count - (last - offset)
        return b"".join(found)

    def fill(self, begin: int, buffer: memoryview) -> None:
        """Fill a buffer with the tensor's bytes from a position on."""
        buffer[:] = self.bytes(begin, len(buffer))


_kept = threading.local()  # the expert that a thread read last, with its key


def _expert(stack: ExpertStack, number: int) -> NDArray[Any]:
    """Return an expert's weight, [N, K]; the last one is kept, since its parts are read one after the other."""
    tensor, (experts, rows, columns) = stack.tensor, stack.shape
    key = tensor.shard.path, tensor.start, number
    if getattr(_kept, "key", None) != key:
        size = tensor.count // experts
        bits = np.dtype(f"u{DTYPES[tensor.dtype].bits // 8}")
        values = np.frombuffer(tensor.bytes(number * size, size), bits)
        _kept.matrix = values.reshape(columns, rows).T if stack.turned else values.reshape(rows, columns)
        _kept.key = key
    matrix: NDArray[Any] = _kept.matrix
    return matrix


def stacks(checkpoint: Checkpoint, *, wanted: Callable[[str], bool] = lambda module: True) -> list[ExpertStack]:
    """Return the stacks of experts in high precision that are wanted by their module's name or an expert's.

    Errors: DomainError if the sizes that the configuration declares do not tell which axis is the input.

    Rules: CNV-24.
    """
    config = checkpoint.config or {}
    model = {**config, **(config["text_config"] if isinstance(config.get("text_config"), dict) else {})}
    found: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        match = STACK.fullmatch(name)
        if match and tensor.dtype in FLOATS and len(tensor.shape) == 3 and min(tensor.shape) > 0:
            found.setdefault(match["head"], {})[match["part"]] = tensor
    result = []
    for head, parts in found.items():
        turned = _turned(model, parts)
        for part, tensor in parts.items():
            names = JOINED.get(part, (part,))
            each = (f"{head}.{expert}.{name}" for expert in range(tensor.shape[0]) for name in names)
            if not wanted(f"{head}.{part}") and not any(map(wanted, each)):
                continue
            if turned is None:
                needed = "hidden_size and intermediate_size in config.json that tell which axis is the input"
                raise DomainError("quantize", f"{tensor.name} of shape {[*tensor.shape]}", needed, "CNV-24")
            count, one, two = tensor.shape
            shape = (count, two, one) if turned else tensor.shape
            interleaved = part in JOINED and model.get("model_type") in INTERLEAVED
            result.append(ExpertStack(tensor, head, part, shape, turned, interleaved))
    return result


def _turned(model: dict[str, Any], parts: dict[str, StoredTensor]) -> bool | None:
    """Return True for [experts, K, N], False for [experts, N, K], None if the declared sizes do not tell."""
    inner = {value for key, value in model.items() if key.endswith("intermediate_size") and isinstance(value, int)}
    hidden, said = model.get("hidden_size"), set[bool]()
    for part, tensor in parts.items():
        outputs = {size * len(JOINED.get(part, (part,))) for size in inner}
        pairs = {(hidden, size) for size in inner} if part == "down_proj" else {(size, hidden) for size in outputs}
        ways = {turned for turned in (False, True) if (tensor.shape[1:][::-1] if turned else tensor.shape[1:]) in pairs}
        said |= ways if len(ways) == 1 else set()
    return said.pop() if len(said) == 1 else None


def with_each_expert(checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint that has each expert, and all as [experts, N, K], beside the stacks whose form is known.

    Rules: CNV-24, CNV-58.
    """
    try:
        found = stacks(checkpoint)
        views = [with_experts(checkpoint, found, whole=whole).tensors for whole in (True, False)] if found else []
    except DomainError:
        return checkpoint
    return replace(checkpoint, tensors={**checkpoint.tensors, **{name: each[name] for each in views for name in each}})


def with_experts(checkpoint: Checkpoint, found: list[ExpertStack], *, whole: bool) -> Checkpoint:
    """Return a checkpoint whose stacks are replaced by weights [experts, N, K], or by the weights of each expert.

    Rules: CNV-24.
    """
    views, gone = dict[str, StoredTensor](), set[str]()
    for each in found:
        bias = checkpoint.tensors.get(f"{each.module}_bias")
        if bias is not None and bias.shape != each.shape[:2]:
            bias = None
        gone |= {each.tensor.name} | ({bias.name} if bias is not None and not whole else set())
        made = [each.whole()] if whole else each.parts(bias)
        views |= {tensor.name: tensor for tensor in made}
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name not in gone}
    if taken := views.keys() & kept.keys():
        needed = "experts in one form"
        raise DomainError("quantize", f"{min(taken)} in a stack and alone", needed, "CNV-24")
    return replace(checkpoint, tensors={**kept, **views})
