"""What a dequantizer may do otherwise: read its inputs, decode them, multiply them or write the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.arithmetic import narrow_bfloat16
from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.families import Case
from fp4ref.conformance.inferred_scales import nicest
from fp4ref.conformance.mistakes.kernel import Map
from fp4ref.conformance.mistakes.readers import ScaleReader, fits, scale_readers
from fp4ref.conformance.mistakes.record import Stage, cut_bfloat16
from fp4ref.conformance.subject import Declaration, expected_values, golden, poisoned
from fp4ref.formats import E2M1, E8M0, Codes, F, Floats
from fp4ref.layout import layout
from fp4ref.model.quantize import constants
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Spec

Values = NDArray[Any]
Inputs = Callable[[Case, Declaration, DirectionData], DirectionData]
Form = Callable[[Floats, Floats, Floats], Floats]  # (element, scale, decode scale) -> value
HALVES = (0, 1, 2, 3, 4, 6, 8, 12)  # the values of E2M1, doubled
MEASURED = 64  # elements with one code from which its value is measured


@dataclass(frozen=True)
class Way:
    """One step done otherwise.

    inputs: other bytes or amaxes. elements: values of the codes. scales: values of the scale bytes. decode: the global
    decode scale, made of amax. form: the order of the product. after: of the values, before they are narrowed. cast:
    the narrowing. Steps that are None are the specification's.
    """

    name: str
    stage: Stage
    text: str
    inputs: Inputs | None = None
    elements: Floats | None = None
    scales: Callable[[Floats, Codes], Floats] | None = None
    decode: Map | None = None
    form: Form | None = None
    after: Map | None = None


def made(ways: tuple[Way, ...], case: Case, declared: Declaration) -> Values | None:
    """What a dequantizer with these mistakes makes of a case, None where they mean nothing. Rules: DEQ-1, DEQ-2."""
    q = golden(case)
    with np.errstate(all="ignore"):
        try:
            for way in ways:
                q = q if way.inputs is None else way.inputs(case, declared, q)
        except ValueError:
            return None
        q = q._replace(scales=np.asarray(q.scales, np.uint8))
        slots = [[getattr(way, slot) for way in ways if getattr(way, slot) is not None] for slot in SLOTS]
        if not any(slots):
            return expected_values(case, declared, q)
        if any(len(slot) > 1 for slot in slots):
            return None
        values = _values([next(iter(slot), None) for slot in slots], case, q)
        for after in slots[4]:
            values = after(values)
        return np.ascontiguousarray(values.astype(INPUT_DTYPES[declared.to]))


SLOTS = ("elements", "scales", "decode", "form", "after")


def _values(steps: Sequence[Any], case: Case, q: DirectionData) -> Floats:
    """The float32 product, with other steps in the order of SLOTS."""
    elements, scales, decode, form = steps[:4]
    spec, (_, columns) = case.spec, case.matrix
    codes = packing.unpack(q.data, columns, spec.element.format)
    x = spec.element.decode(codes) if elements is None else elements[codes]
    s = spec.scale.decode(q.scales)
    s = np.repeat(s if scales is None else scales(s, q.scales), spec.block.columns, axis=1)[:, :columns]
    if q.amax is None:
        return np.asarray(x * s if form is None else form(x, s, np.ones((1, 1), F)), F)
    amax = np.asarray(q.amax, F)[:, None]
    if form is None and decode is None:
        return spec.arithmetic.dequantized(x, s, amax, constants(spec, case.x.dtype))
    g = amax / top(spec) if decode is None else decode(amax)
    return np.asarray((form or _inner)(x, s, g), F)


def top(spec: Spec) -> F:
    """The largest product of an element and a scale."""
    return F(spec.scale_max) * F(spec.element_max or spec.element.format.max)


# The ways that are known


def ways(declared: Declaration, spec: Spec) -> Iterator[Way]:
    """Each known mistake of a dequantizer."""
    if spec.element.format.bits == 4:
        swapped = lambda case, declared, q: q._replace(data=q.data << 4 | q.data >> 4)  # noqa: E731
        yield Way("nibbles", Stage.PACKING, "the high nibble is taken for the first element", swapped)
        reverse = lambda case, declared, q: q._replace(data=_words(q.data))  # noqa: E731
        yield Way("data-words-reversed", Stage.PACKING, "the bytes of each word of four are taken reversed", reverse)
    for reader in scale_readers(layout(declared.scale_layout)):
        yield Way(reader.name, reader.stage, f"{reader.text}, as they are read", partial(_misread, reader))
    for name, text, change in _scale_bytes(spec.scale.format is E8M0):
        yield Way(name, Stage.SCALE_CODEC, text, partial(_other_scales, change))
    if spec.global_scale is not Granularity.NONE:
        yield from _globals(spec)
        for name, text, form in FORMS:
            yield Way(f"product-{name}", Stage.ENCODE, f"the product is {text}", form=form)
    for name, text, table in _tables(spec):
        yield Way(f"element-{name}", Stage.CODE, text, elements=table)
    if spec.scale.format is E8M0:
        zero = lambda s, byte: np.where(byte == 0, F(0), s)  # noqa: E731
        yield Way("byte-0-zero", Stage.SCALE_CODEC, "scale byte 0 is decoded as 0 instead of 2^-127", scales=zero)
        large = lambda s, byte: np.where(byte == 0xFF, F(np.inf), s)  # noqa: E731
        yield Way("byte-255-infinite", Stage.SCALE_CODEC, "scale byte 0xFF is decoded as infinity", scales=large)
    else:
        flushed = lambda s, byte: np.where(byte & 0x78, s, F(0) * s)  # noqa: E731
        yield Way("scale-flush", Stage.SCALE_CODEC, "subnormal scales are decoded as 0", scales=flushed)
        wide = lambda s, byte: byte.view(ml_dtypes.float8_e5m2).astype(F)  # noqa: E731
        yield Way("scale-e5m2", Stage.SCALE_CODEC, "scale bytes are decoded as E5M2", scales=wide)
        plain = lambda s, byte: byte.astype(F)  # noqa: E731
        yield Way("scale-uint8", Stage.SCALE_CODEC, "scale bytes are converted as integers", scales=plain)
    for name, text, after in AFTER:
        yield Way(name, Stage.SIGN, text, after=after)
    if declared.to == "bfloat16":
        yield Way("values-cut", Stage.SIGN, "values are truncated to bfloat16 instead of rounded", after=cut_bfloat16)
    else:
        yield Way("values-bf16", Stage.SIGN, "values are rounded to bfloat16 on the way", after=narrow_bfloat16)


AFTER: tuple[tuple[str, str, Map], ...] = (
    ("sign-lost", "values lose their sign", np.abs),
    ("sign-flipped", "values have the opposite sign", np.negative),
    ("zero-positive", "zeros lose their sign", lambda v: v + F(0)),
    ("values-transposed", "values are those of the transposed matrix", lambda v: v.T.reshape(v.shape)),
    ("values-fp16", "values are rounded to float16 on the way", lambda v: v.astype(np.float16).astype(F)),
    ("values-flush", "subnormal values are 0", lambda v: np.where(np.abs(v) < F(2.0**-126), np.copysign(F(0), v), v)),
    ("values-nan-0", "NaN values become 0", lambda v: np.where(np.isnan(v), F(0), v)),
)


def _inner(q: Floats, s: Floats, g: Floats) -> Floats:
    return q * (s * g)


def _half(v: Floats) -> Floats:
    return v.astype(np.float16).astype(F)


FORMS: tuple[tuple[str, str, Form], ...] = (
    ("q-sg", "element * (scale * global)", _inner),
    ("qs-g", "(element * scale) * global", lambda q, s, g: q * s * g),
    ("qg-s", "(element * global) * scale", lambda q, s, g: q * g * s),
    ("qs-over", "(element * scale) / (1 / global)", lambda q, s, g: q * s / (F(1) / g)),
    ("q-s-over", "element * (scale / (1 / global))", lambda q, s, g: q * (s / (F(1) / g))),
    ("sg-bf16", "made with scale * global in bfloat16", lambda q, s, g: q * narrow_bfloat16(s * g)),
    ("sg-fp16", "made with scale * global in float16", lambda q, s, g: q * _half(s * g)),
    ("g-bf16", "made with the global scale in bfloat16", lambda q, s, g: q * (s * narrow_bfloat16(g))),
    ("g-fp16", "made with the global scale in float16", lambda q, s, g: q * (s * _half(g))),
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
    for name, text, decode in (
        ("global-missing", "the global scale is not applied", np.ones_like),
        ("global-upside-down", "the global scale is 2688 / amax instead of amax / 2688", lambda a: most / a),
        ("global-amax", "the global scale is amax itself", lambda a: a),
        ("global-inverse", "the global scale is 1 / amax", lambda a: F(1) / a),
        ("global-448", "the global scale is amax / 448", lambda a: a / F(448)),
        ("global-6", "the global scale is amax / 6", lambda a: a / F(6)),
        ("global-1536", "the global scale is amax / 1536", lambda a: a / F(1536)),
        ("global-1440", "the global scale is amax / 1440", lambda a: a / F(1440)),
        ("global-2880", "the global scale is amax / 2880", lambda a: a / F(2880)),
        ("global-squared", "the global scale is applied twice", lambda a: (a / most) * (a / most)),
        ("global-reciprocal", "the global scale is amax * (1 / 2688)", lambda a: a * (F(1) / most)),
        ("global-encode", "the global scale is 1 / (2688 / amax)", lambda a: F(1) / (most / a)),
    ):
        yield Way(name, Stage.GLOBAL, text, decode=decode)
        if not name.endswith(("reciprocal", "encode")):
            as_amax = lambda a, decode=decode: decode(a) * most  # noqa: E731
            yield Way(name, Stage.GLOBAL, text, partial(_other_amax, as_amax))


def _signed(positive: Any) -> Floats:
    values = np.array(list(positive), F)
    return np.concatenate([values, -values])


def _tables(spec: Spec) -> Iterator[tuple[str, str, Floats]]:
    """Values of codes that are decoded as another format's."""
    if spec.element.format is E2M1:
        right = np.array(HALVES, F) / F(2)
        yield "twos-complement", "codes are decoded as a table's end counted backwards", np.append(right, -right[::-1])
        yield "int4", "codes are decoded as integers of two's complement", np.array([*range(8), *range(-8, 0)], F)
        yield "sign-magnitude", "codes are decoded as integers with a sign", _signed(range(8))
        yield "uint4", "codes are decoded as integers without a sign", np.arange(16, dtype=F)
        yield "doubled", "codes are decoded as twice their values", _signed(right * 2)
        yield "e3m0", "codes are decoded as E3M0", _signed([0, *(2.0**k for k in range(-2, 5))])
        yield "flush", "the subnormal code is decoded as 0", _signed([0, 0, *right[2:]])
        yield "subnormal", "the subnormal code is decoded as a normal one", _signed([0, 0.75, *right[2:]])
        return
    kinds = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "int8", "uint8")
    for name in kinds:
        with np.errstate(all="ignore"):
            kind = np.dtype(name if name.endswith("int8") else getattr(ml_dtypes, name))
            yield name.removeprefix("float8_"), f"codes are decoded as {name}", _all(kind)


