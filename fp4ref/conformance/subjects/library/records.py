"""Records: scales and codes of some blocks side by side in one buffer, as GGUF stores them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.formats import E2M1, Format

ORDERS = ("pairs", "halves")
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Records:
    """The form of a buffer in which blocks are stored as records.

    bytes: of a record. blocks: blocks in a record, in the order of a row. scales, data: the byte of a record at which
    its scales start, one after the other, and its codes. order: "pairs" if codes 2i and 2i + 1 share byte i of a
    block, "halves" if codes i and i + half a block do; the first one is in the low nibble.
    """

    bytes: int
    blocks: int = 1
    scales: int = 0
    data: int = 1
    order: str = "pairs"

    def fault(self, width: int) -> str:
        """Return why the parts of a record do not fit; empty if they do. width: bytes of a block's codes."""
        parts = sorted([(self.scales, self.blocks), (self.data, self.blocks * width)])
        apart = parts[0][0] + parts[0][1] <= parts[1][0] and sum(parts[1]) <= self.bytes
        return "" if apart else f"scales at {self.scales} and {self.blocks * width} bytes of codes at {self.data}"

    def pack(self, data: Bytes, scales: Bytes, block: int, form: Format) -> Bytes:
        """Store rows of codes and their linear scales as records [count, bytes].

        data: [rows, width], element 2i low. scales: [rows, blocks]. Bytes that hold neither are 0x00.

        Rules: CNF-40, PACK-1.
        """
        count = scales.size // self.blocks
        width = packing.width(block, form)
        stored = np.zeros((count, self.bytes), np.uint8)
        if not count:
            return stored
        stored[:, self.scales : self.scales + self.blocks] = scales.reshape(count, self.blocks)
        stored[:, self.data : self.data + self.blocks * width] = self._turned(
            data.reshape(-1, width), block, form
        ).reshape(count, -1)
        return stored

    def unpack(self, stored: Bytes, rows: int, block: int, form: Format) -> tuple[Bytes, Bytes]:
        """Return data [rows, width] and linear scales [rows, blocks] of records. Rules: CNF-40, PACK-1."""
        width = packing.width(block, form)
        scales = stored[:, self.scales : self.scales + self.blocks]
        codes = stored[:, self.data : self.data + self.blocks * width].reshape(-1, width)
        data = self._returned(codes, block, form)
        return data.reshape(rows, -1).copy(), scales.reshape(rows, -1).copy()

    def _turned(self, data: Bytes, block: int, form: Format) -> Bytes:
        if self.order == "pairs" or form is not E2M1:
            return data
        codes = packing.unpack(data, block, form)
        return np.asarray(codes[:, : block // 2] | codes[:, block // 2 :] << 4, np.uint8)

    def _returned(self, data: Bytes, block: int, form: Format) -> Bytes:
        if self.order == "pairs" or form is not E2M1:
            return data
        return packing.pack(np.concatenate([data & 0b1111, data >> 4], axis=1), form)
