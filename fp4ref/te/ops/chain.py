"""A run of operations: their extra tensors, and neighbours that one kernel computes with one rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from fp4ref.te.errors import NotSupportedError, SettingError

Tensor = torch.Tensor


class Chain:
    """Operations one after another; num_extra_inputs: tensors that the caller gives besides the first.

    Errors: SettingError for a channel that is read before it is written, or that two operations write.
    """

    def __init__(self, modules: Iterable[Any]) -> None:
        self.operations: list[Any] = [operation for module in modules for operation in module.basic_operations()]
        self.num_extra_inputs = sum(op._extra_input_channels.count(None) for op in self.operations)
        self._entered = False
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
        for step in _steps(self.operations):
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
    """An operation, or two neighbours with the function that computes both."""

    operations: tuple[Any, ...]
    together: Callable[[Tensor], tuple[Tensor, Sequence[Tensor]]] | None = None

    def run(self, x: Tensor, extras: list[Tensor], keywords: dict[str, Any]) -> tuple[Tensor, Sequence[Tensor]]:
        """Return the result and the extra outputs."""
        if self.together is None:
            return self.operations[0].run(x, *extras, **keywords)  # type: ignore[no-any-return]
        if keywords:
            names = " and ".join(type(op).__name__ for op in self.operations)
            raise NotSupportedError(names, f"arguments {', '.join(keywords)}", "none for neighbours")
        return self.together(x)


def _steps(operations: Sequence[Any]) -> list[_Step]:
    """Return the operations, those that one kernel computes in one step."""
    steps: list[_Step] = []
    for op in operations:
        before = steps[-1] if steps and steps[-1].together is None else None
        together = before.operations[0].with_next(op) if before else None
        if before and together is not None:
            steps[-1] = _Step((*before.operations, op), together)
        else:
            steps.append(_Step((op,)))
    for left, right in pairwise(steps):
        right.operations[0].require_neighbour(left.operations)
    return steps
