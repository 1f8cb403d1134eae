"""Vectors run on a subject: one function for each operation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.vectors import products as vector_products
from fp4ref.conformance.vectors.files import VectorTest, tensor
from fp4ref.conformance.vectors.text import Mismatch, mismatched, mismatched_words, parse_rows, parse_words
from fp4ref.errors import Fp4Error
from fp4ref.formats import FORMATS
from fp4ref.layout import LINEAR, layout
from fp4ref.quantized import DirectionData, Quantized, matrix_shape


def run(test: VectorTest, subject: Any) -> list[Mismatch]:
    """Run one test on a subject; empty if every bit is as expected.

    A test that expects an error passes if the subject raises one of that type that cites that rule.

    Rules: CNF-1, CNF-3.
    """
    error = test.fields.get("expected", {}).get("error")
    try:
        return list(_RUNNERS[test.operation](test, subject))
    except Fp4Error as raised:
        expected = f"{error} [{test.fields['expected']['rule']}]" if error else "a result"
        if expected in (f"{kind.__name__} [{raised.rule}]" for kind in type(raised).__mro__):
            return []
        return [Mismatch("error", (), "", expected, f"{type(raised).__name__} [{raised.rule}] {raised}")]


def _encode(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    values = parse_words("".join(test.fields["values"]))
    bits = test.fields.get("random_bits")
    codes = subject.encode(test.codec, values, None if bits is None else parse_rows(["".join(bits)])[0])
    yield from mismatched("codes", codes, _codes(test.fields["codes"]), values)


def _decode(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    values = subject.decode(test.codec, _codes(test.fields["codes"]))
    yield from mismatched_words("values", values, " ".join(test.fields["values"]))


def _codes(digits: list[str]) -> NDArray[np.uint8]:
    return np.array([int(code, 16) for code in digits], np.uint8)


def _pack(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    codes, form = _codes(test.fields["codes"])[None], FORMATS[test.group["format"]]
    packed = np.frombuffer(bytes.fromhex(test.fields["packed"]), np.uint8)[None]
    yield from mismatched("packed", subject.pack(codes, form), packed)
    yield from mismatched("codes", subject.unpack(packed, codes.shape[1], form), codes)


def _hadamard(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    mask = int(test.group["signs"], 16)
    values, transformed = parse_words(test.fields["values"], "bfloat16"), test.fields["transformed"]
    yield from subject.check_transform(values, mask, transformed)
    if "restored" in test.fields:
        yield from subject.check_inverse(parse_words(transformed, "bfloat16"), mask, test.fields["restored"])


def _quantize(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    direction, name = fields.get("direction", "row"), fields.get("scale_layout", LINEAR.name)
    amax = parse_words(fields["amax"]) if "amax" in fields else None
    bits = parse_rows(fields["random_bits"]) if "random_bits" in fields else None
    data, scales, maxima = subject.quantize(tensor(test.input), test.spec, direction, name, amax, bits)
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
        return
    if "data" in expected:
        yield from mismatched("data", data, parse_rows(expected["data"], data.shape[1]))
    if "scales" in expected:
        wanted = parse_rows(expected["scales"], scales.shape[1])
        order = layout(name)
        if scales.shape == wanted.shape and not order.pads_compared:
            rows, columns = matrix_shape(test.input["shape"])[:: 1 if direction == "row" else -1]
            known = order.valid(rows, -(-columns // test.spec.block.columns))
            scales, wanted = np.where(known, scales, 0), np.where(known, wanted, 0)
        yield from mismatched("scales", scales, wanted)
    if "amax" in expected:
        yield from mismatched_words("amax", maxima, expected["amax"])


def _dequantize(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    data, scales = parse_rows(fields["data"]), parse_rows(fields["scales"])
    parts = DirectionData(data, scales, parse_words(fields["amax"]) if "amax" in fields else None)
    direction = fields.get("direction", "row")
    pair = (parts, None) if direction == "row" else (None, parts)
    order = fields.get("scale_layout", LINEAR.name)
    q = Quantized(test.spec, tuple(fields["shape"]), fields["dtype"], order, *pair)
    values = subject.dequantize(q, fields["to"], direction, fields.get("inverse_hadamard", False))
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
    else:
        yield from mismatched_words("values", values, " ".join(expected["values"]))


def _layout(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields = test.fields
    rows, columns = fields["rows"], fields["columns"]
    padded, offsets, padding = subject.lay_out(test.group["layout"], rows, columns, fields["positions"])
    yield from _mismatched_lists("padded", padded, fields["padded"])
    yield from _mismatched_lists("offsets", offsets, fields["offsets"])
    yield from _mismatched_lists(
        "padding", [int(offset in padding) for offset in fields["padding"]], [1] * len(fields["padding"])
    )


def _group_offsets(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    members = [(rows, columns) for rows, columns in test.fields["members"]]
    yield from _mismatched_lists("starts", layout(test.group["layout"]).group_offsets(members), test.fields["starts"])


def _row_range(test: VectorTest, subject: Any) -> Iterator[Mismatch]:
    fields, expected = test.fields, test.fields["expected"]
    found = layout(test.group["layout"]).row_range(*(fields[name] for name in ("start", "stop", "rows", "columns")))
    if "error" in expected:
        yield Mismatch(
            "error", (), "", f"{expected['error']} [{expected['rule']}]", f"bytes {found.start}:{found.stop}"
        )
    else:
        yield from _mismatched_lists("bytes", [found.start, found.stop], expected["bytes"])


def _mismatched_lists(field: str, got: Sequence[int], expected: Sequence[int]) -> Iterator[Mismatch]:
    if list(got) != list(expected):
        yield Mismatch(field, (), "", str(list(expected)), str(list(got)))


_RUNNERS = {
    "encode": _encode,
    "decode": _decode,
    "pack": _pack,
    "hadamard": _hadamard,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "layout": _layout,
    "group_offsets": _group_offsets,
    "row_range": _row_range,
    "gemm": vector_products.gemm,
    "philox": vector_products.philox,
    "random_bits": vector_products.random_bits,
    "random_map": vector_products.random_map,
}
