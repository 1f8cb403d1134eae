"""Claims about packed rows: the bytes of codes of 4, 6 and 8 bits, and the codes of bytes."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from fp4ref import packing
from fp4ref.formats import E2M1, E2M3, E4M3, Codes, Format
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell


class RowsOfCodes(NamedTuple):
    """A format with codes of some bits, the rules of their packing, and the lengths of the rows that are packed."""

    form: Format
    rules: tuple[str, ...]
    lengths: range


ROWS = {
    4: RowsOfCodes(E2M1, ("PACK-1", "PACK-2"), range(1, 10)),
    6: RowsOfCodes(E2M3, ("PACK-4", "PACK-5"), range(1, 10)),
    8: RowsOfCodes(E4M3, ("PACK-3",), range(1, 5)),
}
COVERED = {
    ClaimSubject.GOLDEN: ("fp4ref.packing:pack", "fp4ref.packing:unpack"),
    ClaimSubject.TORCH: ("fp4ref_torch.codecs:pack", "fp4ref_torch.codecs:unpack"),
}


def _in_bytes(codes: Codes, bits: int, spare: int = 0) -> Codes:
    """Return rows as streams of bits, those of each code from the lowest on; the bits past the last are `spare`."""
    rows, count = codes.shape
    each = np.unpackbits(codes[..., None], axis=2, bitorder="little")[..., :bits]
    stream = np.full((rows, -(-count * bits // 8) * 8), spare, np.uint8)
    stream[:, : count * bits] = each.reshape(rows, -1)
    return np.packbits(stream, axis=1, bitorder="little")


def _rows(bits: int, length: int) -> Iterator[Codes]:
    """Yield rows of zeros but for two neighbours, which are every pair of codes; of one code, if there is no other."""
    every = 1 << bits
    pairs = (
        np.indices((every, every), np.uint8).reshape(2, -1).T
        if length > 1
        else np.arange(every, dtype=np.uint8)[:, None]
    )
    for place in range(max(length - 1, 1)):
        codes = np.zeros((len(pairs), length), np.uint8)
        codes[:, place : place + pairs.shape[1]] = pairs
        yield codes


def packs(bits: int, subject: ClaimSubject, tell: Tell) -> Replayed:
    """Compare packed rows with streams of bits, and read them back with spare bits of both kinds."""
    form, _, lengths = ROWS[bits]
    count = 0
    for length in lengths:
        for codes in _rows(bits, length):
            want = _in_bytes(codes, bits)
            got = _packed(codes, form, subject)
            count += len(codes)
            if got.shape != want.shape:
                return Replayed(count, f"{length} codes take {got.shape[1]} bytes, need {want.shape[1]}")
            wrong = np.flatnonzero((got != want).any(axis=1))
            if len(wrong):
                at = wrong[0]
                said = f"codes {codes[at].tobytes().hex(' ')} are {got[at].tobytes().hex(' ')}"
                return Replayed(count, f"{said}, need {want[at].tobytes().hex(' ')}")
            for spare in (0, 1):
                back = _unpacked(_in_bytes(codes, bits, spare), length, form, subject)
                wrong = np.flatnonzero((back != codes).any(axis=1))
                if len(wrong):
                    said = f"codes {codes[wrong[0]].tobytes().hex(' ')} with spare bits {spare}"
                    return Replayed(count, f"{said} are read as {back[wrong[0]].tobytes().hex(' ')}")
        tell((length - lengths.start + 1) / len(lengths))
    return Replayed(count)


def _packed(codes: Codes, form: Format, subject: ClaimSubject) -> Codes:
    if subject is ClaimSubject.GOLDEN:
        return packing.pack(codes, form)
    import torch

    from fp4ref_torch import codecs

    return np.asarray(codecs.pack(torch.from_numpy(codes), form))


def _unpacked(packed: Codes, columns: int, form: Format, subject: ClaimSubject) -> Codes:
    if subject is ClaimSubject.GOLDEN:
        return packing.unpack(packed, columns, form)
    import torch

    from fp4ref_torch import codecs

    return np.asarray(codecs.unpack(torch.from_numpy(packed), columns, form))


def _size(bits: int) -> int:
    return sum((length - 1) << 2 * bits if length > 1 else 1 << bits for length in ROWS[bits].lengths)


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about packed rows."""
    for bits, (_, rules, lengths) in ROWS.items():
        for subject, covers in COVERED.items():
            yield ProofClaim(
                name=f"packing-{bits}/{subject}",
                rules=rules,
                method=Method.EXHAUSTIVE,
                subject=subject,
                statement=f"A row of codes of {bits} bits is the stream of their bits, low ones first; spare bits are "
                "0, and not read.",
                domain=f"every pair of neighbours at every place of rows of up to {lengths[-1]} codes, the others 0",
                size=_size(bits),
                decide=partial(packs, bits, subject),
                covers=covers,
            )
