"""Known mistakes of dequantizers, as values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fp4ref import packing
from fp4ref.arithmetic import narrow_bfloat16
from fp4ref.conformance.diagnosis.dequantizer_tables import DECODED_E4M3, DECODED_E8M0, tables
from fp4ref.conformance.diagnosis.dequantizing import PAST_END, Form, Way, inner, read_at, taken, top
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes.gathered_rows import EXCHANGES, GATHERS, Gather
from fp4ref.conformance.mistakes.kernel import Map
from fp4ref.conformance.mistakes.pitches import BYTE_PITCHES, PITCHES, BytePitch, Pitch, taken_at
from fp4ref.conformance.mistakes.readers import ScaleReader, scale_readers, unreduced
from fp4ref.conformance.mistakes.record import NARROW, Slot, cut_bfloat16, to_float16
from fp4ref.conformance.subjects.subject import Declaration, poisoned
from fp4ref.formats import E8M0, Codes, F, Floats
from fp4ref.layout import Layout, layout
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec


def ways(declared: Declaration, spec: Spec) -> Iterator[Way]:
    """Yield each known mistake of a dequantizer."""
    yield from _packing(declared, spec)
    for name, text, change in _scale_bytes(spec.scale.format is E8M0):
        yield Way(name, Slot.SCALE_CODEC, text, partial(_other_scales, change))
    yield from _pitches(spec)
    yield from _rows(spec)
    yield from _padded_rows(layout(declared.scale_layout))
    if spec.global_scale is not Granularity.NONE:
        yield from _globals(spec)
        for name, text, form in FORMS:
            yield Way(f"product-{name}", Slot.ENCODE, f"the product is {text}", form=form)
    for name, text, table in tables(spec):
        yield Way(f"element-{name}", Slot.CODE, text, elements=table)
    for name, text, scales in DECODED_E8M0 if spec.scale.format is E8M0 else DECODED_E4M3:
        yield Way(name, Slot.SCALE_CODEC, text, scales=scales)
    for width in (8, 16, 32, 64):
        if width != spec.block.columns:
            yield Way(f"blocks-of-{width}", Slot.BLOCK, f"{width} columns share a scale", width=width)
    for name, text, narrow in NARROW:
        what = "the factor of a block, which its elements are multiplied by,"
        yield Way(f"factor-{name}", Slot.ENCODE, f"{what} is {text}", factor=narrow)
    for name, text, after in (*AFTER, CAST["bfloat16" if declared.to == "bfloat16" else "float32"]):
        yield Way(name, Slot.SIGN, text, after=after)


def _packing(declared: Declaration, spec: Spec) -> Iterator[Way]:
    """Yield mistakes in where codes and scales are read."""
    if spec.element.format.bits == 4:
        swapped = lambda case, declared, q: q._replace(data=q.data << 4 | q.data >> 4)  # noqa: E731
        yield Way("nibbles", Slot.PACKING, "the high nibble is taken for the first element", swapped)
        yield Way("data-stream", Slot.PACKING, "rows of codes are read without spare bits between them", _streamed)
        reverse = lambda case, declared, q: q._replace(data=_words(q.data))  # noqa: E731
        yield Way("data-words-reversed", Slot.PACKING, "the bytes of each word of four are taken reversed", reverse)
    for reader in scale_readers(layout(declared.scale_layout)):
        yield Way(reader.name, reader.stage, f"{reader.text}, as they are read", partial(_misread, reader))
    for name, text, place in unreduced(layout(declared.scale_layout)):
        for mode in PAST_END:
            yield Way(f"{name}-{mode}", Slot.LAYOUT, text, partial(read_at, place, mode), alone=True)


def _pitches(spec: Spec) -> Iterator[Way]:
    """Yield rows of codes, or of scales, that are read at another pitch than theirs; past the end zeros follow."""
    for name, text, apart in BYTE_PITCHES:
        yield Way(
            f"data-pitch-{name}",
            Slot.PACKING,
            f"rows of data are read {text} apart",
            partial(_data_at, apart),
            alone=True,
        )
    said = "rows of scale bytes are read at the pitch of"
    for name, text, pitch in PITCHES:
        yield Way(f"scales-{name}", Slot.LAYOUT, f"{said} {text}", partial(_scales_at, pitch), alone=True)
    text = f"{said} their whole blocks, without a partial one"
    yield Way("scales-pitch-whole", Slot.LAYOUT, text, partial(_scales_at, None), alone=True)


def _data_at(apart: BytePitch, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    rows, columns = case.matrix
    return q._replace(data=taken_at(apart(rows, columns, q.data.shape[1]), q.data))


def _scales_at(pitch: Pitch | None, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    (rows, columns), width = case.matrix, case.spec.block.columns
    apart = columns // width if pitch is None else pitch(rows, q.scales.shape[1], width)
    return q._replace(scales=taken_at(apart, q.scales))


def _rows(spec: Spec) -> Iterator[Way]:
    """Yield rows that use the scales, or the amax, of other rows."""
    for gather in GATHERS:
        of_scales = partial(_other_scales, gather)
        yield Way(f"scales-{gather.name}", Slot.LAYOUT, gather.text("scales"), of_scales, alone=True)
        yield Way(f"codes-{gather.name}", Slot.PACKING, gather.text("codes"), partial(_other_codes, gather), alone=True)
        of_blocks = partial(_other_scales, partial(gather, axis=1))
        yield Way(f"block-{gather.name}", Slot.LAYOUT, gather.text("scale", "block"), of_blocks, alone=True)
        of_columns = partial(_other_columns, gather)
        text = gather.text("code", "column")
        yield Way(f"columns-{gather.name}", Slot.PACKING, text, of_columns, alone=True)
    if spec.global_scale is Granularity.ROW:
        for gather in GATHERS:
            yield Way(f"amax-{gather.name}", Slot.AMAX, gather.text("amax"), partial(_other_amax, gather), alone=True)
        text = "every row uses the largest amax of all rows"
        yield Way("amax-largest", Slot.AMAX, text, partial(_other_amax, _largest), alone=True)


def _padded_rows(order: Layout) -> Iterator[Way]:
    """Yield exchanges of rows, or of blocks, of a padded buffer of scales, the padding included."""
    if order.padded(1, 1) == (1, 1):
        return
    for gather in EXCHANGES:
        for axis, word in enumerate(("row", "block")):
            text = f"{gather.text('scales', word)}, those of the padding as well"
            change = partial(_in_grid, gather, axis)
            yield Way(f"padded-{word}-{gather.name}", Slot.LAYOUT, text, change, alone=True)


def _in_grid(gather: Gather, axis: int, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    rows, blocks = q.scales.shape
    order = layout(declared.scale_layout)
    down, across = order.padded(rows, blocks)
    offsets = order.offset(np.arange(down)[:, None], np.arange(across)[None], blocks, rows)
    grid = poisoned(q.scales, declared.scale_layout).reshape(-1)[offsets]
    return q._replace(scales=gather(grid, axis)[:rows, :blocks])


def _largest(amax: Floats) -> Floats:
    return np.full_like(amax, amax.max(initial=0))


CAST: dict[str, tuple[str, str, Map]] = {
    "bfloat16": ("values-cut", "values are truncated to bfloat16 instead of rounded", cut_bfloat16),
    "float32": ("values-bf16", "values are rounded to bfloat16 on the way", narrow_bfloat16),
}
AFTER: tuple[tuple[str, str, Map], ...] = (
    ("sign-lost", "values lose their sign", np.abs),
    ("sign-flipped", "values have the opposite sign", np.negative),
    ("zero-positive", "zeros lose their sign", lambda v: v + F(0)),
    ("values-transposed", "values are those of the transposed matrix", lambda v: v.T.reshape(v.shape)),
    ("values-fp16", "values are rounded to float16 on the way", to_float16),
    ("values-flush", "subnormal values are 0", lambda v: np.where(np.abs(v) < F(2.0**-126), np.copysign(F(0), v), v)),
    ("values-clamped", "values past the largest float16 are 65504", lambda v: np.clip(v, F(-65504), F(65504))),
    (
        "values-saturate",
        "overflow saturates: finite values past the largest float16 are 65504, not infinity",
        lambda v: np.where(np.isfinite(v), np.clip(v, F(-65504), F(65504)), v),
    ),
    ("values-nan-0", "NaN values become 0", lambda v: np.where(np.isnan(v), F(0), v)),
)


FORMS: tuple[tuple[str, str, Form], ...] = (
    ("q-sg", "element * (scale * global)", inner),
    ("qs-g", "(element * scale) * global", lambda q, s, g: q * s * g),
    ("qg-s", "(element * global) * scale", lambda q, s, g: q * g * s),
    ("qs-over", "(element * scale) / (1 / global)", lambda q, s, g: q * s / (F(1) / g)),
    ("q-s-over", "element * (scale / (1 / global))", lambda q, s, g: q * (s / (F(1) / g))),
    ("sg-bf16", "made with scale * global in bfloat16", lambda q, s, g: q * narrow_bfloat16(s * g)),
    ("sg-fp16", "made with scale * global in float16", lambda q, s, g: q * to_float16(s * g)),
    ("g-bf16", "made with the global scale in bfloat16", lambda q, s, g: q * (s * narrow_bfloat16(g))),
    ("g-fp16", "made with the global scale in float16", lambda q, s, g: q * (s * to_float16(g))),
    (
        "bf16",
        "made in bfloat16, rounded after each step",
        lambda q, s, g: narrow_bfloat16(narrow_bfloat16(q * s) * narrow_bfloat16(g)),
    ),
    (
        "double",
        "made in float64",
        lambda q, s, g: (q.astype(np.float64) * s.astype(np.float64) * g.astype(np.float64)).astype(F),
    ),
)


def _globals(spec: Spec) -> Iterator[Way]:
    most = top(spec)
    scales: tuple[tuple[str, str, Map], ...] = (
        ("global-missing", "the global scale is not applied", np.ones_like),
        ("global-upside-down", "the global scale is 2688 / amax instead of amax / 2688", lambda a: most / a),
        ("global-amax", "the global scale is amax itself", lambda a: a),
        ("global-inverse", "the global scale is 1 / amax", lambda a: F(1) / a),
        ("global-448", "the global scale is amax / 448", lambda a: a / F(448)),
        ("global-6", "the global scale is amax / 6", lambda a: a / F(6)),
        ("global-1536", "the global scale is amax / 1536", lambda a: a / F(1536)),
        ("global-1440", "the global scale is amax / 1440", lambda a: a / F(1440)),
        ("global-2880", "the global scale is amax / 2880", lambda a: a / F(2880)),
        ("global-amax-bf16", "amax is rounded to bfloat16", lambda a: narrow_bfloat16(a) / most),
        ("global-squared", "the global scale is applied twice", lambda a: (a / most) * (a / most)),
        ("global-reciprocal", "the global scale is amax * (1 / 2688)", lambda a: a * (F(1) / most)),
        ("global-encode", "the global scale is 1 / (2688 / amax)", lambda a: F(1) / (most / a)),
    )
    *others, reciprocal, encode = scales
    for name, text, decode in others:
        as_amax = lambda a, decode=decode: decode(a) * most  # noqa: E731
        yield Way(name, Slot.GLOBAL, text, decode=decode)
        yield Way(name, Slot.GLOBAL, text, partial(_other_amax, as_amax))
    for name, text, decode in (reciprocal, encode):  # right but for a rounding, which no other amax makes
        yield Way(name, Slot.GLOBAL, text, decode=decode)


def _scale_bytes(mx: bool) -> Iterator[tuple[str, str, Callable[[Codes], Codes]]]:
    one = np.uint8(127 if mx else 0x38)
    yield "scales-missing", "block scales are not applied", lambda s: np.full_like(s, one)
    yield "scales-transposed", "block scales are transposed", lambda s: s.T.reshape(s.shape)
    yield "scales-next-block", "each block uses the scale of the next one", lambda s: np.roll(s, -1, axis=1)
    yield "scales-previous-block", "each block uses the scale of the one before", lambda s: np.roll(s, 1, axis=1)
    yield "scales-two-blocks", "two neighbouring blocks use the first one's scale", lambda s: np.repeat(s[:, ::2], 2, 1)
    yield (
        "scales-first-block",
        "every block uses the first scale of its row",
        lambda s: np.repeat(s[:, :1], s.shape[1], 1),
    )
    nan = np.uint8(0xFF if mx else 0x7F)
    mask = np.uint8(0xFF if mx else 0x7F)  # without the sign that a scale byte may have
    yield "scales-last-block", "the last block uses the scale of the one before", _last_before
    yield "scale-nan-zero", "a NaN scale is taken as 0", lambda s: np.where(s & mask == mask, np.uint8(0), s)
    yield (
        "scale-nan-largest",
        "a NaN scale is taken as the largest",
        lambda s: np.where(s & mask == mask, s - np.uint8(1), s),
    )
    yield "scale-nan-one", "a NaN scale is taken as 1", lambda s: np.where(s & mask == mask, one, s)
    if mx:
        yield "bias-126", "scale bytes are decoded with bias 126", lambda s: np.minimum(s, 253) + np.uint8(1)
        yield "bias-128", "scale bytes are decoded with bias 128", lambda s: np.maximum(s, 1) - np.uint8(1)
        shift = lambda s: np.where(s == nan, s, np.minimum(s, 253) + np.uint8(1))  # noqa: E731
        yield "bias-126", "scale bytes are decoded with bias 126", shift
        shift = lambda s: np.where(s == nan, s, np.maximum(s, 1) - np.uint8(1))  # noqa: E731
        yield "bias-128", "scale bytes are decoded with bias 128", shift
    else:
        yield "bias-8", "scale bytes are decoded with bias 8 (E4M3FNUZ)", lambda s: s - np.where(s >= 16, 8, 0)


def _last_before(scales: Codes) -> Codes:
    return np.concatenate([scales[:, :-1], scales[:, -2:-1]], axis=1) if scales.shape[1] > 1 else scales


def _streamed(case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    """Return codes that are read from one stream of nibbles."""
    (rows, columns), form = case.matrix, case.spec.element.format
    flat = np.asarray(q.data).reshape(1, -1)
    codes = packing.unpack(flat, flat.size * 2, form).reshape(-1)[: rows * columns]
    return q._replace(data=packing.pack(codes.reshape(rows, columns), form))


def _words(data: Codes) -> Codes:
    if data.shape[1] % 4:
        raise ValueError
    return np.ascontiguousarray(data.reshape(len(data), -1, 4)[:, :, ::-1].reshape(data.shape))


def _misread(reader: ScaleReader, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    order = layout(declared.scale_layout)
    return q._replace(scales=taken(reader, order.name, poisoned(q.scales, order.name), q.scales.shape))


def _other_codes(
    change: Callable[[Codes], Codes], case: Case, declared: Declaration, q: DirectionData
) -> DirectionData:
    return q._replace(data=change(q.data))


def _other_columns(gather: Gather, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    columns, form = case.matrix[1], case.spec.element.format
    codes = packing.unpack(q.data, columns, form)
    return q._replace(data=packing.pack(gather(codes, 1), form))


def _other_amax(other: Map, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    return q._replace(amax=np.asarray(other(np.asarray(q.amax, F)), F))


def _other_scales(
    change: Callable[[Codes], Codes], case: Case, declared: Declaration, q: DirectionData
) -> DirectionData:
    return q._replace(scales=np.ascontiguousarray(change(q.scales)[:, : q.scales.shape[1]]))
