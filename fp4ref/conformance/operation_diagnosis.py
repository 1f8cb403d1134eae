"""What a wrong dequantizer, layout conversion or Hadamard kernel does: its known mistakes, tried one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.diagnose import KEPT, PADDING, Diagnosis, Explanation
from fp4ref.conformance.families import Case
from fp4ref.conformance.mistakes import MISTAKES
from fp4ref.conformance.mistakes.kernel import Map, Turn, kernel_of
from fp4ref.conformance.mistakes.readers import ScaleReader, fits, scale_readers
from fp4ref.conformance.mistakes.record import Stage, cut_bfloat16
from fp4ref.conformance.subject import Declaration, expected_values, golden, poisoned, signs, transform_input
from fp4ref.formats import E8M0, Codes, F
from fp4ref.layout import layout
from fp4ref.model.tiles import widen
from fp4ref.quantized import DirectionData
from fp4ref.spec import Granularity, Hadamard

Values = NDArray[Any]
Result = tuple[Case, Values]  # a case, and what a kernel made of it
Inputs = Callable[[Case, Declaration, DirectionData], DirectionData]


class Known(NamedTuple):
    """A mistake: its name, its stage, a sentence, and what it makes of a case; None where it means nothing."""

    name: str
    stage: Stage
    text: str
    made: Callable[[Case, Declaration], Values | None]


def diagnose_operation(declared: Declaration, results: Sequence[Result]) -> Diagnosis:
    """Explain what a kernel other than a quantizer made of some cases. Rules: CNF-2."""
    ways = {"dequantize": _dequantizers, "to_layout": _layouts, "hadamard": _transforms}[declared.operation]
    ordered = sorted(results, key=lambda result: result[1].size)
    right = [same(declared, case, got, expected_values(case, declared, golden(case))) for case, got in ordered]
    if all(right):
        return Diagnosis(conforms=True)
    wrong = [result for result, equal in zip(ordered, right, strict=True) if not equal]
    rest = [result for result, equal in zip(ordered, right, strict=True) if equal]
    found = [known for known in ways(declared, ordered[0][0]) if _explains(known, declared, [*wrong, *rest])]
    stage = {"dequantize": "values", "to_layout": "layout", "hadamard": "hadamard"}[declared.operation]
    told = tuple(Explanation((known.name,), known.stage.value, known.text) for known in found[:KEPT])
    return Diagnosis(conforms=False, explanations=told, first_stage=told[0].stage if told else stage)


def same(declared: Declaration, case: Case, got: Values, wanted: Values) -> bool:
    """Whether results are equal, all NaN being one; padding of linear scales may hold anything. Rules: CNF-1, LAY-2."""
    if got.shape != wanted.shape:
        return False
    if declared.operation == "to_layout":
        order = layout(declared.scale_layout)
        shape = case.matrix[0], -(-case.matrix[1] // case.spec.block.columns)
        return bool(((got == wanted) | (False if order.pads_compared else ~order.valid(*shape))).all())
    kind = f"u{wanted.dtype.itemsize}"
    equal = got.view(kind) == wanted.view(kind)
    return bool((equal | (np.isnan(got.astype(F)) & np.isnan(wanted.astype(F)))).all())


def _explains(known: Known, declared: Declaration, results: Sequence[Result]) -> bool:
    for case, got in results:
        made = known.made(case, declared)
        if made is None or not same(declared, case, got, made):
            return False
    return True


# Dequantizers: another reading of what they are given, or another last step


def _dequantizers(declared: Declaration, first: Case) -> Iterator[Known]:
    spec = first.spec
    if spec.element.format.bits == 4:
        swapped = lambda case, declared, q: q._replace(data=q.data << 4 | q.data >> 4)  # noqa: E731
        yield _given("nibbles", Stage.PACKING, "the high nibble is taken for the first element", swapped)
    for reader in scale_readers(layout(declared.scale_layout)):
        yield _given(reader.name, reader.stage, f"{reader.text}, as they are read", partial(_misread, reader))
    if spec.global_scale is not Granularity.NONE:
        top = F(spec.scale_max) * F(spec.element_max or spec.element.format.max)
        for name, text, other in (
            ("global-missing", "the global scale is not applied", lambda a: np.full_like(a, top)),
            ("global-upside-down", "the global scale is 2688 / amax instead of amax / 2688", lambda a: top / a * top),
            ("global-amax", "the global scale is amax itself", lambda a: a * top),
            ("global-inverse", "the global scale is 1 / amax", lambda a: top / a),
            ("global-448", "the global scale is amax / 448", lambda a: a * (top / F(448))),
            ("global-6", "the global scale is amax / 6", lambda a: a * (top / F(6))),
        ):
            yield _given(name, Stage.GLOBAL, text, partial(_other_amax, other))
    for name, text, change in _scale_bytes(spec.scale.format is E8M0):
        yield _given(name, Stage.SCALE_CODEC, text, partial(_other_scales, change))
    for name, text, after in (
        ("sign-lost", "values lose their sign", np.abs),
        ("sign-flipped", "values have the opposite sign", np.negative),
        ("values-transposed", "values are those of the transposed matrix", lambda v: v.T.reshape(v.shape)),
    ):
        yield Known(name, Stage.SIGN, text, partial(_afterwards, after))
    if spec.scale.format is E8M0:
        yield Known("byte-0-zero", Stage.SCALE_CODEC, "scale byte 0 is decoded as 0 instead of 2^-127", _zero_scale)
    if declared.to == "bfloat16":
        yield Known("values-cut", Stage.CODE, "values are truncated to bfloat16 instead of rounded", _cut)


def _scale_bytes(mx: bool) -> Iterator[tuple[str, str, Callable[[Codes], Codes]]]:
    one = np.uint8(127 if mx else 0x38)
    yield "scales-missing", "block scales are not applied", lambda s: np.full_like(s, one)
    yield "scales-transposed", "block scales are transposed", lambda s: s.T.reshape(s.shape)
    yield "scales-next", "each block uses the scale of the next one", lambda s: np.roll(s, -1, axis=1)
    yield "scales-previous", "each block uses the scale of the one before", lambda s: np.roll(s, 1, axis=1)
    yield "scales-pairs", "two neighbouring blocks use the first one's scale", lambda s: np.repeat(s[:, ::2], 2, 1)
    nan = np.uint8(0xFF if mx else 0x7F)
    yield "scale-nan-zero", "a NaN scale is taken as 0", lambda s: np.where(s == nan, np.uint8(0), s)
    yield "scale-nan-largest", "a NaN scale is taken as the largest", lambda s: np.where(s == nan, nan - np.uint8(1), s)
    if mx:
        yield "bias-126", "scale bytes are decoded with bias 126", lambda s: np.minimum(s, 253) + np.uint8(1)
        yield "bias-128", "scale bytes are decoded with bias 128", lambda s: np.maximum(s, 1) - np.uint8(1)
    else:
        yield "bias-8", "scale bytes are decoded with bias 8 (E4M3FNUZ)", lambda s: s - np.where(s >= 16, 8, 0)


def _given(name: str, stage: Stage, text: str, inputs: Inputs) -> Known:
    return Known(name, stage, text, partial(_dequantized, inputs))


@np.errstate(all="ignore")
def _dequantized(inputs: Inputs, case: Case, declared: Declaration) -> Values | None:
    try:
        given = inputs(case, declared, golden(case))
    except ValueError:
        return None
    return expected_values(case, declared, given._replace(scales=np.asarray(given.scales, np.uint8)))


def _misread(reader: ScaleReader, case: Case, declared: Declaration, q: DirectionData) -> DirectionData:
    order = layout(declared.scale_layout)
    return q._replace(scales=_taken(reader, order.name, poisoned(q.scales, order.name), q.scales.shape))


def _taken(reader: ScaleReader, declared: str, buffer: Codes, shape: tuple[int, ...]) -> Codes:
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


def _afterwards(change: Callable[[Values], Values], case: Case, declared: Declaration) -> Values:
    values = expected_values(case, declared, golden(case))
    return np.ascontiguousarray(change(values.astype(F)).astype(values.dtype))


def _zero_scale(case: Case, declared: Declaration) -> Values:
    q = golden(case)
    values = expected_values(case, declared, q)
    zero = np.repeat(q.scales == 0, case.spec.block.columns, axis=1)[:, : values.shape[1]]
    return np.where(zero, np.copysign(F(0), values.astype(F)).astype(values.dtype), values)


def _cut(case: Case, declared: Declaration) -> Values:
    exact = np.asarray(expected_values(case, _wide(declared), golden(case)), F)
    return cut_bfloat16(exact).astype(INPUT_DTYPES["bfloat16"])


def _wide(declared: Declaration) -> Declaration:
    fields = {**declared.to_json(), "to": "float32"}
    return Declaration(**fields)


# Layouts


def _layouts(declared: Declaration, first: Case) -> Iterator[Known]:
    for reader in scale_readers(layout(declared.scale_layout)):
        yield Known(reader.name, reader.stage, reader.text, partial(_placed, reader))
    for reader in scale_readers(layout(declared.source_layout)):
        text = f"the source is read wrongly: {reader.text}"
        yield Known(f"source-{reader.name}", reader.stage, text, partial(_read, reader))
    yield Known("layout-unmoved", Stage.LAYOUT, "bytes are copied in the order of the source", _unmoved)
    for byte in (0x7F, 0xFF, 0x38, 0x01):
        yield Known(PADDING[0], Stage.PADDING, f"padding is {byte:#04x} instead of 0", partial(_padded, byte))
    yield Known(PADDING[0], Stage.PADDING, "padding is that of the source instead of 0", partial(_padded, None))


def _shape(case: Case, declared: Declaration) -> tuple[int, int]:
    blocks = -(-case.matrix[1] // case.spec.block.columns)
    return layout(declared.scale_layout).padded_shape(case.matrix[0], blocks)


def _placed(reader: ScaleReader, case: Case, declared: Declaration) -> Values | None:
    scales, out = golden(case).scales, np.zeros(_shape(case, declared), np.uint8)
    offsets = reader.offsets(layout(declared.scale_layout), *scales.shape)
    if not fits(offsets, out.size):
        return None
    out.reshape(-1)[offsets] = scales
    return out


def _read(reader: ScaleReader, case: Case, declared: Declaration) -> Values | None:
    scales = golden(case).scales
    try:
        taken = _taken(reader, declared.source_layout, poisoned(scales, declared.source_layout), scales.shape)
    except ValueError:
        return None
    return layout(declared.scale_layout).from_linear(taken)


def _unmoved(case: Case, declared: Declaration) -> Values:
    source = poisoned(golden(case).scales, declared.source_layout).reshape(-1)
    out = np.zeros(_shape(case, declared), np.uint8)
    out.reshape(-1)[: source.size] = source[: out.size]
    return out


def _padded(byte: int | None, case: Case, declared: Declaration) -> Values:
    scales = golden(case).scales
    order = layout(declared.scale_layout)
    if byte is None:
        return poisoned(scales, declared.scale_layout)
    return np.where(order.valid(*scales.shape), order.from_linear(scales), np.uint8(byte))


# Transforms


def _transforms(declared: Declaration, first: Case) -> Iterator[Known]:
    spec = first.spec if first.spec.hadamard else first.spec.replace(hadamard=Hadamard())
    kernel = kernel_of(spec).but(transform=Turn(signs(spec)))
    for mistake in MISTAKES:
        changed = mistake.apply(kernel) if mistake.stage is Stage.HADAMARD else None
        if changed is not None and changed.turned == kernel.turned:
            yield Known(mistake.name, mistake.stage, mistake.text, partial(_turned, changed.transform))


@np.errstate(all="ignore")
def _turned(transform: Map | None, case: Case, declared: Declaration) -> Values | None:
    values = widen(transform_input(case))
    made = values if transform is None else transform(values)
    return made.astype(INPUT_DTYPES["bfloat16"]) if made.shape == values.shape else None
