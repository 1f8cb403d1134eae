"""A quantizer whose every stage can be replaced: what a known mistake changes.

The stages and their order are the golden model's; a Kernel made from a Spec has its bytes. Everything up to the scale
bytes is `scale_side`, the rest `code_side`, so that scales are explained before codes are looked at.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref import hadamard
from fp4ref.arithmetic import BlockScale, Constants, Global, Scaled, Working
from fp4ref.conformance.mistakes.places import Place
from fp4ref.formats import Codec, Codes, F, Floats
from fp4ref.model.quantize import largest
from fp4ref.quantized import Direction
from fp4ref.spec import Amax, Block, FourOverSix, Spec, Subnormals

Map = Callable[[Floats], Floats]


BlockAmax = Callable[[Floats, bool], Floats]  # (blocks [down, across, rows, columns], keep NaN) -> their maxima


Codes2 = Callable[[Codes], Codes]


ElementGlobal = Callable[[Floats, Floats, Constants], Floats]


class Values(NamedTuple):
    """A matrix of a direction, float32 [rows, columns]: as it is in the tensor, and as it is quantized.

    stacks: how many parts of equal size the first dimension of a tensor of more than two divides it into, and how many
    matrices it has. axis: of the matrix along which they lie.
    """

    raw: Floats
    transformed: Floats
    stacks: tuple[int, int] = (1, 1)
    axis: int = 0


def same(values: Any) -> Any:
    """No change."""
    return values


def flushed(values: Floats) -> Floats:
    """Subnormals become zeros of the same sign."""
    return np.where(np.abs(values) < np.finfo(F).tiny, np.copysign(F(0), values), values)


def over_block(blocks: Floats, keep_nan: bool) -> Floats:
    """Return the maximum magnitude of each block. Rules: BLK-2."""
    return largest(blocks, (2, 3), keep_nan)


def over_tensor(values: Values, keep_nan: bool, by_row: bool) -> Floats:
    """Return the maximum magnitude of the quantized values, [1] or [rows]. Rules: GLB-1, GLB-5."""
    if not values.transformed.size:
        return np.zeros(values.transformed.shape[0] if by_row else 1, F)
    found = largest(values.transformed, (1,) if by_row else (0, 1), keep_nan)
    return found.reshape(-1)


def as_returned(amax: Floats, values: Values) -> Floats:
    """Make the global scale of the maximum that is returned."""
    return amax


def as_of_scales(g: Floats, amax: Floats, k: Constants) -> Floats:
    """Divide elements by the global scale that the block scales are made with."""
    return g


def after(stage: Callable[..., Any], change: Callable[[Any], Any]) -> Any:
    """Return the function that changes what a stage returns."""
    return lambda *given: change(stage(*given))


def rounded(y: Floats, bits: Codes | None, codec: Codec) -> Codes:
    """Return the codec's codes."""
    return codec.encode(y, bits)


def smaller(second: Floats, first: Floats) -> NDArray[np.bool_]:
    """Return True if the second candidate is kept. Rules: FOS-6."""
    return np.asarray(second < first)


def own_byte(blocks: Floats, byte: Codes) -> Codes:
    """Store the byte that the elements are divided by."""
    return byte


