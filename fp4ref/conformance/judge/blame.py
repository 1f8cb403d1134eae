"""The stages at fault: what a candidate wrote that its own earlier stages do not call for, and the rules that say so.

A wrong maximum makes other scales, and a wrong scale other codes; these are then right for what came before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.families.rules import KEEPS_SIGN, NEAREST, NOT_A_NUMBER, SATURATES, format_rules
from fp4ref.conformance.judge.compare import codes_of, scales_of, unequal
from fp4ref.conformance.judge.comparison import Comparison
from fp4ref.conformance.judge.excuses import Bools, Tile, per_block
from fp4ref.conformance.mistakes.data_readers import DATA_READERS, LOST
from fp4ref.conformance.mistakes.record import Slot
from fp4ref.formats import Codes, F, Floats, ignoring_float_warnings
from fp4ref.layout import layout
from fp4ref.model import quantize as model
from fp4ref.model.tiles import Matrix, join, split, tiles, widen
from fp4ref.quantized import Direction, DirectionData
from fp4ref.rules import prefix_of
from fp4ref.spec import Amax, Block, Granularity, Spec


class Stage(StrEnum):
    """A stage whose bytes a rule decides, or a part of them that a rule decides alone."""

    AMAX = "amax"
    SCALE = "scale"
    PLACE = "place of scales"
    PADDING = "padding of scales"
    CODE = "code"
    PACKING = "packing"
    SPARE = "spare bits"
    NEAREST = "magnitude of a code inside the range"
    SATURATED = "magnitude of a code past the range"
    SIGN = "sign of a code"
    NAN = "code of NaN"
    ZERO_SCALE = "magnitude of a code under a scale of 0"
    SUBNORMAL = "byte of a subnormal input"
    SPECIAL_AMAX = "byte under a special global scale"


ALL = frozenset(Stage)
MAGNITUDE = frozenset({Stage.NEAREST, Stage.SATURATED})
VALUES = frozenset({Stage.AMAX, Stage.SCALE, Stage.CODE})
DECIDES: dict[str, frozenset[Stage]] = {  # by rule, or by chapter; the codecs follow from the specification
    "BLK-1": frozenset({Stage.SCALE, Stage.CODE}),
    "BLK-2": frozenset({Stage.AMAX, Stage.SCALE}),
    "BLK-3": frozenset({Stage.SCALE}),
    "BLK-4": MAGNITUDE,
    "BLK-5": MAGNITUDE,
    "BLK-6": frozenset({Stage.ZERO_SCALE}),
    "BLK-7": frozenset({Stage.SCALE}),
    "BLK-10": MAGNITUDE,
    "E8M0-4": frozenset({Stage.CODE}),
    "E8M0": frozenset({Stage.SCALE}),
    "MXS": frozenset({Stage.SCALE}),
    "GLB-1": frozenset({Stage.AMAX}),
    "GLB-2": frozenset({Stage.SCALE}),
    "GLB-3": frozenset({Stage.SPECIAL_AMAX}),
    "GLB-5": frozenset({Stage.AMAX, Stage.SCALE}),
    "GLB-6": frozenset({Stage.SCALE, Stage.CODE}),
    "FOS": frozenset({Stage.SCALE, Stage.CODE}),
    "HAD": VALUES,
    "NUM": VALUES,
    "NUM-5": frozenset({Stage.SUBNORMAL}),
    "SR": frozenset({Stage.CODE}),
    "PACK-2": frozenset({Stage.SPARE}),
    "PACK-5": frozenset({Stage.SPARE}),
    "PACK": frozenset({Stage.PACKING}),
    "LAY-5": frozenset({Stage.PADDING}),
    "LAY": frozenset({Stage.PLACE}),
}
OF_CODES = (  # rules on the codes of elements, by what they decide
    (frozenset(NEAREST.values()), Stage.NEAREST),
    (frozenset(SATURATES.values()), Stage.SATURATED),
    (frozenset(NOT_A_NUMBER.values()), Stage.NAN),
    (frozenset(KEEPS_SIGN.values()), Stage.SIGN),
)


def decides(rule: str, spec: Spec) -> frozenset[Stage]:
    """Return the stages whose bytes a rule decides."""
    chapter = prefix_of(rule)
    named = DECIDES.get(rule, DECIDES.get(chapter))
    if named is not None:
        return named
    owners = {Stage.CODE: spec.element.format, Stage.SCALE: spec.scale.format}
    found = frozenset(stage for stage, form in owners.items() if format_rules(form) in {rule, chapter})
    if Stage.CODE in found:
        found = frozenset(stage for known, stage in OF_CODES if rule in known) or found
    return found or ALL


def failed(rules: Sequence[str], spec: Spec, at_fault: frozenset[str]) -> frozenset[str]:
    """Return the rules that decide a byte at fault. Rules: CNF-24."""
    return frozenset(rule for rule in rules if decides(rule, spec) & at_fault)


@ignoring_float_warnings
def at_fault(
    x: NDArray[Any],
    spec: Spec,
    direction: Direction,
    scale_layout: str,
    got: DirectionData,
    expected: DirectionData,
    random_bits: Codes | None,
    compared: Comparison,
) -> frozenset[str]:
    """Return the stages whose bytes differ from what the candidate's own earlier stages call for.

    got: scales in `scale_layout`; expected: linear. A block's codes are also right if the specification makes them of
    x, for then another byte is stored than was used.

    Rules: CNF-24, CNF-76.
    """
    matrix = Matrix(x, direction)
    rows, columns = matrix.shape
    blocks = -(-columns // spec.block.columns)
    order, stored = layout(scale_layout), np.asarray(got.scales)
    linear = got._replace(scales=order.to_linear(stored, rows, blocks))
    own_amax = _own_amax(got, expected)
    changed = own_amax is not None and not np.array_equal(own_amax, np.asarray(expected.amax))
    own = model.quantize(x, spec, direction, own_amax, random_bits) if changed else expected
    counts = {Stage.AMAX: compared.amax, Stage.PADDING: compared.padding, Stage.SPARE: compared.spare}
    found = {stage for stage, count in counts.items() if count}
    if compared.amax and _subnormal(matrix[slice(0, rows), slice(0, columns)]).any():
        found.add(Stage.SUBNORMAL)
    parts: set[Stage] = set()  # what the wrong codes are
    under_own: list[Codes] = []  # codes of the whole matrix under the candidate's own scales
    wrong_scales = wrong_codes = False
    for tile in tiles(matrix.shape, spec.block):
        scales, codes = scales_of(linear.scales, tile, spec), codes_of(got.data, tile, spec)
        wanted = [(scales_of(part.scales, tile, spec), codes_of(part.data, tile, spec)) for part in (expected, own)]
        bad = np.ones_like(scales, np.bool_)
        for each, _ in wanted:
            bad &= unequal(spec.scale, scales, each, spec)
        judged = ~_right(compared, tile, spec)
        wrong_scale = per_block(bad, spec).any(axis=2) & judged
        wrong_scales = wrong_scales or bool(wrong_scale.any())
        wrong = judged
        for _, each in wanted:
            wrong = wrong & split(unequal(spec.element, codes, each, spec), spec.block).any(axis=(2, 3))
        if wrong.any():
            bits = None if random_bits is None else random_bits[tile]
            y, made = _codes(matrix, tile, spec, direction, own_amax, scales, bits)
            under_own += [made] if made.shape == matrix.shape else []
            differs = split(unequal(spec.element, codes, made, spec), spec.block)
            wrong = wrong & differs.any(axis=(2, 3))
            differs &= wrong[:, :, None, None]
            zero = np.asarray(per_block(spec.scale.decode(scales) == 0, spec).any(axis=2))
            parts |= _parts(spec, y, split(codes ^ made, spec.block), differs, zero)
        wrong_codes = wrong_codes or bool(wrong.any())
        small = split(_subnormal(matrix[tile]), spec.block).any(axis=(2, 3))
        if ((wrong | wrong_scale) & small).any():
            found.add(Stage.SUBNORMAL)
    if wrong_scales:
        moved = any(np.array_equal(_sorted(stored), _sorted(part.scales)) for part in (expected, own))
        found.add(Stage.PLACE if moved else Stage.SCALE)
    if wrong_codes:
        whole = slice(0, rows), slice(0, columns)
        every = [*(codes_of(part.data, whole, spec) for part in (expected, own)), *under_own]
        moved = _reordered(np.asarray(got.data), every, matrix.shape, spec)
        found |= {Stage.PACKING} if moved else {Stage.CODE, *parts}
    if found & {Stage.SCALE, Stage.CODE} and _special(own, spec, x.dtype):
        found.add(Stage.SPECIAL_AMAX)
    return frozenset(found)


def _parts(spec: Spec, y: Floats, changed: Codes, differs: Bools, zero: Bools) -> set[Stage]:
    """Return the stages of differing codes: NaN, saturated, nearest, sign, or under a scale of 0.

    y: scaled elements; changed: the bits that differ; both and differs [block rows, blocks, rows, columns]. zero: the
    blocks [block rows, blocks] with a scale of 0.
    """
    form = spec.element.format
    sign = 1 << (form.bits - 1) if form.signed else 0
    number = differs & ~np.isnan(y)
    other = number & ((changed & ~np.uint8(sign)) != 0)
    past = np.abs(y) > form.max
    held = {
        Stage.NAN: differs & np.isnan(y),
        Stage.SIGN: number & ((changed & sign) != 0),
        Stage.SATURATED: other & past,
        Stage.NEAREST: other & ~past,
        Stage.ZERO_SCALE: other & zero[:, :, None, None],
    }
    return {stage for stage, where in held.items() if where.any()}


def _subnormal(values: NDArray[Any]) -> Bools:
    wide = np.abs(widen(values))
    return np.asarray((wide > 0) & (wide < np.finfo(F).tiny))


def _special(own: DirectionData, spec: Spec, dtype: np.dtype[Any]) -> bool:
    """Return True if a global amax has no quotient in the range, so that its scale is one of a table. Rules: GLB-3."""
    if own.amax is None:
        return False
    amax = np.asarray(own.amax, F).reshape(-1)
    k = model.constants(spec, dtype)
    quotient = k.scale_max * k.element_max / amax
    return bool((~np.isfinite(quotient) | (quotient == 0)).any())


def _own_amax(got: DirectionData, expected: DirectionData) -> Floats | None:
    """Return the candidate's amax, or the expected one where the candidate's is no maximum. Rules: GLB-4."""
    if got.amax is None or expected.amax is None:
        return None if expected.amax is None else np.asarray(expected.amax, F)
    own, wanted = (np.array(part.amax, F).reshape(-1) for part in (got, expected))
    return np.asarray(np.where(own >= 0, own, wanted), F)


def _right(compared: Comparison, tile: Tile, spec: Spec) -> Bools:
    """Return the blocks of a tile [block rows, blocks] that are right by a bound. Rules: HAD-7."""
    ends = [(part.start // size, -(-part.stop // size)) for part, size in zip(tile, spec.block, strict=True)]
    (top, bottom), (left, end) = ends
    found = np.zeros((bottom - top, end - left), np.bool_)
    for row, block in compared.right_by_bound:
        if top <= row < bottom and left <= block < end:
            found[row - top, block - left] = True
    return found


def _codes(
    matrix: Matrix,
    tile: Tile,
    spec: Spec,
    direction: Direction,
    amax: Floats | None,
    scales: Codes,
    bits: Codes | None,
) -> tuple[Floats, Codes]:
    """Return the scaled elements of a tile's blocks under given scale bytes, and its codes.

    The elements are [block rows, blocks, rows, columns], the codes those of the tile.

    Rules: BLK-4, BLK-5, BLK-10.
    """
    row, column = tile
    k = model.constants(spec, matrix[slice(0, 0), slice(0, 0)].dtype)
    blocks = split(model.inputs(matrix, tile, spec, direction), spec.block)
    given = None
    if amax is not None:
        given = (amax[row] if spec.global_scale is Granularity.ROW else amax)[:, None, None, None]
    g = model.global_scale(given, spec, k)
    before = model.block_scale(model.largest(blocks, (2, 3), spec.amax is not Amax.IGNORE_NAN), g, spec, k)
    own = split(scales, Block(spec.block.rows, 1))[:, :, :1, :1]
    y = model.scaled(blocks, before, own, g, spec, k)
    made = spec.element.encode(y, None if bits is None else split(bits, spec.block))
    return y, np.asarray(join(made, (row.stop - row.start, column.stop - column.start)))


def _sorted(scales: Codes) -> Codes:
    flat = np.sort(np.asarray(scales), axis=None)
    return np.asarray(flat[flat != 0])


def _reordered(got: Codes, wanted: Sequence[Codes], shape: tuple[int, int], spec: Spec) -> bool:
    """Return True if a known order of the codes makes any of the wanted ones, [rows, columns]."""
    for reader in DATA_READERS if spec.element.format.bits == 4 else ():
        found = reader.read(got, shape, spec.element.format) if reader.stage is Slot.PACKING else None
        if found is None:
            continue
        if any(found.shape == codes.shape and ((found == codes) | (found == LOST)).all() for codes in wanted):
            return True
    return False
