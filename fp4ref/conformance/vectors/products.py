"""Running the vectors of products and of random bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from fp4ref import generators
from fp4ref.catalogue import resolve
from fp4ref.conformance.vectors.text import Mismatch, mismatched, mismatched_words, parse_rows, parse_words
from fp4ref.layout import LINEAR
from fp4ref.philox import philox4x32
from fp4ref.quantized import DirectionData, Quantized
from fp4ref.spec import Spec, from_json


class TestLike(Protocol):
    """A test of a vector file, with the fields of its group."""

    @property
    def group(self) -> Mapping[str, Any]:
        """Settings that tests share."""

    @property
    def fields(self) -> Mapping[str, Any]:
        """Inputs and expected results."""


def gemm(test: TestLike, subject: Any) -> Iterator[Mismatch]:
    """Yield a product of two operands. Rules: CNF-1."""
    fields, expected = test.fields, test.fields["expected"]
    to = fields.get("to", "float32")
    more: dict[str, Any] = {"dtype": to}
    if "alpha" in fields:
        more["alpha"] = parse_words(fields["alpha"])[0]
    if "alpha_rule" in fields:
        more["alpha_rule"] = fields["alpha_rule"]
    if "bias" in fields:
        more["bias"] = parse_words(fields["bias"]["values"], fields["bias"]["dtype"])
    if "accumulate" in fields:
        more["accumulate"] = np.stack([parse_words(row, to) for row in fields["accumulate"]])
    sides = fields["a"], fields["b"]
    directions = tuple(side.get("direction", "row") for side in sides)
    values = np.asarray(subject.gemm(*map(_side, sides), fields["mode"], directions, **more))
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
    else:
        yield from mismatched_words("values", values, " ".join(expected["values"]))


def spec_of(fields: Mapping[str, Any]) -> Spec:
    """Return the specification of an operand, which its name or its record gives."""
    spec = fields["spec"]
    return resolve(spec) if isinstance(spec, str) else from_json(json.dumps(spec))


def _side(fields: Mapping[str, Any]) -> Quantized:
    """Return an operand of a product."""
    parts = DirectionData(
        parse_rows(fields["data"]),
        parse_rows(fields["scales"]),
        parse_words(fields["amax"]) if "amax" in fields else None,
    )
    pair = (parts, None) if fields.get("direction", "row") == "row" else (None, parts)
    return Quantized(spec_of(fields), tuple(fields["shape"]), "float32", fields.get("scale_layout", LINEAR.name), *pair)


def philox(test: TestLike, _: Any) -> Iterator[Mismatch]:
    """Yield an output of Philox. Rules: SR-6."""
    counter, key = ([int(word, 16) for word in test.fields[name].split()] for name in ("counter", "key"))
    got = " ".join(f"{word:08x}" for word in philox4x32(counter, key, test.group["rounds"]).tolist())
    if got != test.fields["words"]:
        yield Mismatch("words", (), test.fields["counter"], test.fields["words"], got)


def random_bits(test: TestLike, subject: Any) -> Iterator[Mismatch]:
    """Bytes of the counter map. Rules: CNF-1, SR-7."""
    fields, expected = test.fields, test.fields["expected"]
    seed, stream = (int(fields[name], 16) for name in ("seed", "stream"))
    got = subject.random_bits(
        tuple(fields["shape"]), fields["direction"], seed, stream, tuple(fields["origin"]), tuple(fields["whole"])
    )
    if "error" in expected:
        yield Mismatch("error", (), "", f"{expected['error']} [{expected['rule']}]", "a result")
    else:
        yield from mismatched("bytes", got, parse_rows(expected["bytes"], got.shape[1]))


def random_map(test: TestLike, _: Any) -> Iterator[Mismatch]:
    """Bytes of one place of a named map. Rules: SR-10."""
    fields = test.fields
    seed, offset = (int(fields[name], 16) for name in ("seed", "offset"))
    drawn = generators.MAPS[test.group["map"]](tuple(fields["shape"]), seed, offset, fields["directions"])
    wanted, column = bytes.fromhex(fields["bytes"]), fields["column"]
    row = getattr(drawn, fields["direction"])[fields["row"]]
    got = row[column : column + len(wanted)].tobytes()
    if got != wanted:
        yield Mismatch("bytes", (fields["row"], column), "", wanted.hex(), got.hex())