def twice(second: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Keep the codes and the scale byte of the same candidate. Rules: FOS-6."""
    return second, second


def six_and_four(t: Floats, amax: Floats, g: Floats) -> tuple[Floats, Floats]:
    """Return the scales that a block tries, of the first one, its amax and the global scale. Rules: FOS-1."""
    return t, t * F(1.5)


class ScaleSide(NamedTuple):
    """A kernel's stages up to its scale bytes, for some rows of a matrix.

    amax, used: as it is reported, and as the global scale is made of it. scales: [rows, blocks].
    The others are
    blocks [down, across, ...] or broadcast to them; codes: where the choice of a scale needs them. maxima: of blocks.
    """

    amax: Floats | None
    scales: Codes
    blocks: Floats
    bits: Codes | None
    k: Constants
    g: Floats
    t: Floats
    byte: Codes
    codes: Codes | None
    shape: tuple[int, int]
    used: Floats | None
    maxima: Floats


class BothDirections(NamedTuple):
    """A case in both directions, for a kernel that takes one for the other.

    kernel, own: without the mistake, and the case's own direction up to its scales. codes, scales: of the other one.
    """

    kernel: Kernel
    own: ScaleSide
    codes: Codes
    scales: Codes


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """A quantizer as functions, one field for each decision; a mistake replaces some of them.

    read: of the tensor, the tensor that the kernel takes it for.
    values: what becomes of the inputs first. transform: the Hadamard transform, in `turned` directions.
    quantized: of the values [rows, columns] after the maximum was taken. elements: of the values before that, what is
    scaled and encoded, where it is not what the maxima of blocks are taken of.
    amax, used: the maximum, and what the global scale is made of. report: what is returned as the maximum.
    tails: what the maxima of blocks are taken of. element_global: of the global scale, the maximum and the constants,
    the global scale that divides the elements.
    scale_value, scale_byte: before and after the scale codec. used_scale: of the decoded scales [down, across, 1, 1].
    value, code: before and after the element codec. stored: of the blocks and their scale bytes, the bytes to store.
    scales, codes: of whole results [rows, blocks], [rows, columns].
    counted: of the errors of a candidate's elements, what is added up; None for the metric's.
    kept: of where the second candidate wins, where its codes and where its scale bytes are kept.
    other: the codes and scale bytes, made of those of both directions.
    whole: a part of the rows is not enough to say what the bytes are.
    placed: changes that hold in a place only, in order. placed_values: changes of the values that hold in a place only,
    before the maxima are taken of all values.
    """

    spec: Spec
    block: Block
    codec: Codec
    scale_codec: Codec
    read: Callable[[NDArray[Any]], NDArray[Any]] = same
    values: Map = same
    transform: Map | None = None
    turned: tuple[Direction, ...] = ("column",)
    keep_nan: bool = False
    keep_block_nan: bool = False
    amax: Callable[[Values, bool, bool], Floats] = over_tensor
    takes_amax: bool = True
    used: Callable[[Floats, Values], Floats] = as_returned
    report: Map = same
    quantized: Map = same
    elements: Map | None = None
    constants: Callable[[Constants], Constants] = same
    global_scale: Global
    tails: Map = same
    block_amax: BlockAmax = over_block
    block_scale: BlockScale
    scale_value: Map = same
    scale_byte: Codes2 = same
    element_global: ElementGlobal = as_of_scales
    working: Working
    used_scale: Map = same
    scaled: Scaled
    value: Map = same
    bits: Callable[[Codes], Codes] = same
    round: Callable[[Floats, Codes | None, Codec], Codes] = rounded
    code: Codes2 = same
    search: FourOverSix | None = None
    candidates: Callable[[Floats, Floats, Floats], tuple[Floats, Floats]] = six_and_four
    counted: Map | None = None
    second: Callable[[Floats, Floats], NDArray[np.bool_]] = smaller
    stored: Callable[[Floats, Codes], Codes] = own_byte
    kept: Callable[[NDArray[np.bool_]], tuple[NDArray[np.bool_], NDArray[np.bool_]]] = twice
    scales: Codes2 = same
    codes: Codes2 = same
    other: Callable[[BothDirections], tuple[Codes, Codes]] | None = None
    whole: bool = False
    placed: tuple[tuple[Place, Callable[[Kernel], Kernel | None]], ...] = ()
    placed_values: tuple[tuple[Place, Callable[[Kernel], Kernel | None]], ...] = ()

    def but(self, **changes: Any) -> Kernel:
        """Return a changed copy, as `dataclasses.replace` does in twenty times as long."""
        if unknown := changes.keys() - vars(self).keys():
            raise TypeError(f"a kernel has no {', '.join(sorted(unknown))}")
        changed = object.__new__(Kernel)
        vars(changed).update(vars(self), **changes)
        return changed

    def same_until_bytes(self, other: Kernel) -> bool:
        """Return True if both divide by the same bytes: at most they store them, or encode elements, otherwise."""
        if self.search is not None or self.placed or self.other is not None or other.scales is not same:
            return False
        return bool(_until_bytes(self) == _until_bytes(other))


_AFTER_BYTES = (
    "codec",
    "working",
    "used_scale",
    "element_global",
    "scaled",
    "value",
    "round",
    "code",
    "scales",
    "codes",
    "whole",
)
_until_bytes = attrgetter(*(field.name for field in dataclasses.fields(Kernel) if field.name not in _AFTER_BYTES))


@lru_cache(maxsize=64)
def kernel_of(spec: Spec) -> Kernel:
    """Return the kernel that makes a specification's bytes, one record for all who ask. Rules: SPC-5."""
    arithmetic = spec.arithmetic
    return Kernel(
        spec=spec,
        block=spec.block,
        codec=spec.element,
        scale_codec=spec.scale,
        transform=None if spec.hadamard is None else Turn(spec.hadamard.signs),
        keep_nan=spec.amax is Amax.PROPAGATE_NAN,
        keep_block_nan=spec.amax is not Amax.IGNORE_NAN,
        values=same if spec.subnormals is Subnormals.KEEP else flushed,
        global_scale=arithmetic.global_scale,
        block_scale=arithmetic.block_scale,
        working=arithmetic.working_scale,
        scaled=arithmetic.scaled,
        search=spec.four_over_six,
    )


@dataclass(frozen=True)
class Turn:
    """The transform with its signs, as a value. Rules: HAD-1, HAD-2, HAD-3."""

    signs: int

    def __call__(self, values: Floats) -> Floats:
        """Transform values [rows, 16 n]."""
        return hadamard.transform(values, self.signs)