def _all(kind: np.dtype[Any]) -> Floats:
    return np.arange(256).astype(np.uint8).view(kind).astype(F)


def _scale_bytes(mx: bool) -> Iterator[tuple[str, str, Callable[[Codes], Codes]]]:
    one = np.uint8(127 if mx else 0x38)
    yield "scales-missing", "block scales are not applied", lambda s: np.full_like(s, one)
    yield "scales-transposed", "block scales are transposed", lambda s: s.T.reshape(s.shape)
    yield "scales-next", "each block uses the scale of the next one", lambda s: np.roll(s, -1, axis=1)
    yield "scales-previous", "each block uses the scale of the one before", lambda s: np.roll(s, 1, axis=1)
    yield "scales-pairs", "two neighbouring blocks use the first one's scale", lambda s: np.repeat(s[:, ::2], 2, 1)
    yield "scales-row", "every row uses the scales of the first", lambda s: np.repeat(s[:1], len(s), 0)
    yield "scales-first", "every block uses the first scale of its row", lambda s: np.repeat(s[:, :1], s.shape[1], 1)
    yield "scales-rows-next", "each row uses the scales of the next one", lambda s: np.roll(s, -1, axis=0)
    nan = np.uint8(0xFF if mx else 0x7F)
    yield "scale-nan-zero", "a NaN scale is taken as 0", lambda s: np.where(s == nan, np.uint8(0), s)
    yield "scale-nan-largest", "a NaN scale is taken as the largest", lambda s: np.where(s == nan, nan - np.uint8(1), s)
    if mx:
        yield "bias-126", "scale bytes are decoded with bias 126", lambda s: np.minimum(s, 253) + np.uint8(1)
        yield "bias-128", "scale bytes are decoded with bias 128", lambda s: np.maximum(s, 1) - np.uint8(1)
        shift = lambda s: np.where(s == nan, s, np.minimum(s, 253) + np.uint8(1))  # noqa: E731
        yield "bias-126", "scale bytes are decoded with bias 126", shift
        shift = lambda s: np.where(s == nan, s, np.maximum(s, 1) - np.uint8(1))  # noqa: E731
        yield "bias-128", "scale bytes are decoded with bias 128", shift
    else:
        yield "bias-8", "scale bytes are decoded with bias 8 (E4M3FNUZ)", lambda s: s - np.where(s >= 16, 8, 0)


