"""Checks of block scales: bytes that they cannot have, regions that nobody wrote, and number conversions."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from fp4ref.checkpoints import bounds
from fp4ref.checkpoints.access import scale_values
from fp4ref.checkpoints.bounds import first_normal, nan_codes, negative_codes, zero_scales
from fp4ref.checkpoints.findings import ERROR, NOTE, WARNING
from fp4ref.checkpoints.measure import FEW, Measured
from fp4ref.checkpoints.origins import is_converted
from fp4ref.checkpoints.stored_layout import zero_in_one_layout
from fp4ref.formats import FORMATS

FAR = 20  # exponents between a plausible byte and the others of its tensor
ONE = 127  # the exponent byte of 2^0, which memory that was set to one has, and blocks of weights have not
RARE = 4  # bytes that count as single
MANY = 16  # bytes that no damage of single ones explains
VOCABULARIES = ("lm_head", "embed_tokens", "output", "token_embd")  # matrices that are padded with rows of zeros
HEADS = ("q_proj", "k_proj", "v_proj", "qkv", "qkv_proj", "attn_q", "attn_k", "attn_v")  # whose rows are heads
CODES = 128.0  # the code of 448 as a number of E4M3
DEAD = 4  # rows of zeros, one after the other, that are no dead neurons
LONG = 16  # rows of zeros between others that no weight has
USUAL, WILD = 2.0**10, 2.0**20  # amaxes that weights have, and that none has
Verdict = tuple[str, str, str, str]  # code, severity, name of the tensor, message


def judge_scales(found: Measured) -> Iterator[Verdict]:
    """Yield what is wrong with a group's block scales: one cause, the strongest, for each region.

    Rules: CKP-14, CKP-16, CKP-17, CKP-18, CKP-27, CKP-44, CKP-53, CKP-54.
    """
    group = found.group
    if not group.convention.scale or not found.blocks:
        return
    name = group.parts["scales" if "scales" in group.parts else "codes"].name
    signed = group.convention.signed_scales
    bytes_ = found.scales
    nan = int(bytes_[nan_codes(group.convention.scale)].sum())
    negative = int(bytes_[negative_codes(group.convention.scale)].sum())
    if foreign := _foreign(found, negative):
        yield "unwritten", ERROR, name, foreign
        return
    if nan:
        yield "scale-nan", ERROR, name, f"{nan} of {found.blocks} block scales are NaN{_as_read(found)}"
    if negative:
        text = f"{negative} of {found.blocks} block scales have the sign set{_as_read(found)}"
        yield "scale-negative", ERROR, name, text
    cast = "" if signed else _cast(found)
    if cast:
        yield "scale-value-cast", ERROR, name, cast
        return
    if unwritten := _unwritten(found):
        role, text = unwritten
        yield "unwritten", ERROR, group.parts[role].name if role in group.parts else name, text
        return
    if text := zero_in_one_layout(found):
        yield "scale-layout", ERROR, name, text
    elif found.zero_scales and signed:
        row, block = found.first_zero_scale or (0, 0)
        text = f"{found.zero_scales} block scales are zero with elements that are not, the first at row {row}"
        yield "scale-zero", ERROR, name, f"{text}, block {block}"
    elif found.zero_scales and found.zero_scales <= RARE < found.blocks - found.zero_scales and _low(found) > FAR:
        yield "bit-damage", WARNING, name, f"{found.zero_scales} exponent bytes are 0, far from all others"
    elif (text := _outlier(found)) and not nan and not negative:
        yield "bit-damage", WARNING, name, text
    yield from _zero_blocks(found, name)


def _foreign(found: Measured, negative: int) -> str:
    """Return the evidence that some rows hold bytes of no scales; "" if there is none.

    Scales of one tensor have few exponents and one sign; foreign bytes have nearly all exponents, or both signs.
    """
    counts = found.scales
    if not found.group.convention.signed_scales:
        common = np.flatnonzero(counts[:255] > max(RARE, found.blocks // 64))
        if not len(common):
            return ""
        far = np.r_[: max(common[0] - FAR, 0), min(common[-1] + FAR, 255) : 255]
        distinct = int(np.count_nonzero(counts[far]))
        usual = f"0x{common[0]:02X} to 0x{common[-1]:02X}"
        text = f"{int(counts[far].sum())} exponent bytes of {distinct} values are far from the others, {usual}"
        return f"{text}: these are no scales" if distinct >= MANY else ""
    form = FORMATS[found.group.convention.scale]
    if not found.negative_rows:
        return ""
    exponents = {*(np.flatnonzero(counts[form.sign_bit :]) >> form.mantissa_bits).tolist()}
    if len(exponents) < 0.75 * (form.sign_bit >> form.mantissa_bits):
        return ""
    rows = found.negative_rows
    inside = len(rows) * found.blocks // max(len(found.constant_scale), 1)
    if 4 * negative <= inside or negative < MANY:
        return ""
    where = f"the scales of {len(rows)} rows from row {rows[0]} on have {len(exponents)} different exponents"
    return f"{where}, and the sign set in {negative} of {inside}: these are no scales"


def _as_read(found: Measured) -> str:
    """Return how the convention's own readers decode the scale bytes that are present; "" if as the format says."""
    misread = found.group.convention.misread
    return f"; readers: {misread.meaning}" if found.scales[[*misread.bytes]].any() else ""


