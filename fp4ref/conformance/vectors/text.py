"""Vectors as text: floats as hex bit patterns, bytes as hex, and where results differ from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.arrays import INPUT_DTYPES

WORDS = {"float32": ">u4", "bfloat16": ">u2", "float16": ">u2"}


def parse_words(text: str, dtype: str = "float32") -> NDArray[Any]:
    """Floats of a type from hex words."""
    raw = np.frombuffer(bytes.fromhex(text), WORDS[dtype])
    return raw.astype(raw.dtype.newbyteorder("=")).view(INPUT_DTYPES[dtype])


def format_words(values: NDArray[Any]) -> str:
    """Hex words of floats, separated by spaces."""
    size = values.dtype.itemsize
    bits = np.ascontiguousarray(values).view(f"u{size}")
    return bits.astype(f">u{size}").tobytes().hex(" ", size)


def pattern_words(values: NDArray[Any]) -> str:
    """Return the same with the word `nan` for every NaN."""
    nan = np.isnan(values.ravel().astype(np.float32)).tolist()
    return " ".join("nan" if is_nan else word for word, is_nan in zip(format_words(values).split(), nan, strict=True))


def parse_rows(rows: list[str], width: int = 0) -> NDArray[np.uint8]:
    """Bytes [rows, columns] from one hex string per row; width: the columns where there are no rows."""
    columns = len(rows[0]) // 2 if rows else width
    return np.frombuffer(bytes.fromhex("".join(rows)), np.uint8).reshape(len(rows), columns).copy()


def format_rows(values: NDArray[np.uint8]) -> list[str]:
    """Return one hex string for each row of bytes."""
    return [row.tobytes().hex() for row in values]


@dataclass(frozen=True)
class Mismatch:
    """A place at which a result is not as expected; values as text."""

    field: str
    index: tuple[int, ...]
    input: str
    expected: str
    got: str

    def __str__(self) -> str:
        place = f"{self.field}{list(self.index) if self.index else ''}"
        return f"{place}: expected {self.expected}, got {self.got}" + (f" for {self.input}" if self.input else "")


def mismatched(
    field: str, got: NDArray[Any], expected: NDArray[Any], inputs: NDArray[Any] | None = None
) -> list[Mismatch]:
    """Return the places at which two arrays of bytes differ; inputs: floats of the same shape. Rules: CNF-1."""
    if got.shape != expected.shape:
        return [Mismatch(field, (), "", f"shape {list(expected.shape)}", f"shape {list(got.shape)}")]
    if got.dtype != expected.dtype:
        return [Mismatch(field, (), "", str(expected.dtype), str(got.dtype))]
    return [
        Mismatch(
            field,
            tuple(map(int, index)),
            "" if inputs is None else f"{format_words(inputs[tuple(index)][None])} ({float(inputs[tuple(index)]):.9g})",
            f"{int(expected[tuple(index)]):02x}",
            f"{int(got[tuple(index)]):02x}",
        )
        for index in np.argwhere(got != expected)
    ]


def mismatched_words(field: str, got: NDArray[Any], expected: str) -> list[Mismatch]:
    """Return the places at which floats differ from hex words; `nan` stands for every NaN. Rules: CNF-1, NUM-2."""
    words, wanted = format_words(got).split(), expected.split()
    if len(words) != len(wanted):
        return [Mismatch(field, (), "", f"{len(wanted)} values", f"{len(words)} values")]
    nan = np.isnan(got.ravel().astype(np.float32))
    return [
        Mismatch(field, (i,), "", want, word)
        for i, (word, want) in enumerate(zip(words, wanted, strict=True))
        if word != want and not (want == "nan" and nan[i])
    ]