def _words(data: Codes) -> Codes:
    if data.shape[1] % 4:
        raise ValueError
    return np.ascontiguousarray(data.reshape(len(data), -1, 4)[:, :, ::-1].reshape(data.shape))


def _misread(reader: ScaleReader, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    order = layout(declared.scale_layout)
    return q._replace(scales=taken(reader, order.name, poisoned(q.scales, order.name), q.scales.shape))


def taken(reader: ScaleReader, declared: str, buffer: Codes, shape: tuple[int, ...]) -> Codes:
    """The scales that a reader finds in a buffer; ValueError where it reads outside."""
    offsets = reader.offsets(layout(declared), *shape)
    if not fits(offsets, buffer.size):
        raise ValueError
    return np.asarray(buffer.reshape(-1)[offsets], np.uint8)


def _other_amax(other: Map, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    return q._replace(amax=np.asarray(other(np.asarray(q.amax, F)), F))


def _other_scales(
    change: Callable[[Codes], Codes], case: Case, declared: Declaration, q: DirectionData
) -> DirectionData:
    return q._replace(scales=np.ascontiguousarray(change(q.scales)[:, : q.scales.shape[1]]))


# What is measured


@np.errstate(all="ignore")
def measured_elements(declared: Declaration, results: list[tuple[Case, Values]], other: tuple[Way, ...]) -> Way | None:
    """Another value for some codes, if values with each code are one multiple of what the code for 1 gives."""
    spec = results[0][0].spec
    count = 1 << spec.element.format.bits
    one = Way("", Stage.CODE, "", elements=np.ones(count, F))
    seen: list[list[Floats]] = [[] for _ in range(count)]
    for case, got in results:
        wide, q = made((*other, one), case, declared), golden(case)
        if wide is None:
            return None
        for way in other:
            q = q if way.inputs is None else way.inputs(case, declared, q)
        codes = packing.unpack(q.data, case.matrix[1], spec.element.format)
        usual = (np.abs(wide.astype(F)) > F(2.0**-90)) & (np.abs(wide.astype(F)) < F(2.0**90))
        ratio = got.astype(F) / wide.astype(F)
        for code in range(count):
            seen[code].append(ratio[usual & (codes == code)])
    right = spec.element.decode(np.arange(count).astype(np.uint8))
    table = right.copy()
    for code in range(count):
        ratios = np.concatenate(seen[code])
        if ratios.size >= MEASURED:
            table[code] = F(np.round(float(np.median(ratios)) * 64) / 64)
    zero = np.flatnonzero(table == 0)
    table[zero] = np.copysign(F(0), right[zero])
    changed = np.flatnonzero((table != right) & ~(np.isnan(table) & np.isnan(right)))
    if not 0 < len(changed) <= count // 2:
        return None
    said = ", ".join(f"{right[code]:g} to {table[code]:g}" for code in changed[:4])
    return Way("element-inferred-values", Stage.CODE, f"codes are decoded otherwise: {said}", elements=table)


@np.errstate(all="ignore")
def measured_factor(declared: Declaration, results: list[tuple[Case, Values]], other: tuple[Way, ...]) -> Iterator[Way]:
    """Another constant in the global scale, or a factor, if all values are one multiple of the right ones."""
    spec, low, high, count = results[0][0].spec, np.inf, 0.0, 0
    for case, got in results:
        wide = made(other, case, declared)
        if wide is None:
            return
        size = np.abs(wide.astype(np.float64))
        usual = (size > 2.0**-90) & (size < 2.0**90)
        ratio = got.astype(np.float64)[usual] / wide.astype(np.float64)[usual]
        count += ratio.size
        low, high = min(low, ratio.min(initial=np.inf)), max(high, ratio.max(initial=0))
    close = 2.0**-21 if declared.to == "float32" else 2.0**-7
    if count < MEASURED or not 0 < low <= high < low * (1 + close) or low <= 1 <= high:
        return
    low, high = low * (1 - close), high * (1 + close)
    if spec.global_scale is Granularity.NONE:
        factor = nicest(low, high)
        times = partial(np.multiply, F(factor))
        yield Way(f"values-inferred-{factor:g}", Stage.SIGN, f"values are {factor:g} times too large", after=times)
        return
    number = nicest(float(top(spec)) / high, float(top(spec)) / low)
    text = f"the global scale is amax / {number:g} instead of amax / {top(spec):g}"
    for _, _, form in FORMS:
        over = partial(lambda n, a: a / n, F(number))
        yield Way(f"global-inferred-{number:g}", Stage.GLOBAL, text, decode=over, form=form)