def _low(found: Measured) -> int:
    present = np.nonzero(found.scales[1:255])[0] + 1
    return int(present[0]) if len(present) else 0


def _cast(found: Measured) -> str:
    """Return the evidence that exponent bytes were rounded from numbers; "" if there is none."""
    small = int(found.scales[:4].sum())
    if found.zero_scales and small == found.blocks:
        return f"all {small} exponent bytes are at most 3 with elements that are not zero: numbers rounded into bytes"
    middle = int(np.searchsorted(np.cumsum(found.scales), found.blocks / 2))
    if middle < 255 and scale_values(found.group)[middle] > WILD:
        text = f"half of the exponent bytes are 0x{middle:02X} or more, for weights of 2^{middle - ONE}"
        return f"{text}: exponents without their bias, or bytes of something else"
    return ""


def cast_codes(measured: list[Measured]) -> list[str]:
    """Return the names of all scales of E4M3 if they are codes that were converted as numbers; nothing if not.

    The code of the largest scale of a tensor, 0x7E for 448, becomes the number 128; a file of scales that were made of
    their tensors' amaxes has larger ones.
    """
    judged = [each for each in measured if each.group.convention.scale == "e4m3" and "scales" in each.group.parts]
    judged = [each for each in judged if "global_scale" in each.group.parts and each.scales[1:127].any()]
    total = sum((each.scales for each in judged), np.zeros(256, np.int64))
    values = bounds.values("e4m3")[np.flatnonzero(total[1:127]) + 1]
    if len(judged) < 2 or total.sum() < 4 * FEW or values.max() != CODES or values.min() < CODES / 8:
        return []
    return [each.group.parts["scales"].name for each in judged]


