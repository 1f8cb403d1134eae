"""Pictures of the bytes of a tensor that differ: codes and scales, under the grid of the layout's tiles."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fp4ref import packing
from fp4ref.conformance.judge.compare import unequal
from fp4ref.conformance.reports.view import ShownDirection
from fp4ref.layout import layout

CELLS = 256  # of a picture along its longer side; a larger tensor shares them
GRID = 64  # lines of a grid along one side; a finer grid is left out
ROWS = 1 << 12  # of codes that are unpacked at a time
# Orange of growing strength over any background, and grey for padding.
SHADES = ((0xD5, 0x5E, 0x00, 0x70), (0xD5, 0x5E, 0x00, 0xA8), (0xD5, 0x5E, 0x00, 0xFF))
EQUAL, PADDING = (0, 0, 0, 0), (0x80, 0x80, 0x80, 0x48)


@dataclass(frozen=True)
class Tile:
    """A tile of the layout with differences in it. row, column: of the grid of tiles."""

    row: int
    column: int
    codes: int
    scales: int


@dataclass(frozen=True)
class Picture:
    """A map of differences. shares: of the bytes of each cell, 0 to 1, NaN for padding. shape: what it is a map of.

    unit: rows and columns of a tile, in what the map shows. wide: elements that lie side by side in one of its columns.
    """

    title: str
    shares: NDArray[np.float64]
    shape: tuple[int, int]
    unit: tuple[int, int]
    count: int
    first: tuple[int, int] | None
    wide: int = 1

    @property
    def text(self) -> str:
        """The description for a reader who does not see the picture."""
        where = "" if self.first is None else f", the first at row {self.first[0]}, column {self.first[1]}"
        return f"{self.title}: {self.count:,} of {self.shape[0]:,} x {self.shape[1]:,} differ{where}"


def pictures(exhibit: ShownDirection) -> tuple[Picture, Picture, list[Tile]]:
    """Return maps of the codes [M, K] and of the scales as stored, with padding, and the tiles that differ.

    Rules: LAY-1, LAY-2, LAY-3, LAY-4, LAY-5.
    """
    spec, (rows, columns) = exhibit.spec, exhibit.compared.shape
    order, blocks = layout(exhibit.scale_layout), -(-columns // spec.block.columns)
    padded = order.padded(rows, blocks)
    tile = order.tile if order.tile != (1, 1) else spec.block if spec.block.rows > 1 else (128, 4)
    unit = tile[0], tile[1] * spec.block.columns
    blank = order.from_linear(np.zeros((rows, blocks), np.uint8))
    given = np.asarray(exhibit.got.scales).reshape(blank.shape)
    stray = (given != blank) & order.compared(rows, blocks)
    grid = order.to_linear(given, *padded)
    outside = order.to_linear(stray.view(np.uint8), *padded)
    scales = np.zeros(padded, np.bool_)
    scales[:rows, :blocks] = unequal(spec.scale, grid[:rows, :blocks], exhibit.expected.scales, spec)
    outside[:rows, :blocks] = 0
    scales |= outside.view(np.bool_)
    codes = _codes(exhibit)
    of_codes = _picture("element codes", codes, unit, (rows, columns))
    of_scales = _picture(f"scale bytes, {exhibit.scale_layout}", scales, tile, (rows, blocks), spec.block.columns)
    return of_codes, of_scales, _tiles(codes, scales, unit, tile)


def _codes(exhibit: ShownDirection) -> NDArray[np.bool_]:
    """Codes that differ, [M, K]."""
    spec, (rows, columns) = exhibit.spec, exhibit.compared.shape
    bad = np.zeros((rows, columns), np.bool_)
    for start in range(0, rows, ROWS):
        part = slice(start, min(start + ROWS, rows))
        got, wanted = (
            packing.unpack(np.asarray(data.data[part]), columns, spec.element.format)
            for data in (exhibit.got, exhibit.expected)
        )
        bad[part] = unequal(spec.element, got, wanted, spec)
    return bad


def _picture(
    title: str, bad: NDArray[np.bool_], unit: tuple[int, int], inner: tuple[int, int], wide: int = 1
) -> Picture:
    step = max(-(-max(bad.shape) // CELLS), 1)
    down, across = (-(-size // step) for size in bad.shape)
    edges = [np.arange(count) * step for count in (down, across)]
    sums = np.add.reduceat(np.add.reduceat(bad, edges[0], axis=0, dtype=np.int64), edges[1], axis=1)
    sizes = np.outer(*(np.diff(np.append(edge, size)) for edge, size in zip(edges, bad.shape, strict=True)))
    shares = sums / sizes
    outside = (edges[0][:, None] >= inner[0]) | (edges[1] >= inner[1])
    shares[outside & (sums == 0)] = np.nan
    found = np.argwhere(bad)[:1]
    first = (int(found[0, 0]), int(found[0, 1])) if len(found) else None
    return Picture(title, shares, (bad.shape[0], bad.shape[1]), unit, int(np.count_nonzero(bad)), first, wide)


def _tiles(
    codes: NDArray[np.bool_], scales: NDArray[np.bool_], unit: tuple[int, int], tile: tuple[int, int]
) -> list[Tile]:
    """Return the tiles with differences, the worst first."""
    counts = [_per_tile(codes, unit), _per_tile(scales, tile)]
    shape = tuple(max(a, b) for a, b in zip(counts[0].shape, counts[1].shape, strict=True))
    by_code, by_scale = (np.pad(count, [(0, shape[axis] - count.shape[axis]) for axis in (0, 1)]) for count in counts)
    found = [
        Tile(int(row), int(column), int(by_code[row, column]), int(by_scale[row, column]))
        for row, column in np.argwhere(by_code + by_scale)
    ]
    return sorted(found, key=lambda one: -(one.codes + one.scales))


def _per_tile(bad: NDArray[np.bool_], unit: tuple[int, int]) -> NDArray[np.int64]:
    down, across = (np.arange(0, size, step) for size, step in zip(bad.shape, unit, strict=True))
    return np.add.reduceat(np.add.reduceat(bad, down, axis=0, dtype=np.int64), across, axis=1)


def svg(picture: Picture, width: int = 420) -> str:
    """Return the picture as an independent SVG element with a title for screen readers; cells keep their shape."""
    rows, columns = picture.shape
    height = min(max(round(width * rows / (columns * picture.wide)), 40), width)
    lines = "".join(_grid(picture, width, height))
    return (
        f'<svg class="map" role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
        f"<title>{picture.text}</title>"
        f'<image width="{width}" height="{height}" preserveAspectRatio="none" href="{_png(picture.shares)}"/>'
        f'<path class="grid" d="{lines}"/><rect class="frame" width="{width}" height="{height}"/></svg>'
    )


def _grid(picture: Picture, width: int, height: int) -> Iterator[str]:
    for size, step, extent, other, form in (
        (picture.shape[1], picture.unit[1], width, height, "M{0:.2f} 0V{1}"),
        (picture.shape[0], picture.unit[0], height, width, "M0 {0:.2f}H{1}"),
    ):
        if step < size <= GRID * step:
            yield from (form.format(at * extent / size, other) for at in range(step, size, step))


def _png(shares: NDArray[np.float64]) -> str:
    """Return a picture of a few colours, as an address that holds it."""
    level = 1 + np.digitize(np.nan_to_num(shares), (0.1, 0.5))
    index = np.where(np.isnan(shares), len(SHADES) + 1, np.where(np.nan_to_num(shares) == 0, 0, level)).astype(np.uint8)
    palette = (EQUAL, *SHADES, PADDING)
    rows, columns = index.shape
    scanlines = np.zeros((rows, columns + 1), np.uint8)
    scanlines[:, 1:] = index
    parts = [
        _chunk(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)),
        _chunk(b"PLTE", b"".join(bytes(colour[:3]) for colour in palette)),
        _chunk(b"tRNS", bytes(colour[3] for colour in palette)),
        _chunk(b"IDAT", zlib.compress(scanlines.tobytes(), 9)),
        _chunk(b"IEND", b""),
    ]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
