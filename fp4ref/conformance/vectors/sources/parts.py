"""Parts of vector files: groups, tests, arrays from decimals, and the glossary of flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES
from fp4ref.conformance.vectors.text import format_rows, format_words
from fp4ref.formats import Codec
from fp4ref.quantized import DirectionData
from fp4ref.spec import SPEC_VERSION, Spec
from fp4ref.spec_json import encode
from fp4ref.specs import STANDARD

Json = dict[str, Any]

ORACLE = {"name": "fp4ref oracle: the rules in exact rationals", "version": SPEC_VERSION}
WORKED = {"name": "worked by hand / Transformer Engine 2026-08-22 facts", "version": "2026-08-22"}
STATED = {"name": "stated by the rules", "version": SPEC_VERSION}

NOTES = {
    "Alpha": "Catches amaxes multiplied in another order, or a factor divided by where its reciprocal is meant.",
    "Bytes": "Catches a permuted, shifted or transposed buffer.",
    "CallerAmax": "Catches a quantizer that recomputes or mistrusts the caller's global maximum.",
    "ColumnDirection": "Catches a column direction derived from the row direction's bytes, or not transposed.",
    "Contraction": "Catches a multiplication fused with an addition: one rounding where two are specified.",
    "CounterMap": "Catches another counter, key or order of bytes for an element.",
    "DoubleRounding": "Catches a value that was rounded to another type on the way.",
    "EmptyTensor": "Catches a division by zero elements, or a result of another shape.",
    "EncodeScale": "Catches an encode scale computed in another order of operations.",
    "Epilogue": "Catches bias or accumulated values added in another order, or after another cast.",
    "FlushToZero": "Catches a machine or build that flushes subnormal numbers to zero.",
    "FourOverSix": "Catches a wrong choice between the two candidate scales of a block.",
    "GlobalScale": "Catches a global scale with another special case, clamp or order of operations.",
    "HadamardOrder": "Catches additions in another order than strides 1, 2, 4, 8.",
    "HadamardSigns": "Catches signs that are missing, reversed, or applied after the transform.",
    "Infinity": "Catches an infinity that turns into NaN or wraps, or spoils other blocks.",
    "LayoutOrder": "Catches scale bytes that lie in another order or stride.",
    "LeadingDimensions": "Catches a tensor that is not flattened to a matrix of its last dimension.",
    "MapOfWords": "Catches a thread's words in another order, or under another sequence.",
    "MinusZero": "Catches a sign of zero that is lost, or made.",
    "NaN": "Catches a NaN with the wrong code, or one that reaches a maximum.",
    "NearTie": "Catches a threshold that is off by one unit in the last place.",
    "NibbleOrder": "Catches the first of two codes in the high nibble.",
    "OrderOfAdditions": "Catches sums in another order or precision: the choice depends on the last bit.",
    "OrderOfOperations": "Catches a block scale computed as (amax / 6) * S_enc, S_enc * (amax / 6), or in float64.",
    "OrderOfSums": "Catches sums that are rounded where they should not be, or not where they should.",
    "Padding": "Catches padding that is not written, or that influences a result.",
    "PeerArithmetic": "Catches another implementation's order of operations, zero rule or codec.",
    "Philox": "Catches other constants, rounds or positions of words.",
    "RaggedTail": "Catches a last block that is dropped, or filled with anything but zeros.",
    "RandomBits": "Catches random bits with another meaning, order or threshold.",
    "Refused": "Catches a request that has no defined result and must be an error.",
    "RowScale": "Catches one row's maximum used for another.",
    "Saturation": "Catches magnitudes past the largest value that wrap or turn into NaN.",
    "ScaleRounding": "Catches a block scale rounded in another direction or at another point.",
    "ScaleTie": "Catches a block scale on or beside a tie, rounded the wrong way.",
    "ScaleUnderflow": "Catches codes forced to zero where the scale's byte is zero, or a scale that is not.",
    "Shards": "Catches random bytes that depend on how a tensor is split.",
    "SharedTile": "Catches a two-dimensional block whose rows do not share one scale, or a maximum over one row.",
    "SpareNibble": "Catches a nibble past the end of a row that is not zero.",
    "Specials": "Catches a special code that decodes to a number, or a number's that does not.",
    "Subnormal": "Catches subnormal values of the format that are lost or misplaced.",
    "SumOfProducts": "Catches a product of the wrong elements or scales.",
    "TieToEven": "Catches an encoder that breaks ties toward zero or away from it.",
    "WideRange": "Catches scales that are clamped or lose precision over a wide range of magnitudes.",
    "WorkedProduct": "Catches a block left out, or a sign lost.",
}


def floats(decimals: str | Iterable[Any], dtype: str = "float32") -> NDArray[Any]:
    """Numbers rounded to a type, nearest even; a string holds decimals separated by spaces."""
    values = decimals.split() if isinstance(decimals, str) else decimals
    return np.array([float(v) for v in values], np.float32).astype(INPUT_DTYPES[dtype])


def bits(words: str, dtype: str = "float32") -> NDArray[Any]:
    """Numbers from hex words separated by spaces."""
    size = INPUT_DTYPES[dtype].itemsize
    return np.array([int(word, 16) for word in words.split()], f"u{size}").view(INPUT_DTYPES[dtype])


def block(values: NDArray[Any], width: int = 16) -> NDArray[Any]:
    """Values followed by zeros, [1, width]."""
    whole = np.zeros((1, width), values.dtype)
    whole[0, : values.size] = values
    return whole


def neighbours(values: Iterable[float], ulps: int = 1) -> NDArray[np.float32]:
    """Each value with its float32 neighbours, below and above, in order."""
    centre = np.array(list(values), np.float32).view(np.int32)
    return (centre[:, None] + np.arange(-ulps, ulps + 1, dtype=np.int32)).view(np.float32).ravel()


def group(rules: str, source: Json, tests: Sequence[Json], **settings: Any) -> Json:
    """Return a group of tests; rules are separated by spaces."""
    return {"rules": rules.split(), "source": source, **settings, "tests": list(tests)}


def test(flags: str, comment: str, **fields: Any) -> Json:
    """Return a test without its id; flags are separated by spaces."""
    return {"flags": flags.split(), "comment": comment, **fields}


def named(spec: Spec) -> str | Json:
    """Return a specification as a group holds it: a name of the standard's, or the whole record."""
    return STANDARD[STANDARD.index(spec)].name if spec in STANDARD else record(spec)


def record(spec: Spec) -> Json:
    """Return a whole specification as JSON data."""
    return {"fp4ref": SPEC_VERSION, **encode(spec)}


def codec_record(codec: Codec) -> Json:
    """Return a codec as a group holds it; codes in hex."""
    return {**encode(codec), "nan": [f"{code:02x}" for code in codec.nan]}


def digits(codes: NDArray[np.uint8], width: int) -> list[str]:
    """Codes as hex digits."""
    return [f"{code:0{width}x}" for code in codes.ravel().tolist()]


def tensor_fields(x: NDArray[Any]) -> Json:
    """dtype, shape and rows of hex words of a tensor."""
    matrix = x.reshape(-1, x.shape[-1]) if x.size else np.zeros((0, 0), x.dtype)
    return {"dtype": x.dtype.name, "shape": list(x.shape), "x": [format_words(row) for row in matrix]}


def expected(result: DirectionData) -> Json:
    """Return the bytes of one direction."""
    fields = {"data": format_rows(result.data), "scales": format_rows(result.scales)}
    return fields if result.amax is None else {**fields, "amax": format_words(result.amax)}


def refused(error: str, rule: str) -> Json:
    """Return an error instead of a result."""
    return {"error": error, "rule": rule}
