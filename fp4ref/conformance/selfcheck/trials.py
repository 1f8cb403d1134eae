"""The aimed tensors on which a backend is compared with the golden model."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.catalogue import PROFILES
from fp4ref.conformance.families import FAMILIES, Case, Reach, case_of, members
from fp4ref.conformance.families.variants import Topic
from fp4ref.layout import Layout, layout, scale_layouts
from fp4ref.quantized import DIRECTIONS, DirectionData
from fp4ref.registry import Call
from fp4ref.spec import Spec
from fp4ref.specs import MXFP4, NVFP4, STANDARD, STOCHASTIC

PEERS = (
    "torchao.nvfp4_2lvl",
    "torchao.nvfp4_1lvl",
    "torchao.mxfp4_floor",
    "torchao.mxfp8_e5m2_even",
    "modelopt.nvfp4",
    "modelopt.mxfp4",
    "compressed_tensors.nvfp4",
    "deepgemm.mxfp4_ue8m0",
    "fouroversix.nvfp4_mse",
    "fouroversix.nvfp4_static_4",
    "flashinfer.ref_nvfp4_te_pertoken",
    "flashinfer.ref_4over6_mae_448_fast",
    "jax.nvfp4",
    "microxcaling.mxfp8_e4m3_even",
    "te.fast_math_1d",
    "te.mxfp8_cast_only",
    "vllm.nvfp4_kernel",
)
OFTEN = (NVFP4, MXFP4)  # specifications whose cases include large tensors
LARGE = ("large", "layout", "everywhere", "sizes")
SHAPES = ("ragged", "axes", "empty")  # which a profile does not change
REACH = Reach(encoded=True)
WITNESSES = frozenset(Topic)  # searched for in one type, for the standard's own specifications


@dataclass(frozen=True)
class BackendTrial:
    """An aimed case, where its scales are to lie, and the type that its bytes are dequantized to."""

    case: Case
    scale_layout: str
    to: str

    @property
    def id(self) -> str:
        """The trial's distinguishing settings."""
        return f"{self.case.spec.name}/{self.case.id}/{self.scale_layout}"

    @cached_property
    def order(self) -> Layout:
        """The layout of the scales."""
        return layout(self.scale_layout)

    @property
    def rules(self) -> tuple[str, ...]:
        """Rules of the case and of the layout."""
        return *self.case.rules, *self.order.rules

    @cached_property
    def calls(self) -> tuple[Call, Call]:
        """The call that quantizes and the call that dequantizes, without shapes."""
        spec, source, direction = self.case.spec, self.case.x.dtype.name, self.case.direction
        quantize = Call("quantize", spec, source, direction, layout=self.order)
        return quantize, replace(quantize, operation="dequantize", to=self.to)


@dataclass(frozen=True)
class Expected:
    """The golden model's bytes of a case, and the values that they stand for."""

    placed: PlacedTrial
    values: NDArray[Any]


@dataclass(frozen=True)
class PlacedTrial:
    """Bytes with linear scales, and the layout in which a trial stores these."""

    data: DirectionData
    order: Layout

    @cached_property
    def stored(self) -> DirectionData:
        """The bytes with their scales in the layout."""
        return self.data._replace(scales=self.order.from_linear(self.data.scales))

    @cached_property
    def inside(self) -> NDArray[np.bool_]:
        """True for the units of stored scales that are scales, not padding."""
        return self.order.valid(*self.data.scales.shape)


def specs() -> list[Spec]:
    """Return the standard's specifications, stochastic ones, and some of every kind of profile."""
    return [*STANDARD, *STOCHASTIC[:2], *(PROFILES[name] for name in PEERS)]


def trials() -> Iterator[BackendTrial]:
    """Yield the families under every specification; directions, types and layouts take turns."""
    turn, number, orders = itertools.count(), itertools.count(), scale_layouts()
    for index, spec in enumerate(specs()):
        for family in FAMILIES.values():
            searched = family.name in WITNESSES
            if family.name in LARGE and spec not in OFTEN:
                continue
            if (searched or family.name in SHAPES) and spec not in STANDARD:
                continue
            some = DIRECTIONS if spec in STANDARD and not searched else DIRECTIONS[next(turn) % 2 :][:1]
            for direction in some:
                dtypes = _dtypes(index, spec)
                dtype = dtypes[0 if searched else next(turn) % len(dtypes)]
                transformed = spec.hadamard and direction == "column"
                for member in members(family, spec, "bfloat16" if transformed else dtype, direction, REACH):
                    count = next(number)
                    places = orders[count % len(orders)].name, dtypes[count % 7 % len(dtypes)]
                    yield BackendTrial(case_of(family, member, spec, direction), *places)


def _dtypes(index: int, spec: Spec) -> list[str]:
    """Return the types that the trials of a specification have: one, or all in turn for the standard's own."""
    names = [*INPUT_DTYPES]
    start = index % len(names)
    return [*names[start:], *names[:start]] if spec in STANDARD else names[start : start + 1]


def calls() -> Iterator[Call]:
    """Yield what the trials will ask of a backend."""
    for index, spec in enumerate(specs()):
        for source in _dtypes(index, spec):
            yield Call("quantize", spec, source)
            yield from (Call("dequantize", spec, source, to=to) for to in _dtypes(index, spec))
        if spec.hadamard:
            yield Call("quantize", spec, "bfloat16", "column")
