"""A container of modules in which neighbouring operations run as one chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Self

import torch

from fp4ref.te.errors import SettingError
from fp4ref.te.module.compilation import not_compiled
from fp4ref.te.ops.chain import Chain
from fp4ref.te.ops.operation import FusibleOperation

Module = torch.nn.Module


class Sequential(Module):
    """Modules one after another, as a list; a dict of modules gives them names.

    Other modules than operations take and return one tensor. Extra inputs of operations come from the caller, in order,
    and extra outputs are returned behind the result.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        self._runs: list[Chain | Module] | None = None
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, module)
        else:
            self.extend(modules)

    def add_module(self, name: str, module: Module | None) -> None:
        """Add a module at the end."""
        self._runs = None
        super().add_module(name, module)

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        names = self._names(index)
        if isinstance(index, slice):
            return Sequential(*(self._modules[name] for name in names))
        return self._modules[names[0]]

    def __setitem__(self, index: int, module: Module) -> None:
        self._runs = None
        self._modules[self._names(index)[0]] = module

    def __delitem__(self, index: int | slice) -> None:
        self._runs = None
        for name in self._names(index):
            del self._modules[name]

    def __add__(self, modules: Iterable[Module]) -> Sequential:
        return Sequential(*self, *modules)

    def __iadd__(self, modules: Iterable[Module]) -> Self:
        self.extend(modules)
        return self

    def append(self, module: Module) -> Sequential:
        """Add a module at the end, under the next free number."""
        numbers = [int(name) for name in self._modules if name.isdecimal()]
        self.add_module(str(max(numbers, default=-1) + 1), module)
        return self

    def extend(self, modules: Iterable[Module]) -> Sequential:
        """Add modules at the end."""
        for module in modules:
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Sequential:
        """Add a module before another; the ones behind it move to the next names."""
        behind = [module, *self._modules.values()][1:][index:]
        names = self._names(slice(index, None))
        self.append(module)
        for name, moved in zip([*names, [*self._modules][-1]], [module, *behind], strict=True):
            self._modules[name] = moved
        return self

    def pop(self, index: int | slice) -> Any:
        """Take modules away and return them."""
        taken = self[index]
        del self[index]
        return taken

    @property
    def _module_groups(self) -> list[Chain | Module] | None:
        """Chains of operations and the modules between them, by the library's name; None before the first call."""
        return self._runs

    def _names(self, index: int | slice) -> list[str]:
        names = [*self._modules]
        return names[index] if isinstance(index, slice) else [names[index]]

    @not_compiled
    def forward(
        self,
        input: torch.Tensor,  # noqa: A002 - the original's name
        *extra_inputs: torch.Tensor,
        op_kwargs: Mapping[Module | int, dict[str, Any]] | None = None,
    ) -> Any:
        """Return the result, then the extra outputs.

        op_kwargs: further arguments of an operation, by the operation or its index.

        Errors: SettingError.
        """
        if self._runs is None:
            self._runs = _runs(self)
        arguments = {id(self[key] if isinstance(key, int) else key): value for key, value in (op_kwargs or {}).items()}
        known = {id(op) for run in self._runs if isinstance(run, Chain) for op in run.operations}
        if set(arguments) - known:
            raise SettingError("Sequential", "op_kwargs for a module that is no operation of it", "its own operations")
        x, given, results = input, list(extra_inputs), list[torch.Tensor]()
        for run in self._runs:
            if not isinstance(run, Chain):
                x = run(x)
                continue
            x = run(x, *given[: run.num_extra_inputs], arguments=arguments)
            del given[: run.num_extra_inputs]
            if isinstance(x, tuple):
                results += x[1:]
                x = x[0]
        if given:
            raise SettingError("Sequential", f"{len(given)} extra inputs too many", "one for each that is read")
        return (x, *results) if results else x


def _runs(modules: Iterable[Module]) -> list[Chain | Module]:
    """Return chains of neighbouring operations, and the other modules between them."""
    runs: list[Chain | Module] = []
    for fusible, neighbours in groupby(modules, key=lambda module: isinstance(module, FusibleOperation)):
        if fusible:
            runs.append(Chain(list(neighbours)))
        else:
            runs += neighbours
    return runs
