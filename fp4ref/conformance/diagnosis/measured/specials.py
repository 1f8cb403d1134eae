"""The treatment of NaN, zero blocks and infinite scales, read off the candidate's bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref.conformance.diagnosis.evidence import LARGE, Item
from fp4ref.conformance.diagnosis.measured.amax import bounded_amax
from fp4ref.conformance.mistakes.data_readers import DataReader
from fp4ref.conformance.mistakes.kernel import Kernel, Map, after
from fp4ref.conformance.mistakes.readers import ScaleReader
from fp4ref.conformance.mistakes.record import Mistake, Slot, has_global, known
from fp4ref.formats import Codes, F, Floats
from fp4ref.model.tiles import split


@np.errstate(all="ignore")
def measured_specials(
    kernel: Kernel, items: Sequence[Item], scales: ScaleReader, data: DataReader
) -> Iterator[Mistake]:
    """Rules for special values, with the bytes that the candidate has there, where it has always the same."""
    small = [item for item in items if item.size <= LARGE]
    bounded = bounded_amax(kernel, items) if has_global(kernel) else None
    if bounded is not None:
        yield dataclasses.replace(bounded, special=True)
    yield from _nan_codes(kernel, small, data)
    zero = _byte(kernel, small, scales, lambda blocks: ~np.abs(blocks).any(axis=(2, 3)))
    if zero is not None and zero != 0:
        value = kernel.scale_codec.decode(np.array([zero], np.uint8))[0]
        yield _special(
            "scale-zero-inferred",
            f"the scale byte of a block of zeros is {zero:#04x}",
            scale_value=partial(_zero_as, kernel.scale_value, F(value)),
        )
        yield _special(
            "scale-byte-zero-inferred",
            f"a block scale that rounds to 0 becomes {zero:#04x}",
            scale_byte=after(kernel.scale_byte, partial(_byte_as, zero)),
        )
    nan = _byte(kernel, small, scales, lambda blocks: np.isnan(blocks).any(axis=(2, 3)))
    if nan is not None:
        codec = dataclasses.replace(kernel.scale_codec, nan=(nan, nan))
        yield _special("scale-nan-inferred", f"a NaN scale becomes {nan:#04x}", scale_codec=codec)
        yield _special(
            "scale-nan-block-inferred",
            f"the scale byte of a block with a NaN is {nan:#04x}",
            scale_codec=codec,
            keep_block_nan=True,
        )
        yield _special(
            "scale-nan-stored-inferred",
            f"the scale byte that is stored for a block with a NaN is {nan:#04x}; elements use their own",
            stored=partial(_stored_as, np.isnan, nan),
        )
    infinite = _byte(kernel, small, scales, lambda blocks: np.isinf(blocks).any(axis=(2, 3)))
    if infinite is not None:
        value = kernel.scale_codec.decode(np.array([infinite], np.uint8))[0]
        yield _special(
            "scale-inf-inferred",
            f"an infinite block scale becomes {infinite:#04x}",
            scale_value=partial(_infinite_as, kernel.scale_value, F(value)),
        )
        yield _special(
            "scale-inf-stored-inferred",
            f"the scale byte that is stored for a block with an infinity is {infinite:#04x}; elements use their own",
            stored=partial(_stored_as, np.isinf, infinite),
        )


def _special(name: str, text: str, **changes: Any) -> Mistake:
    return known(Slot.SCALE_CODEC, name, text, special=True, symptom=True, **changes)


def _nan_codes(kernel: Kernel, items: Sequence[Item], data: DataReader) -> Iterator[Mistake]:
    """Yield the codes of NaN elements, by their sign."""
    found: list[list[NDArray[Any]]] = [[], []]
    for item in items:
        codes = item.codes(data)
        values = item.exhibit.quantized(kernel).transformed
        if codes is None or codes.shape != values.shape:
            continue
        for sign in (0, 1):
            found[sign].append(np.unique(codes[np.isnan(values) & (np.signbit(values) == bool(sign))]))
    seen = [np.unique(np.concatenate(codes)) if codes else np.zeros(0, np.uint8) for codes in found]
    if any(len(codes) > 1 for codes in seen) or not any(len(codes) for codes in seen):
        return
    plus, minus = (int((codes if len(codes) else other)[0]) for codes, other in (seen, seen[::-1]))
    if max(plus, minus) >= 1 << kernel.codec.format.bits:
        return
    said = f"{plus:#x}" if plus == minus else f"{plus:#x} or, with its sign, {minus:#x}"
    codec = dataclasses.replace(kernel.codec, nan=(plus, minus))
    yield known(Slot.SIGN, "nan-inferred", f"NaN becomes code {said}", special=True, codec=codec)


def _byte(kernel: Kernel, items: Sequence[Item], scales: ScaleReader, kind: Any) -> int | None:
    """Return the scale byte of all blocks of a kind, if it is always the same."""
    found = []
    for item in items:
        got = item.scales(scales)
        if got is None or not item.size:
            continue
        blocks = np.repeat(kind(split(item.exhibit.quantized(kernel).transformed, kernel.block)), kernel.block.rows, 0)
        if blocks.shape[0] >= got.shape[0] and blocks.shape[1] == got.shape[1]:
            found.append(np.unique(got[blocks[: got.shape[0]]]))
    seen = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint8)
    return int(seen[0]) if len(seen) == 1 else None


def _stored_as(kind: Any, new: int, blocks: Floats, byte: Codes) -> Codes:
    return np.where(kind(blocks).any(axis=(2, 3), keepdims=True), np.uint8(new), byte)


def _zero_as(before: Map, value: np.float32, t: Floats) -> Floats:
    return np.where(t == 0, value, before(t))


def _infinite_as(before: Map, value: np.float32, t: Floats) -> Floats:
    return np.where(np.isinf(t), value, before(t))


def _byte_as(new: int, byte: Codes) -> Codes:
    return np.where(byte == 0, np.uint8(new), byte)