def runs(mask: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield the first and last row, exclusive, of each run of true rows."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    yield from ((int(first), int(last)) for first, last in edges.reshape(-1, 2))


def _unwritten(found: Measured) -> tuple[str, str] | None:
    """Return the role of a tensor of which rows were never written, and the evidence; None if there is none.

    Rules: CKP-44.
    """
    group, blocks = found.group, max(found.blocks // max(len(found.constant_scale), 1), 1)
    scale, code, empty = found.constant_scale, found.constant_code, found.empty_row
    for first, last in runs((scale == 0) & ~empty):
        if (last - first) * blocks >= 4:
            return "scales", f"the scales of rows {first} to {last - 1} are 0, their elements are not"
    alone = [index for index in range(group.matrices) if _is_zero(found, index)]
    if 0 < len(alone) < group.matrices:
        return "scales", f"scales and elements of matrix {alone[0]} of {group.matrices} are 0"
    zero_byte = group.convention.zero_block[0] if group.convention.zero_block is not None else 0
    for first, last in runs((scale == 0) & empty):
        if _is_never_written(found, first, last, zero_byte, blocks):
            return "scales", f"scales and elements of rows {first} to {last - 1} are 0"
    if text := _bare(found, zero_byte, blocks):
        return "codes", text
    one = int(found.codes.max()) > 0.999 * int(found.codes.sum())  # of the whole tensor, which the histogram tells
    constant = (code >= 0) & ~empty & (scale < 0) & (not one)
    for first, last in runs(constant):
        if blocks >= 2:
            text = f"the elements of rows {first} to {last - 1} are one repeated byte under scales that vary"
            return "codes", text
    text = _constant_scales(found, blocks)
    return ("scales", text) if text else None


def _bare(found: Measured, zero_byte: int, blocks: int) -> str:
    """Return the evidence for elements of zero under scales that are not those of zeros; "" if there is none."""
    group, scale, empty = found.group, found.constant_scale, found.empty_row
    marked = group.convention.zero_block is not None and not _tiny(found)
    for first, last in runs(empty & (scale != zero_byte) & (scale != 0)) if marked else ():
        if last - first >= DEAD and (last - first) * blocks >= 4:
            return f"the elements of rows {first} to {last - 1} are 0 under scales that are not those of zeros"
    for first, last in runs(empty):
        if last - first >= DEAD and (scale[first:last] < 0).mean() > 0.5:
            return f"the elements of rows {first} to {last - 1} are 0 under scales that vary"
    form, counts = FORMATS[group.convention.scale], found.zeros.copy()
    counts[[*zero_scales(group.convention.scale), *range(first_normal(form) if form.mantissa_bits else 2)]] = 0
    if counts.sum() > max(DEAD * blocks, found.blocks // 64) and np.count_nonzero(counts) > 2:
        return f"the elements of {int(counts.sum())} blocks are 0 under scales that are not those of zeros"
    return ""


def _is_zero(found: Measured, matrix: int) -> bool:
    """Return True if a whole matrix, such as an expert, has neither scales nor elements."""
    rows = slice(matrix * found.group.rows, (matrix + 1) * found.group.rows)
    return bool(((found.constant_scale[rows] == 0) & found.empty_row[rows]).all())


def _is_never_written(found: Measured, first: int, last: int, zero_byte: int, blocks: int) -> bool:
    """Return True if rows of nothing but zeros are not what the producer writes for weights that are zero."""
    if found.empty_row.all():
        return zero_byte != 0  # a producer that marks blocks of zeros has not written these
    if (last - first) * blocks < 4 or last - first < found.group.convention.multiples[0]:
        return False
    return (zero_byte != 0 and last - first >= DEAD) or is_long(found, first, last)


def is_long(found: Measured, first: int, last: int) -> bool:
    """Return True for more rows of zeros than weights have: the last rows may be padding, those of a head pruned."""
    name, rows = found.group.name, len(found.empty_row)
    ends = last == rows or name.endswith(HEADS)
    return not name.endswith(VOCABULARIES) and last - first >= (max(LONG, rows // 4) if ends else LONG)


def _tiny(found: Measured) -> bool:
    """Return True if blocks of zeros have the smallest scales, as values have that vanish beside the tensor's amax."""
    present = np.flatnonzero(found.zeros)
    return len(present) > 0 and int(present[-1]) <= 1


def _constant_scales(found: Measured, blocks: int) -> str:
    """Return the evidence that rows of scales are one repeated byte that the rest of the tensor does not explain."""
    signed, rows = found.group.convention.signed_scales, found.constant_scale
    coarse = first_normal(FORMATS[found.group.convention.scale]) if signed else 1  # smaller ones often repeat
    nan = np.flatnonzero(nan_codes(found.group.convention.scale))  # told by themselves
    for byte in map(int, np.flatnonzero(np.bincount(rows[(rows >= coarse) & ~np.isin(rows, nan)]))):
        mask = (rows == byte) & ~found.empty_row
        inside = int(mask.sum()) * blocks
        outside = found.blocks - inside
        share = (found.scales[byte] - inside + 1) / (outside + 2)
        for first, last in runs(mask):
            count = (last - first) * blocks
            unlikely = count >= 8 and (last - first) * share**count * len(rows) < 1e-9 and share < 0.25
            if outside == 0:
                never = signed or byte == ONE
                unlikely = never and count >= 64 and len(np.flatnonzero(found.codes)) > 10
            set_to_one = byte == ONE and last - first >= LONG
            if unlikely and (signed or not outside or set_to_one or abs(_median(found, byte) - byte) >= 8):
                return f"the scales of rows {first} to {last - 1} are all 0x{byte:02X}, which hardly occurs elsewhere"
    return ""


def _median(found: Measured, without: int) -> int:
    counts = found.scales.copy()
    counts[without] = 0
    return int(np.searchsorted(np.cumsum(counts), counts.sum() / 2)) if counts.any() else without


def _outlier(found: Measured) -> str:
    """Return the evidence for single damaged scale bytes: far from every other scale of the tensor."""
    if found.blocks < 64:
        return ""
    counts = found.scales.copy()
    if found.group.convention.signed_scales:
        form = FORMATS[found.group.convention.scale]
        counts[form.codes :] = 0
        step = 5 << form.mantissa_bits  # a factor of 32
        present = np.flatnonzero(counts[1:]) + 1
        if len(present) > 1 and counts[present[-1]] <= RARE and present[-1] - present[-2] >= step:
            return f"a block scale of byte 0x{present[-1]:02X} is over 32 times the next largest, 0x{present[-2]:02X}"
        return ""
    counts[0] = counts[255] = 0
    common = np.flatnonzero(counts > RARE)
    if not len(common):
        return ""
    for byte in np.flatnonzero(counts):
        gap = max(int(byte) - int(common[-1]), int(common[0]) - int(byte))
        if gap >= FAR:
            usual = f"0x{common[0]:02X} to 0x{common[-1]:02X}"
            return f"{counts[byte]} exponent bytes are 0x{byte:02X}; the others are {usual}"
    return ""


def _zero_blocks(found: Measured, name: str) -> Iterator[Verdict]:
    """Yield bytes of blocks of zeros that another producer writes, not this one."""
    expected = found.group.convention.zero_block
    if expected is None or is_converted(found.group):
        return
    allowed = {expected[0], 1}
    foreign = sorted(zero_scales(found.group.convention.scale) - allowed)
    count = int(found.zeros[foreign].sum())
    if count:
        byte = max(foreign, key=lambda each: int(found.zeros[each]))
        text = f"{count} blocks of zeros have scale 0x{byte:02X}; {found.group.convention.family} writes"
        yield "producer-bytes", NOTE, name, f"{text} 0x{expected[0]:02X}"
    elif found.group.convention.has_exponents and found.zeros[expected[0]] and found.odd_zeros:
        text = f"{found.odd_zeros} blocks of zeros have codes other than {expected[1]}"
        yield "producer-bytes", NOTE, name, f"{text}, which {found.group.convention.family} writes"
