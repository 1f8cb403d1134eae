"""A claim about tensors of several pieces: a backend that computes a piece at a time takes each one's own arguments."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import F
from fp4ref.proof import blocks, whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.cuts import ON_HOST, UNIT, encoded, matrix

ROWS, COLUMNS = 4200, 512  # pieces of 2^18 elements are 512 rows; the last one is not whole
TALL, SQUARE = (15500, 17), 16  # a matrix of more than one piece, and the side of its blocks
PART = 200  # rows that are compared at a time
CASES = {"nvfp4-sr": "fp4ref.specs:NVFP4_SR", "nvfp4-row-scaled": "fp4ref.specs:NVFP4_ROW_SCALED"}
PLACES = [(row, (row * 37) % COLUMNS) for row in (*range(0, ROWS, 511), ROWS - 1)]


def _tensor() -> NDArray[Any]:
    """Return values of which no two rows are alike."""
    place = np.arange(ROWS * COLUMNS, dtype=np.int64)
    values = np.sin((place * 2654435761 % 1000003).astype(np.float64)) * (1 + place // COLUMNS % 41)
    return values.reshape(ROWS, COLUMNS).astype(ml_dtypes.bfloat16)


def _bytes_of_rows() -> NDArray[np.uint8]:
    place = np.arange(ROWS * COLUMNS, dtype=np.uint64)
    return (place * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(56)).astype(np.uint8).reshape(ROWS, COLUMNS)


def _quantized(spec: str, x: Any, subject: ClaimSubject, bits: Any, amax: Any) -> Any:
    named: dict[str, Any] = {"amax": amax}
    if resolve(spec).stochastic:
        named["random_bits"] = whole._array(bits, subject)
    q = api.quantize(whole._array(x, subject), spec, backend=whole.BACKENDS[subject], **named)
    return q.direction("row")[0].mapped(whole._host)


def pieces(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize a tensor, and its rows by themselves; then find the one largest element wherever it is."""
    x, bits = _tensor(), _bytes_of_rows()
    done = 0
    for spec in CASES:
        amax = np.full(1, 2688, F) if resolve(spec).stochastic else None
        got = _quantized(spec, x, subject, bits, amax)
        for start in range(0, ROWS, PART):
            rows = slice(start, min(start + PART, ROWS))
            alone = _quantized(spec, x[rows], subject, bits[rows], amax)
            for name, mine, its in zip(("data", "scales", "amax"), got, alone, strict=True):
                part = mine if name == "amax" and amax is not None else mine[rows]
                if part.tobytes() != its.tobytes():
                    return Replayed(done, f"{spec}: {name} of rows {rows.start} to {rows.stop} of {ROWS}")
            done += (rows.stop - start) * COLUMNS
        tell(done / _size())
    for place in PLACES:
        largest = x.copy()
        largest[place] = -1000
        found = _quantized("nvfp4", largest, subject, None, None).amax
        if found.tobytes() != np.array([1000], F).tobytes():
            return Replayed(done, f"nvfp4: the element {list(place)} is the largest, and the amax is {found}")
        done += ROWS * COLUMNS
        tell(done / _size())
    return Replayed(done)


def _size() -> int:
    return (len(CASES) + len(PLACES)) * ROWS * COLUMNS


def squares(subject: ClaimSubject, tell: Tell) -> Replayed:
    """Quantize a matrix of few columns in square blocks, and compare with the bytes of the rules."""
    x = (matrix(*TALL) * np.exp2(np.arange(TALL[0])[:, None] // SQUARE % 7)).astype(F)  # unlike in the next block
    want = encoded(x, blocks.nvfp4(UNIT), SQUARE, SQUARE)
    quantize: Any = api.quantize
    got = quantize(whole._array(x, subject), "nvfp4-2d", amax=UNIT, backend=whole.BACKENDS[subject]).row
    for name, its in (("data", want.data), ("scales", want.scales)):
        wrong = np.argwhere(whole._host(getattr(got, name)) != its)
        if len(wrong):
            return Replayed(x.size, f"{name} at {wrong[0].tolist()} of {list(TALL)}")
    return Replayed(x.size)


def claims() -> Iterator[ProofClaim]:
    """Yield the claim for each backend."""
    for subject in ON_HOST:
        values = [
            whole.value_of(spec, reference, subject)
            for spec, reference in (*CASES.items(), ("nvfp4", "fp4ref.specs:NVFP4"))
        ]
        yield ProofClaim(
            name=f"pieces/{subject}",
            rules=("GLB-1", "GLB-5", "SR-2"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Rows of a large tensor have the bytes that they have alone, and its amax is that of all rows.",
            domain=f"bfloat16 of {ROWS} x {COLUMNS} with random bytes or amaxes of rows, and with one largest element "
            f"at {len(PLACES)} places",
            size=_size(),
            decide=partial(pieces, subject),
            covers=(*whole.QUANTIZED[subject], *values),
            reduction="a backend repeats one loop over pieces, of which here there are eight whole ones and a part",
        )
        yield ProofClaim(
            name=f"pieces-of-squares/{subject}",
            rules=("BLK-1", "BLK-7"),
            method=Method.ARGUMENT,
            subject=subject,
            statement="Square blocks of a tall matrix have the bytes of the rules: no piece ends inside a block.",
            domain=f"a matrix of {TALL[0]} x {TALL[1]}",
            size=TALL[0] * TALL[1],
            decide=partial(squares, subject),
            covers=(*whole.QUANTIZED[subject], whole.value_of("nvfp4-2d", "fp4ref.specs:NVFP4_2D", subject)),
            reduction="a piece is some 2^18 elements of whole rows, whose number here is no multiple of 16 in itself",
        )
