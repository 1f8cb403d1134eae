"""A run of operations: their extra tensors, and neighbours that one kernel computes with one rounding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from fp4ref.te.errors import NotSupportedError, SettingError
from fp4ref.te.ops.fused import BackwardActivationBias, Together

Tensor = torch.Tensor


class Chain:
    """Operations one after another; num_extra_inputs: tensors that the caller gives besides the first.

    Errors: SettingError for a channel that is read before it is written, or that two operations write.
    """

    def __init__(self, modules: Iterable[Any]) -> None:
        self.operations: list[Any] = [operation for module in modules for operation in module.basic_operations()]
        self.num_extra_inputs = sum(op._extra_input_channels.count(None) for op in self.operations)
        self._entered = False
        self._last: list[_Step] = []
        self._require_channels()

    def __call__(self, x: Tensor, *extra_inputs: Tensor, arguments: Mapping[int, dict[str, Any]] | None = None) -> Any:
        """Return the result, then the extra outputs that go to the caller.

        arguments: further arguments of an operation, by its id.

        Rules: TEM-32, TEM-33, TEM-34, TEM-35.
        """
        if len(extra_inputs) != self.num_extra_inputs:
            got = f"{len(extra_inputs)} extra inputs"
            raise SettingError("Sequential", got, f"{self.num_extra_inputs} for these operations")
        self._prepare(x)
        given, channels, results = iter(extra_inputs), dict[str, Tensor](), list[Tensor]()
        self._last = _steps(self.operations)
        for step in self._last:
            extras = [
                next(given) if channel is None else channels[channel]
                for op in step.operations
                for channel in op._extra_input_channels
            ]
            keywords = {
                name: value for op in step.operations for name, value in (arguments or {}).get(id(op), {}).items()
            }
            x, outputs = step.run(x, extras, keywords)
            names = [name for op in step.operations for name in op._extra_output_channels]
            for output, (channel, to_caller) in zip(outputs, names, strict=True):
                if channel is not None:
                    channels[channel] = output
                if to_caller:
                    results.append(output)
        return (x, *results) if results else x

    @property
    def _forward_ops(self) -> list[tuple[Any, list[int]]]:
        """The kernels of the last call's forward pass, by the library's name: operations, and their indices."""
        return [each for step in self._last for each in step.listed(forward=True)]

    @property
    def _backward_ops(self) -> list[tuple[Any, list[int]]]:
        """The kernels of its backward pass, in the order of the operations."""
        return _with_activations([each for step in self._last for each in step.listed(forward=False)])

    def _prepare(self, x: Tensor) -> None:
        """Tell every operation that a call begins, and whether a gradient goes through it."""
        if not self._entered:
            for op in self.operations:
                op.pre_first_fuser_forward()
        self._entered = True
        wanted = torch.is_grad_enabled()
        reached = wanted and x.requires_grad
        for op in self.operations:
            reached = reached or (wanted and any(parameter.requires_grad for parameter in op.parameters()))
            op.pre_fuser_forward(requires_grad=reached)

    def _require_channels(self) -> None:
        written: set[str] = set()
        for op in self.operations:
            for channel in op._extra_input_channels:
                if channel is not None and channel not in written:
                    raise SettingError(type(op).__name__, f"channel {channel!r} read", "an earlier operation writes it")
            for channel, _ in op._extra_output_channels:
                if channel in written:
                    raise SettingError(type(op).__name__, f"channel {channel!r} written again", "one that writes it")
                if channel is not None:
                    written.add(channel)


@dataclass(frozen=True)
class _Step:
    """An operation, or neighbours with the function that computes them; index: that of the first one."""

    operations: tuple[Any, ...]
    index: int
    together: Together | None = None

    def run(self, x: Tensor, extras: list[Tensor], keywords: dict[str, Any]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the result and the extra outputs."""
        if self.together is None:
            return self.operations[0].run(x, *extras, **keywords)  # type: ignore[no-any-return]
        if keywords:
            names = " and ".join(type(op).__name__ for op in self.operations)
            raise NotSupportedError(names, f"arguments {', '.join(keywords)}", "none for neighbours")
        return self.together.call(x, *extras)

    def listed(self, *, forward: bool) -> list[tuple[Any, list[int]]]:
        """Return the operations with their indices, as one where one kernel of a pass computes them."""
        indices = [*range(self.index, self.index + len(self.operations))]
        listed = [(op, [index]) for op, index in zip(self.operations, indices, strict=True)]
        if self.together is not None:
            kind = self.together.forward if forward else self.together.backward
            part = slice(*(self.together.forward_of if forward else self.together.backward_of))
            if kind is not None:
                listed[part] = [(kind(self.operations[part]), indices[part])]
        return listed


def _steps(operations: Sequence[Any]) -> list[_Step]:
    """Return the operations, those that one kernel computes in one step."""
    steps: list[_Step] = []
    index = 0
    while index < len(operations):
        together = operations[index].with_next(operations[index + 1 :])
        count = 1 if together is None else together.count
        steps.append(_Step(tuple(operations[index : index + count]), index, together))
        index += count
    for left, right in pairwise(steps):
        right.operations[0].require_neighbour(left.operations)
    return steps


def _with_activations(listed: list[tuple[Any, list[int]]]) -> list[tuple[Any, list[int]]]:
    """Join a bias and its activation where the gradient behind them is quantized."""
    result: list[tuple[Any, list[int]]] = []
    for op, indices in listed:
        behind = [earlier for earlier, _ in result[-2:]]
        if (
            getattr(op, "joins_bias", False)
            and len(behind) == 2
            and behind[1].takes_activation
            and _quantizes(behind[0])
        ):
            bias, index = result.pop()
            result.append((BackwardActivationBias((bias, op)), [*index, *indices]))
        else:
            result.append((op, indices))
    return result


def _quantizes(op: Any) -> bool:
    return getattr(op, "fp8", False) and "grad_output" in op.operand_roles(False) and op.backward_override is None
