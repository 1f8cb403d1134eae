from __future__ import annotations

import importlib
import math
import os
import random
import re
import shlex
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import fp4ref
from fp4ref import relayouts, rules
from fp4ref.cli import main
from fp4ref.diagrams import catalogue, cheat_sheet
from fp4ref.diagrams.gemm_figure import PRODUCTS
from fp4ref.diagrams.layout_text import layout_text, sum_lines
from fp4ref.diagrams.layouts import scale_layout
from fp4ref.diagrams.memory_order import sample
from fp4ref.diagrams.mma_fragments import fragments
from fp4ref.diagrams.mx_scales import mx_scales
from fp4ref.diagrams.overview import AWAY, BLOCK
from fp4ref.diagrams.palette import COLOURS, FILLS, MONOSPACE, SANS
from fp4ref.diagrams.pipeline import pipeline
from fp4ref.diagrams.place import Geometry
from fp4ref.diagrams.png import _draws_text, png
from fp4ref.diagrams.request import Request
from fp4ref.diagrams.stochastic_figure import VALUES, runs
from fp4ref.diagrams.text_width import BOLD, REGULAR, text_width
from fp4ref.diagrams.weight_cache import LIVES
from fp4ref.errors import BackendError, DomainError, Fp4Error, ShapeError
from fp4ref.formats import FORMATS, Codec, Format, Rounding
from fp4ref.layout import LAYOUTS, STANDARD_LAYOUTS, TILED_128X4, Layout, worked
from fp4ref.packing import pack
from scripts import load

RUNNER = CliRunner()
SVG = "{http://www.w3.org/2000/svg}"
GOLDEN = Path(__file__).parent / "data" / "diagrams"


class Drawn(Mapping[str, str]):
    """The figures and variants by name; the first look at one draws them all."""

    def __iter__(self) -> Iterator[str]:
        return iter((*catalogue.FIGURES, *(variant for variant, _, _ in catalogue.VARIANTS)))

    def __len__(self) -> int:
        return len(catalogue.FIGURES) + len(catalogue.VARIANTS)

    def __getitem__(self, name: str) -> str:
        return self.every[name]

    @cached_property
    def every(self) -> dict[str, str]:
        return dict(catalogue.all_figures())


ALL = Drawn()
COMMANDS = ("diagram", "where")
EXAMPLES = [
    line.strip()
    for name in COMMANDS
    for line in main.get_command(None, name).epilog.splitlines()
    if line.strip().startswith(f"fp4ref {name}")
]


def texts(svg: str) -> list[ET.Element]:
    return ET.fromstring(svg).findall(f".//{SVG}text")


def titles(svg: str) -> list[str]:
    return [found.text or "" for found in ET.fromstring(svg).findall(f".//{SVG}rect/{SVG}title")]


def box(element: ET.Element) -> tuple[float, float, float, float]:
    """What a text covers at most: left, top, right, bottom."""
    size, mono = float(element.get("font-size")), "fp-mono" in element.get("class", "")
    width = text_width(element.text or "", size, mono, element.get("font-weight") == "bold")
    left = (
        float(element.get("x")) - {"start": 0.0, "middle": width / 2, "end": width}[element.get("text-anchor", "start")]
    )
    y = float(element.get("y"))
    return left, y - 0.75 * size, left + width, y + 0.2 * size


@pytest.mark.parametrize("name", ALL)
def test_figure_is_valid_and_described(name: str) -> None:
    root = ET.fromstring(ALL[name])
    assert root.get("role") == "img"
    assert [root.find(f"{SVG}{part}").get("id") for part in ("title", "desc")] == root.get("aria-labelledby").split()
    assert len(root.find(f"{SVG}title").text) > 10
    assert len(root.find(f"{SVG}desc").text) > 20
    assert float(root.get("width")) == 800
    assert "prefers-color-scheme:dark" in root.find(f"{SVG}style").text
    assert not re.search(r"https?://(?!www\.w3\.org/)", ALL[name])


def test_frames_are_drawn_over_what_stands_beside_them() -> None:
    """In `packing-element` the next byte would cover an edge of the chosen one's frame."""
    kinds = [found.get("class", "") for found in ET.fromstring(ALL["packing-element"]).iter(f"{SVG}rect")]
    marks = [number for number, kind in enumerate(kinds) if "fp-line-mark" in kind]
    assert marks == [*range(len(kinds) - 2, len(kinds))]
    said = " ".join(text.text for text in texts(ALL["packing-element"]))
    assert "spare" not in said
    assert "spare nibble" in " ".join(text.text for text in texts(ALL["packing"]))


def test_variants_show_rules_that_exist() -> None:
    assert {*catalogue.SHOWN} <= {variant for variant, _, _ in catalogue.VARIANTS}
    assert {rule for shown in catalogue.SHOWN.values() for rule in shown} <= {*rules.defined()}


def too_wide(svg: str, boxes: list[tuple[float, float, float, float]]) -> list[str]:
    """Texts that cross the edge of the smallest box with an edge that their middle is in."""
    rects = [
        tuple(float(found.get(name)) for name in ("x", "y", "width", "height"))
        for found in ET.fromstring(svg).findall(f".//{SVG}rect")
        if found.get("x") and not {"fp-line-none", "fp-line-mark"} & set(found.get("class").split())
    ]
    said = []
    for element, (left, top, right, bottom) in zip(texts(svg), boxes, strict=True):
        x, y = (left + right) / 2, (top + bottom) / 2
        around = [one for one in rects if one[0] <= x <= one[0] + one[2] and one[1] <= y <= one[1] + one[3]]
        if around:
            cell = min(around, key=lambda one: one[2] * one[3])
            if left < cell[0] - 0.5 or right > cell[0] + cell[2] + 0.5:
                said.append(f"wider than its cell: {element.text}")
    return said


GAP = 2.1  # between two texts of one line, by the widest font: less reads as one number


def faults(svg: str) -> list[str]:
    """Texts that are clipped, small, wider than their cells, over or beside each other, by the widest common font."""
    root, found = ET.fromstring(svg), texts(svg)
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [box(element) for element in found]
    said = [
        f"clipped: {element.text}"
        for element, (left, top, right, bottom) in zip(found, boxes, strict=True)
        if left < -1 or top < 0 or right > width + 1 or bottom > height
    ]
    said += too_wide(svg, boxes)
    said += [f"small: {element.text}" for element in found if float(element.get("font-size")) < 7]
    order = sorted(range(len(boxes)), key=lambda index: boxes[index][1])
    for place, first in enumerate(order):
        for second in order[place + 1 :]:
            a, b = boxes[first], boxes[second]
            if b[1] >= a[3]:
                break
            if min(a[2], b[2]) - max(a[0], b[0]) > 0.5 and min(a[3], b[3]) - b[1] > 0.5:
                said.append(f"{found[first].text} over {found[second].text}")
            elif a[3] == b[3] and max(a[0], b[0]) - min(a[2], b[2]) < GAP:
                said.append(f"{found[first].text} touches {found[second].text}")
    return said


@pytest.mark.parametrize("name", ALL)
def test_no_text_is_clipped_small_or_overlapping(name: str) -> None:
    assert faults(ALL[name]) == []


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("size", [1, 2, 8])
def test_a_window_may_begin_and_end_within_a_byte(first: int, size: int) -> None:
    svg = catalogue.draw("packing", shape=(3, 40), window=((0, 1), (first, first + size)))
    assert faults(svg) == []
    drawn = [element.text for element in texts(svg)]
    assert sum(text.startswith("x[") for text in drawn) == size
    assert sum(text.startswith("byte ") for text in drawn) == (first + size + 1) // 2 - first // 2


OF_A_SPEC = [name for name in catalogue.FIGURES if {"spec", "shape"} & {*catalogue.figure(name).takes} == {"spec"}]


@pytest.mark.heavy  # by default the figures of one profile, without faults
@pytest.mark.parametrize("name", OF_A_SPEC)
def test_the_numbers_of_every_profile_fit_their_cells(name: str) -> None:
    drawn: dict[str, str] = {}  # one profile for each drawing: many have the same numbers
    specs = list(fp4ref.profiles.values())
    if name == "mma-fragments":  # these are all that it draws of a specification, and it has hundreds of cells
        specs = list({fragments(spec): spec for spec in specs}.values())
        assert len(specs) >= 3
    for spec in specs:
        with suppress(Fp4Error):  # a figure of a part that the specification lacks
            drawn.setdefault(catalogue.draw(name, spec=spec), spec.name)
    assert drawn
    assert {said: found for svg, said in drawn.items() if (found := faults(svg))} == {}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_options_give_a_clean_figure_or_a_reason(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from([*catalogue.FIGURES]))
    shape = data.draw(
        st.tuples(st.integers(1, 400), st.integers(1, 400)) | st.sampled_from([(1, 1), (4096, 5), (5, 4097)])
    )
    start, size = st.integers(0, 30), st.integers(1, 40)
    ranges = st.tuples(start, size).map(lambda pair: (pair[0], pair[0] + pair[1]))
    options = {
        "spec": st.sampled_from([spec for spec in fp4ref.profiles.values() if not spec.stochastic]),
        "shape": st.just(shape),
        "direction": st.sampled_from(["row", "column"]),
        "layout": st.sampled_from(STANDARD_LAYOUTS),
        "element": st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1)),
        "window": st.tuples(ranges, ranges),
        "sizes": st.lists(st.integers(0, 40), min_size=2, max_size=3).map(tuple),
    }
    takes = catalogue.figure(name).takes
    chosen = {option: data.draw(options[option]) for option in takes if data.draw(st.booleans())}
    if "element" in chosen and "shape" in takes:
        chosen["shape"] = shape
    reason, svg = "", ""
    try:
        svg = catalogue.draw(name, **chosen)
    except Fp4Error as error:
        reason = error.needed
    assert reason or faults(svg) == []


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_colours_have_contrast(dark: bool) -> None:
    """Text 4.5 to 1 and lines 3 to 1 on what they stand on, without regard to hue."""
    colour = {name: pair[dark] for name, pair in COLOURS.items()}
    for fill in ("paper", *FILLS):
        assert contrast(colour["ink"], colour[fill]) >= 7
        assert contrast(colour["muted"], colour[fill]) >= 4.5
        assert contrast(colour["mark"], colour[fill]) >= 3
    for text in ("mark", *FILLS.upper()):
        assert contrast(colour[text], colour["paper"]) >= 4.5, text
    assert contrast(colour["edge"], colour["paper"]) >= 3


# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
SEEN_AS = {
    "normal": np.eye(3),
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]


def lab(linear: np.ndarray) -> np.ndarray:
    xyz = np.array(TO_XYZ) @ np.clip(linear, 0, 1) / [0.95047, 1, 1.08883]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("sight", SEEN_AS)
def test_fills_differ_for_colour_blind_readers(sight: str, dark: bool) -> None:
    seen = []
    for fill in FILLS:
        parts = np.array([int(COLOURS[fill][dark][at : at + 2], 16) / 255 for at in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        seen.append(lab(np.array(SEEN_AS[sight]) @ linear))
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) >= 10


def test_a_theme_changes_a_figure_and_nothing_else_does() -> None:
    """`test_all_writes_every_figure` draws each of them a second time."""
    assert catalogue.draw("tiled_128x4") == ALL["tiled_128x4"]
    assert catalogue.draw("tiled_128x4", theme="dark") != ALL["tiled_128x4"]


@pytest.mark.heavy  # draws many tensors; by default one of each layout
@pytest.mark.rule("LAY-1", "LAY-2", "LAY-3", "LAY-4", "LAY-5")
@settings(max_examples=16, deadline=None)
@given(
    name=st.sampled_from([form.name for form in STANDARD_LAYOUTS]),
    rows=st.integers(1, 600),
    columns=st.integers(1, 700),
    direction=st.sampled_from(["row", "column"]),
    data=st.data(),
)
def test_labels_are_those_of_the_layout(
    name: str, rows: int, columns: int, direction: str, data: st.DataObject
) -> None:
    element = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    top, left = (element[0], element[1] // 16) if direction == "row" else (element[1], element[0] // 16)
    window = (top, top + 1), (left, left + 1)
    svg = catalogue.draw(name, shape=(rows, columns), direction=direction, element=element, window=window)
    layout = LAYOUTS[name]
    matrix = (rows, columns) if direction == "row" else (columns, rows)
    blocks = -(-matrix[1] // 16)
    shown = [re.fullmatch(r"byte (\d+): (.*) \((\d+), (\d+)\)", title) for title in titles(svg)]
    shown = [match for match in shown if match]
    assert shown
    for match in shown:
        row, column = int(match[3]), int(match[4])
        assert int(match[1]) == layout.offset(row, column, blocks)
        assert ("padding" in match[2]) == (row >= matrix[0] or column >= blocks)
    assert any((int(m[3]), int(m[4])) == (top, left) for m in shown)
    labels = {element.text for element in texts(svg)}
    for match in shown:
        if "padding" not in match[2] and "labels count from" not in labels:
            assert f"{match[3]},{match[4]}" in labels
    if layout.tile != (1, 1):
        tile = next(m for m in titles(svg) if m.startswith("tile "))
        number, first, last = map(int, re.match(r"tile (\d+): bytes (\d+) to (\d+)", tile).groups())
        size = layout.tile[0] * layout.tile[1]
        assert (first, last) == (number * size, (number + 1) * size - 1)
        assert layout.index(first, blocks) == (top // layout.tile[0] * layout.tile[0], left // 4 * 4)


@pytest.mark.rule("LAY-1", "LAY-3", "LAY-4")
@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 400), columns=st.integers(1, 900), tiled=st.sampled_from(["tiled_128x4", "tiled_8x4"]))
def test_side_by_side_labels(rows: int, columns: int, tiled: str) -> None:
    blocks = -(-columns // 16)
    svg = catalogue.draw("linear-tiled", shape=(rows, columns), layout=LAYOUTS[tiled])
    shown = [re.fullmatch(r"scale \((\d+), (\d+)\): byte (\d+)", title) for title in titles(svg)]
    tables = [[tuple(map(int, match.groups())) for match in shown if match]]
    half = len(tables[0]) // 2
    for name, cells in zip(("linear", tiled), (tables[0][:half], tables[0][half:]), strict=True):
        assert all(offset == LAYOUTS[name].offset(row, column, blocks) for row, column, offset in cells)


@pytest.mark.sampled(5)
@pytest.mark.rule("LAY-3", "LAY-4", "LAY-13")
@pytest.mark.parametrize(
    "name", [name for name, form in LAYOUTS.items() if form.has_tiles and not form.unfit_for_scales()]
)
def test_every_byte_of_a_tile_is_in_its_table(name: str) -> None:
    """A tile too large for one figure is drawn by its windows; all of them together leave no byte out."""
    layout = LAYOUTS[name]
    high, wide = layout.tile
    windows = [None]
    if high * wide > 512:
        windows = [((0, high), (left, left + 4)) for left in range(0, wide, 4)]
        with pytest.raises(ShapeError, match="too large"):
            catalogue.draw("tile-offsets", layout=layout)
    seen = {}
    for window in windows:
        svg = catalogue.draw("tile-offsets", layout=layout, window=window)
        assert faults(svg) == []
        for match in [re.fullmatch(r"scale \((\d+), (\d+)\): byte (\d+)", title) for title in titles(svg)]:
            seen[int(match[1]), int(match[2])] = int(match[3])
        shown = [element.text for element in texts(svg)]
    assert {*seen} == {(row, column) for row in range(high) for column in range(wide)}
    assert all(byte == layout.offset(row, column, wide, high) for (row, column), byte in seen.items())
    if name == "tiled_128x4":  # the sum of cuBLAS' manual
        assert seen == {(m, k): m % 32 * 16 + m // 32 * 4 + k for m in range(128) for k in range(4)}
        assert [text for text in shown if text.isdigit()] == [str(byte) for byte in seen.values()]


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([form.name for form in STANDARD_LAYOUTS]),
    rows=st.integers(1, 500),
    columns=st.integers(1, 500),
    data=st.data(),
)
def test_text_has_the_offsets_of_the_layout(name: str, rows: int, columns: int, data: st.DataObject) -> None:
    element = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    blocks, layout = -(-columns // 16), LAYOUTS[name]
    lines = catalogue.text(name, shape=(rows, columns), element=element).splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("  row "))
    shown = [int(column) for column in re.findall(r"k=(\d+)", lines[head])]
    for line in lines[head + 1 : lines.index("", head)]:
        if line.strip() != "…":
            row, *offsets = [int(part) for part in line.replace("[", " ").replace("]", " ").split()]
            assert offsets == [layout.offset(row, column, blocks) for column in shown]
    memory = [line for line in lines if re.match(r" *\d+: ", line)]
    for line in memory:
        start, _, cells = line.partition(":")
        for number, cell in enumerate(cells.split()):
            row, column = layout.index(int(start) + number, blocks)
            assert cell.strip("[]") == (f"{row},{column}" if row < rows and column < blocks else "--")
    scale = element[0], element[1] // 16
    assert f"[{layout.offset(*scale, blocks)}]" in "\n".join(lines)


@pytest.mark.parametrize("shape", [(131072, 16384), (999_999, 16), (7, 99_999), (300, 288)])
@pytest.mark.parametrize("name", [form.name for form in STANDARD_LAYOUTS])
def test_columns_of_the_text_stand_below_each_other(name: str, shape: tuple[int, int]) -> None:
    """Each number ends where its column's head ends, and each cell of memory where the one above it does."""
    lines = catalogue.text(name, shape=shape, element=(shape[0] - 1, shape[1] - 1)).splitlines()
    head = next(number for number, line in enumerate(lines) if re.match(" *row +k=", line))
    table = [line for line in lines[head : lines.index("", head)] if line.strip() != "…"]
    assert len({tuple(match.end() for match in re.finditer(r"\S+", line)) for line in table}) == 1
    ends = [[m.end() for m in re.finditer(r"\S+", line)] for line in lines if re.match(r" *\d+: ", line)]
    assert all(found == max(ends, key=len)[: len(found)] for found in ends)


@pytest.mark.parametrize("name", [form.name for form in STANDARD_LAYOUTS])
def test_golden_text(name: str) -> None:
    got = catalogue.text(name, shape=(200, 160), element=(37, 130))
    assert got == (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.rule("BLK-8", "PACK-1", "PACK-2", "PACK-3", "LAY-10")
@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(["nvfp4", "nvfp4-2d", "mxfp4", "mxfp8-e4m3"]),
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    direction=st.sampled_from(["row", "column"]),
    layout=st.sampled_from([form.name for form in STANDARD_LAYOUTS]),
    data=st.data(),
)
def test_place_is_where_the_quantizer_puts_it(
    name: str, rows: int, columns: int, direction: str, layout: str, data: st.DataObject
) -> None:
    """Change one element from a block of zeros: the bytes that change are the ones that `place` names."""
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    x = np.zeros((rows, columns), np.float32)
    amax = np.float32([6 * 448]) if name.startswith("nvfp4") else None
    before = fp4ref.quantize(x, name, direction, layout, amax=amax).direction(direction)[0]
    x[row, column] = 6.0
    after = fp4ref.quantize(x, name, direction, layout, amax=amax).direction(direction)[0]
    place = Geometry(fp4ref.profiles[name], (rows, columns), direction).place(row, column)
    (changed,) = np.flatnonzero(before.data.ravel() != after.data.ravel())
    assert changed == place.data_byte
    value = int(after.data.ravel()[changed])
    assert (value >> 4 == 0, value & 15 == 0) == {"low": (True, False), "high": (False, True), None: (False, False)}[
        place.nibble
    ] or place.nibble is None
    scales = np.flatnonzero(before.scales.ravel() != after.scales.ravel())
    assert place.scale_byte(LAYOUTS[layout]) in scales
    elements = [found.element for found in place.geometry.of_data_byte(place.data_byte)]
    assert (row, column) in elements
    assert place.geometry.of_scale_byte(place.scale_byte(LAYOUTS[layout]), LAYOUTS[layout]) == place.scale


def test_the_sentence() -> None:
    place = Geometry(fp4ref.NVFP4, (300, 256)).place(37, 130)
    assert place.sentence() == (
        "element (37, 130) of a K = 256 NVFP4 tensor: data byte 4801 low nibble, scale (37, 8), linear byte 600, "
        "tiled byte 1108"
    )
    lines = catalogue.text("tiled_128x4", shape=(300, 256), element=(37, 130))
    assert place.sentence() in " ".join(lines.split())
    assert (
        place.sentence()
        in ET.fromstring(catalogue.draw("tiled_128x4", shape=(300, 256), element=(37, 130))).find(f"{SVG}desc").text
    )


@pytest.mark.rule("E2M1-3")
def test_ties_of_the_figure() -> None:
    """The limits and the codes that they go to, written down here."""
    found = texts(ALL["e2m1"])
    at = {element.get("x"): element.text.removeprefix("→ ") for element in found if element.text.startswith("→ ")}
    limits = [element for element in found if element.get("font-size") == "9"]
    codes = {"0.25": "0", "0.75": "2", "1.25": "2", "1.75": "4", "2.5": "4", "3.5": "6", "5": "6"}
    assert {element.text: at[element.get("x")] for element in limits} == codes


USERS = {  # formats that a user registers: the limits between codes, and where they go, written down here
    "test.e3m0": (
        Format("test.e3m0", 3, 0, bias=3, codes=8),
        {"0.375": "2", "0.75": "2", "1.5": "4", "3": "4", "6": "6", "12": "6"},
    ),
    "test.ue0m4": (
        Format("test.ue0m4", 0, 4, bias=1, codes=10, signed=False),
        {f"{(code + 0.5) / 16:.6g}": f"{code + code % 2:x}" for code in range(1, 9)},
    ),
    "test.one": (Format("test.one", 3, 0, bias=3, codes=2), {}),
}


@pytest.mark.parametrize("name", USERS)
def test_a_format_of_a_user_is_drawn(name: str) -> None:
    form, codes = USERS[name]
    FORMATS.register(form, "a test")
    try:
        found = texts(svg := catalogue.draw(name))
    finally:
        FORMATS.forget(name)
    assert faults(svg) == []
    at = {element.get("x"): element.text.removeprefix("→ ") for element in found if element.text.startswith("→ ")}
    limits = [element for element in found if element.get("font-size") == "9"]
    assert {element.text: at[element.get("x")] for element in limits} == codes
    assert not any("NaN: " in element.text for element in found)  # no specification says what NaN becomes


def test_a_format_is_drawn_as_its_specification_encodes() -> None:
    form = Format("test.up", 8, 0, bias=127, codes=200, signed=False)
    spec = fp4ref.MXFP4.replace(name="test.mx", scale=Codec(format=form, rounding=Rounding.UP, nan=(255, 255)))
    FORMATS.register(form, "a test")
    fp4ref.profiles.register(spec, "a test")
    try:
        words = " ".join(element.text for element in texts(catalogue.draw("test.up", window=((127, 130), (0, 1)))))
    finally:
        fp4ref.profiles.forget("test.mx")
        FORMATS.forget("test.up")
    assert "rounding is up; past 2^72, infinity too: 0xc7; NaN: 0xff." in words
    assert "NaN = 0xc8 to 0xff" in words
    assert "→ 7f" in words


@pytest.mark.rule("SR-2")
def test_stochastic_runs_are_those_of_the_rule() -> None:
    found = {value: runs(value) for value in VALUES}
    assert found[0.3] == [(0, 103, 0), (103, 256, 1)]
    assert found[-0.3] == [(0, 103, 8), (103, 256, 9)]
    assert found[1.9] == [(0, 52, 3), (52, 256, 4)]
    assert found[2.4] == [(0, 154, 4), (154, 256, 5)]
    assert found[4.5] == [(0, 192, 6), (192, 256, 7)]
    assert found[5.9] == [(0, 13, 6), (13, 256, 7)]
    assert found[7.0] == [(0, 256, 7)]


@pytest.mark.rule("HAD-1")
def test_hadamard_signs_of_the_figure() -> None:
    shown = [re.fullmatch(r"x(\d+) in y(\d+): ([+-])0\.25", title) for title in titles(ALL["hadamard"])]
    found = {(int(m[1]), int(m[2])): m[3] for m in shown if m}
    assert len(found) == 256
    for (j, i), sign in found.items():
        negative = (i & j).bit_count() % 2 ^ (0xD7E8 >> j & 1)
        assert sign == ("-" if negative else "+")


@pytest.mark.heavy
def test_verdict_of_the_overview_is_that_of_verify(tmp_path: Path) -> None:
    x = np.zeros((1, 16), np.float32)
    x[0, : len(BLOCK)] = BLOCK
    q = fp4ref.quantize(x, AWAY)
    np.savez(tmp_path / "kernel.npz", x=x, data=q.row.data, scales=q.row.scales, amax=q.row.amax)
    result = RUNNER.invoke(main, ["verify", str(tmp_path / "kernel.npz"), "--spec", "nvfp4", "--layout", "linear"])
    shown = next(element.text for element in texts(ALL["overview"]) if element.text.startswith("wrong: "))
    verdict, count = shown.split("; ")
    assert verdict in result.output
    assert f"in {count.split()[0]} codes" in result.output


@pytest.mark.rule("GEM-1")
def test_gemm_directions() -> None:
    assert [(p.name, p.a.direction, p.b.direction) for p in PRODUCTS] == [
        ("fprop", "row", "row"),
        ("dgrad", "row", "column"),
        ("wgrad", "column", "column"),
    ]
    for product in PRODUCTS:
        assert {*product.a.axes, *product.b.axes} - {product.a.summed} == set(product.axes)


@pytest.mark.rule("GEM-10", "HAD-4")
def test_gemm_says_which_operands_are_transformed_in_their_own_column() -> None:
    svg = ALL["gemm-hadamard"]
    assert [element.text for element in texts(svg)].count("Hadamard transform first") == 2
    assert "no Hadamard, as dY has none" in " ".join(element.text for element in texts(svg))
    result = min(float(element.get("x")) for element in texts(svg) if element.text == "[M, K]")
    notes = [element for element in texts(svg) if element.text.startswith(("blocks of", "no Hadamard", "Hadamard"))]
    assert max(box(element)[2] for element in notes) < result - 30
    assert not any("Hadamard" in element.text for element in texts(ALL["gemm"]))


@pytest.mark.heavy
def test_pipeline_of_every_profile() -> None:
    both = [(spec, direction) for spec in fp4ref.profiles.values() for direction in ("row", "column")]
    for spec, direction in both:
        if direction == "column" and not spec.hadamard:
            continue
        svg = pipeline(Request(spec=spec, direction=direction))
        assert faults(svg) == [], spec.name
        words = " ".join(element.text for element in texts(svg))
        assert ("Hadamard" in words) == bool(spec.hadamard and direction == "column"), spec.name
        assert ("global amax" in words) == (spec.global_scale != "none"), spec.name
        assert ("1.5 · t" in words) == bool(spec.four_over_six), spec.name
        left = min(float(element.get("x")) for element in texts(svg) if element.text in {"block amax a", "global amax"})
        assert left < 50, f"a lane of {spec.name} is empty"


def require_fonts() -> None:
    """A PNG needs a font; one is required in CI, elsewhere its lack is a reason to skip."""
    if not _draws_text():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(
            "no font here: apt-get install fonts-dejavu-core"
        )


def test_png_without_a_font_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fp4ref.diagrams.png._draws_text", lambda: False)
    with pytest.raises(BackendError, match="a font on this machine"):
        png("<svg/>")


def test_png_has_text_and_pixels() -> None:
    require_fonts()
    image = png(catalogue.draw("packing", theme="light"), 1)
    assert image.startswith(b"\x89PNG")
    assert int.from_bytes(image[16:20], "big") == 800
    assert png(catalogue.draw("packing", theme="light"), 1) == image
    assert png(catalogue.draw("packing", theme="dark"), 1) != image


@pytest.mark.parametrize("line", EXAMPLES)
def test_examples_of_the_help(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if line.endswith(".png"):
        require_fonts()
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(main, shlex.split(line)[1:])
    assert result.exit_code == 0, result.output
    assert result.output


@pytest.mark.rule("LAY-3")
def test_tensor_memory_has_a_row_per_lane_and_group() -> None:
    """Lane m % 32, column m / 32, byte k, as CUTLASS copies a tile. Written down here."""
    shown = [re.fullmatch(r"lane (\d+), column (\d+): scales (.*)", title) for title in titles(ALL["tensor-memory"])]
    found = {(int(m[1]), int(m[2])): m[3] for m in shown if m}
    assert len(found) == 128
    for (lane, column), scales in found.items():
        row = 32 * column + lane
        assert scales == ", ".join(f"({row}, {k})" for k in range(4))


@pytest.mark.parametrize(("name", "depth"), [("mma-fragments", 64), ("mma-fragments-8-bit", 32)])
def test_mma_fragments_are_those_of_the_manual(name: str, depth: int) -> None:
    """The formulas of the PTX ISA 9 for m16n8k64 and m16n8k32, by lane and place in the fragment. Written down here.

    Element i of a fragment is in register i // 8 or i // 4; its row of A is the group, or 8 more in the odd registers.
    """
    shown = {}
    pattern = r"(\w) (?:m|n) (\d+), (?:k|n) (\d+)(?: to \d+)?: lane (\d+), register \w(\d)"
    for match in filter(None, (re.fullmatch(pattern, title) for title in titles(ALL[name]))):
        shown[match[1], int(match[2]), int(match[3])] = int(match[4]), int(match[5])
    manual, four, half = {}, depth // 8, depth // 2
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for register in range(4):
            row = group if register % 2 == 0 else group + 8
            manual["a", row, thread * four + (half if register >= 2 else 0)] = lane, register
        for register in range(2):
            manual["b", group, thread * four + half * register] = lane, register
        for i in range(4):
            manual["d", group if i < 2 else group + 8, thread * 2 + (i & 1)] = lane, i
    assert shown == manual
    scales = [re.fullmatch(r"scales of (\w) (\d+), .*: lane (\d+)", title) for title in titles(ALL[name])]
    lanes = {(match[1], int(match[2])): int(match[3]) for match in scales if match}
    assert lanes == {("m", m): m % 8 * 4 + m // 8 for m in range(16)} | {("n", n): n * 4 for n in range(8)}


def test_compared_formats_have_the_error_of_their_bytes() -> None:
    """Each bar shows what the public functions return, and NVFP4 is better than MXFP4."""
    words = " ".join(element.text or "" for element in texts(ALL["formats-compared"]))
    errors = {
        name: float(error) for name, error in re.findall(r"(\S+): [\d.]+ bits an element, error ([\d.]+) %", words)
    }
    assert errors["MXFP4"] > errors["NVFP4"] > errors["MXFP6-E2M3"] > errors["MXFP8-E4M3"]
    shown = [
        re.fullmatch(r"(\w+), element (\d+): x = (\S+), read back (\S+)", t) for t in titles(ALL["formats-compared"])
    ]
    x = np.float32([float(match[3]) for match in shown if match][:32])
    q = fp4ref.quantize(x[None], "mxfp4", backend="numpy")
    values = fp4ref.dequantize(q, "float32", backend="numpy")[0]
    assert [f"{value:.6g}" for value in values] == [match[4] for match in shown if match][:32]
    error = 100 * np.sqrt(np.mean((values - x.astype(float)) ** 2) / np.mean(x.astype(float) ** 2))
    assert abs(error - errors["MXFP4"]) < 0.1


def test_scale_vectors_are_those_of_the_manual() -> None:
    """The tables of valid kinds and of selectors, and the IDs for K = 96 (PTX ISA 9). Written down here."""
    words = {element.text for element in texts(ALL["scale-vectors"])}
    assert {".scale_vec::1X", ".scale_vec::2X", ".scale_vec::4X"} <= words
    assert {f"scale_A M x {n}, scale_B {n} x N" for n in (1, 2, 4)} <= words
    shown = [re.fullmatch(r"(\w+), selector (\d): bytes (\d) to (\d)", t) for t in titles(ALL["scale-vectors"])]
    found = [(match[1], *map(int, match.groups()[1:])) for match in shown if match]
    assert found == [("mxf8f6f4", byte, byte, byte) for byte in range(4)] + [
        ("mxf4", 0, 0, 1),
        ("mxf4", 2, 2, 3),
        ("mxf4nvf4", 0, 0, 3),
    ]
    pattern = r"(\w+) with K = 96, word (\d), selector (\d): (\d) bytes, K from (\d+)"
    deep = [match.groups() for match in map(re.compile(pattern).fullmatch, titles(ALL["scale-vectors"])) if match]
    ids = {kind: {int(selector) for name, _, selector, *_ in deep if name == kind} for kind in ("mxf4", "mxf4nvf4")}
    assert ids == {"mxf4": {0, 1, 2, 3}, "mxf4nvf4": {0, 2}}  # byte offsets for block32, halves for block16
    for _, word, selector, count, k in deep:
        block = 96 // int(count)
        assert 4 * int(word) + int(selector) == int(k) // block
    pattern = r"B, N up to (\d+), n (\d+)–(\d+), word (\d): columns (\d+) to (\d+)"
    found = [tuple(map(int, m.groups())) for m in map(re.compile(pattern).fullmatch, titles(ALL["scale-vectors"])) if m]
    # What CUTLASS' tmem_sf_frg prints: 32 rows to a column, and words along K 4 columns (N = 128) or 8 (N = 256) apart.
    assert found == [
        *[(128, 0, 127, word, 4 * word, 4 * word + 3) for word in range(3)],
        *[(256, 0, 127, word, 8 * word, 8 * word + 3) for word in range(3)],
        *[(256, 128, 255, word, 8 * word + 4, 8 * word + 7) for word in range(3)],
    ]


def test_limits_between_codes_are_exact() -> None:
    """Halves of steps of 2^-6: seven decimals."""
    words = {element.text for element in texts(ALL["int8"])}
    assert {"1.0078125", "1.0234375", "1.1171875"} <= words


def test_cheat_sheet_has_the_codes_and_the_sum() -> None:
    """Written down here: the magnitudes of E2M1, its ties, and the byte of scale (37, 8)."""
    words = " ".join(element.text or "" for element in texts(ALL["cheat-sheet"]))
    assert "beyond 6 saturates" in words
    for value, goes in ((0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4)):
        assert f"{value:g} to {goes:g}" in words
    assert "7  0111" in words
    assert "tiled byte 1108" in words
    assert "128 x 64 elements of NVFP4, 128 x 128 of MX" in words
    for line in [command for command, _ in cheat_sheet.COMMANDS]:
        assert main.get_command(None, line.split()[1]) is not None


def test_pitfalls_have_the_numbers_of_one_tensor() -> None:
    """300 x 18 scales take 3 x 5 tiles of 512 bytes; members of 100 and 60 rows take one row of tiles each."""
    words = " ".join(element.text for element in texts(ALL["pitfalls"]))
    tile = 2 * 5 + 4  # of scale (299, 17): row of tiles 2, column of tiles 4
    last = tile * 512 + (299 % 32) * 16 + (299 % 128 // 32) * 4 + 17 % 4
    for said in ("5400 bytes", "are 7680", "2280 bytes past", f"is at byte {last}", "right: 2560", "wrong: 2304"):
        assert said in words
    assert "member 1: bytes 2560 to 5119" in words
    assert "wrong: 1800" in words


@pytest.mark.parametrize(
    "name",
    [
        name if place % 16 == 0 else pytest.param(name, marks=pytest.mark.release)
        for place, name in enumerate(relayouts.every())
    ],
)
def test_memory_of_every_layout(name: str) -> None:
    """Each unit that is drawn has the index whose offset it is; no two units have the same."""
    svg = catalogue.draw("memory", layout=relayouts.named(name))
    assert faults(svg) == []
    form = relayouts.named(name)
    shown = [re.fullmatch(r"\d+-bit unit (\d+): \((.*)\)", title) for title in titles(svg)]
    found = {int(match[1]): tuple(map(int, match[2].split(", "))) for match in shown if match}
    assert len(set(found.values())) == len(found) > 20
    words = " ".join(element.text or "" for element in texts(svg))
    left_out = len(found) < math.prod(map(int, re.findall(r"\d+", words[words.index("the array is") :].split(".")[0])))
    assert ("Drawn are" in words) == left_out
    sizes = sample(form)
    for offset, index in found.items():
        assert int(form.offsets(index, sizes)) == offset
    assert relayouts.consumer(name) in ET.fromstring(svg).find(f"{SVG}desc").text


def test_memory_names_the_consumer_and_the_codes_of_ggml() -> None:
    """A block of MXFP4 in a GGUF file is a scale byte and 16 bytes: element i low, element i + 16 high."""
    svg = ALL["memory-ggml.mxfp4_data"]
    assert "Read by: llama.cpp, GGUF files: MXFP4." in ET.fromstring(svg).find(f"{SVG}desc").text
    shown = titles(svg)
    assert shown[:4] == [
        "4-bit unit 0: not of this layout",
        "4-bit unit 1: not of this layout",
        "4-bit unit 2: (0, 0)",
        "4-bit unit 3: (0, 16)",
    ]
    assert "4-bit unit 34: not of this layout" in shown


def test_a_layout_that_refuses_sizes_is_drawn() -> None:
    svg = catalogue.draw("vllm.marlin_scale_nvfp4", shape=(128, 256), element=(37, 130))
    assert "vllm.marlin_scale_nvfp4 byte" in ET.fromstring(svg).find(f"{SVG}desc").text


@pytest.mark.parametrize(
    ("name", "columns", "hatched"), [("nvfp4", 7, True), ("nvfp4", 8, False), ("mxfp6-e2m3", 8, False)]
)
def test_spare_bits_are_named_where_they_are_drawn(name: str, columns: int, hatched: bool) -> None:
    svg = catalogue.draw("packing", spec=fp4ref.profiles[name], shape=(1, columns))
    assert any("(hatched)" in (element.text or "") for element in texts(svg)) is hatched


@pytest.mark.parametrize("name", ["e2m1", "tiled_128x4-element", "hierarchy-mx", "pipeline-nvfp4-rht-column"])
def test_command_under_a_figure_draws_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(main, shlex.split(catalogue.command(name))[1:])
    assert result.exit_code == 0, result.output
    assert Path(f"{name}.svg").read_text(encoding="utf-8") == ALL[name]


def test_rules_of_every_figure_are_defined() -> None:
    assert {rule for name in ALL for rule in catalogue.cited(name)} <= set(rules.defined())
    assert catalogue.cited("tiled_8x4-element")[0] == "LAY-4"


@pytest.mark.heavy  # an example of the help draws them all, too
def test_all_writes_every_figure(tmp_path: Path) -> None:
    result = RUNNER.invoke(main, ["diagram", "--all", str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    assert {path.stem: path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("*.svg")} == dict(ALL)


@pytest.mark.parametrize(
    "arguments, said",
    [
        ("diagram tiled", "tiled_128x4"),
        ("diagram hadamard --spec nvfp4", "[HAD-1]"),
        ("diagram mxfp8-scales --spec mxfp8-2d", "[BLK-7]"),
        ("diagram linear-tiled --layout linear", "[LAY-1]"),
        ("diagram linear-tiled --layout swizzled", "[SPC-4]"),
        ("diagram linear-tiled --layout low_first", "[RES-6]"),
        ("diagram tiled_128x4 --shape 8192x8192 -o x.svg", "--window 0:2048,0:48, or an --element"),
        ("diagram tiled_128x4 --shape 8192x8192 --element 5000,8000 --window 0:4096,0:8 -o x.svg", "4096:6144,480:512"),
        ("diagram tiled_8x4 --shape 300x160 -o x.svg", "--window"),
        ("diagram blocks --shape 4096x4096", "--window"),
        ("diagram tiled_128x4 --shape 128x256 --element 128,0", "[NUM-4]"),
        ("diagram tiled_128x4 --shape 0x256", "[NUM-4]"),
        ("diagram tiled_128x4 --shape 20x64 --direction column --spec nvfp4-rht", "[HAD-5]"),
        ("diagram gemm --element 1,2", "--spec"),
        ("diagram gemm --as text", "a layout"),
        ("diagram e4m3 --window 0:50,0:1", "at most 9 codes"),
        ("diagram packing --shape 1x100 -o x.svg", "--window"),
        ("diagram gemm -o x.pdf", "suffix"),
        ("where 1 2 --shape 1x1", "[NUM-4]"),
        ("where --shape 4x4 --scale-byte 9 --layout linear", "[LAY-1]"),
        ("where --shape 4x4 --scale-byte 0", "LAY-7"),
        ("where --shape 4x4", "give ROW COLUMN"),
        ("where 0 0 --shape 4x4 --layout tiles", "[LAY-59]"),
    ],
)
def test_bad_input_says_what_is_needed(
    arguments: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = RUNNER.invoke(main, shlex.split(arguments))
    assert result.exit_code == 2
    assert said in " ".join(result.output.split())
    assert not [*tmp_path.iterdir()]


def test_errors_are_ours() -> None:
    with pytest.raises(DomainError, match="BLK-7"):
        mx_scales(Request(spec=fp4ref.MXFP8_2D))
    with pytest.raises(ShapeError):
        catalogue.draw("tiled_128x4", shape=(10**6, 10**6))
    with pytest.raises(Fp4Error, match="one of overview"):
        catalogue.draw("nothing")


@pytest.mark.rule("TEL-7")
def test_weight_cache_has_the_counts_of_the_rule() -> None:
    rule = rules.defined()["TEL-7"]
    for life in LIVES:
        assert f"| {life.name} | {life.moved} | {life.written} |" in rule.text


def test_bytes_of_the_fused_figure() -> None:
    """bfloat16 is 2 bytes, a code half a byte, a scale a sixteenth."""
    words = ET.fromstring(ALL["fused"]).find(f"{SVG}desc").text
    apart = 2 + (2 + 2) + 2 + 2 * (2 + 0.5 + 1 / 16) + 2 * (1 / 16 + 1 / 16)
    together = 2 + 2 + 2 * (0.5 + 1 / 16)
    assert re.findall(r"[\d.]*\d", words) == [f"{apart}", f"{together}"]
    with pytest.raises(DomainError, match="GLB-1"):
        catalogue.draw("fused", spec=fp4ref.MXFP4)


@pytest.mark.rule("LAY-5")
def test_padding_byte_is_named() -> None:
    result = RUNNER.invoke(main, shlex.split("where --shape 4x64 --scale-byte 511 --layout tiled_128x4"))
    assert "padding" in result.output


MEASURE = """
const [svg, zooms] = arguments, holder = document.body;
holder.innerHTML = svg.slice(svg.indexOf("<svg"));
const root = holder.querySelector("svg"), [, , width, height] = root.getAttribute("viewBox").split(" ").map(Number);
const plain = ({ x, y, width, height }) => ({ x, y, width, height });  // its numbers are read a thousand times
return zooms.map((zoom) => {
root.setAttribute("width", width * zoom);
root.setAttribute("height", height * zoom);
const shown = [...root.querySelectorAll("text")].map((one) => [one.textContent, plain(one.getBBox())]);
const cells = [...root.querySelectorAll("svg > rect, svg > g > rect")]
  .filter((one) => one.hasAttribute("x") && !/fp-line-(none|mark)/.test(one.getAttribute("class")))
  .map((one) => plain(one.getBBox())).sort((a, b) => a.width * a.height - b.width * b.height);
const faults = [];
shown.forEach(([text, a], i) => {
  if (a.x < 0 || a.y < -2 || a.x + a.width > width + 1 || a.y + a.height > height + 1) faults.push(`clipped: ${text}`);
  const x = a.x + a.width / 2, y = a.y + a.height / 2;
  const cell = cells.find((c) => c.x <= x && x <= c.x + c.width && c.y <= y && y <= c.y + c.height);
  const past = (c) => Math.max(c.x - a.x, a.x + a.width - c.x - c.width);
  if (cell && past(cell) > 0.5) faults.push(`out of its cell: ${text}`);
  const beside = cells.find((c) => c.y <= y && y <= c.y + c.height && a.x < c.x - 1 && c.x + 1 < a.x + a.width);
  if (!cell && beside) faults.push(`into a box beside it: ${text}`);
  for (let j = i + 1; j < shown.length; j++) {
    const [other, b] = shown[j];
    const across = Math.min(a.x + a.width, b.x + b.width) - Math.max(a.x, b.x);
    const down = Math.min(a.y + a.height, b.y + b.height) - Math.max(a.y, b.y);
    if (across > 0.5 && down > 0.35 * Math.min(a.height, b.height)) faults.push(`${text} over ${other}`);
  }
});
return faults;
});
"""
FONTS = {"DejaVu": ("DejaVu Sans", "DejaVu Sans Mono"), "Liberation": ("Liberation Sans", "Liberation Mono")}
WIDTHS = """
const [family, texts] = arguments, context = document.createElement("canvas").getContext("2d");
return texts.map(([text, bold]) => {
  context.font = `${bold ? "bold " : ""}100px '${family}', monospace`;
  return context.measureText(text).width;
});
"""


@pytest.fixture(params=["DejaVu", pytest.param("Liberation", marks=pytest.mark.heavy)])
def in_font(request: pytest.FixtureRequest, chromium: Any) -> Any:
    """A browser, and a function that measures a figure's text in the font; CI has both fonts."""
    sans, mono = FONTS[request.param]
    chromium.get("data:text/html,<body></body>")
    if len(set(chromium.execute_script(WIDTHS, sans, [("iiii", False), ("WWWW", False)]))) == 1:
        missing = f"no {sans} here: apt-get install fonts-dejavu-core fonts-liberation"
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)

    def measured(svg: str, *zooms: float) -> list[list[str]]:
        found: list[list[str]] = chromium.execute_script(
            MEASURE, svg.replace(SANS, f"'{sans}'").replace(MONOSPACE, f"'{mono}'"), zooms
        )
        return found

    return measured


@pytest.mark.heavy  # by default the widths are computed
def test_text_stays_in_its_canvas_and_cell_in_a_browser(in_font: Any) -> None:
    """Measured with two fonts; boxes have room above and below the glyphs."""
    charts = load(Path(__file__).parents[1] / "docs/generate/charts.py")
    drawn = {**ALL, **{name: draw("light") for name, draw in charts.CHARTS.items()}}
    faults = {name: in_font(svg, 1, 0.53, 0.88, 1.06) for name, svg in drawn.items()}  # by zoom
    assert {name: found for name, found in faults.items() if any(found)} == {}


LARGE = [(131072, 16384), (8192, 8192), (7168, 2048), (1, 1), (100, 18), (999, 99999)]


@pytest.mark.release
def test_text_of_random_shapes_stays_in_its_cell_in_a_browser(in_font: Any) -> None:
    chosen = random.Random(19)
    faults = {}
    for name in [name for name in catalogue.FIGURES if "element" in catalogue.figure(name).takes]:
        for shape in LARGE + [(chosen.randrange(1, 5000), chosen.randrange(1, 5000)) for _ in range(4)]:
            element = chosen.randrange(shape[0]), chosen.randrange(shape[1])
            (found,) = in_font(catalogue.draw(name, shape=shape, element=element), 1)
            faults.update({(name, shape, element): found} if found else {})
    assert faults == {}


def test_text_widths_in_a_browser_are_upper_estimates(chromium: Any) -> None:
    """Every character that a figure can show, and the figures' own texts, regular and bold, in every font here."""
    chromium.get("data:text/html,<body></body>")
    characters = [c for table in (REGULAR, BOLD) for listed in table.values() for c in listed]
    words = ["".join(element.itertext()) for svg in ALL.values() for element in texts(svg)][::7]
    asked = [(text, bold) for text in sorted({*characters, *words}) for bold in (False, True)]
    for sans, mono in FONTS.values():
        for family, is_mono in ((sans, False), (mono, True)):
            for (text, bold), width in zip(asked, chromium.execute_script(WIDTHS, family, asked), strict=True):
                assert width <= text_width(text, 100, is_mono, bold) + 0.1, (family, text, bold)


@pytest.mark.heavy
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_any_element_of_any_shape_is_drawn(data: st.DataObject) -> None:
    """A figure that takes an element draws the part with it, however large the tensor is, and says its bytes."""
    name = data.draw(st.sampled_from([name for name in catalogue.FIGURES if "element" in catalogue.figure(name).takes]))
    shape = data.draw(st.tuples(st.integers(1, 200_000), st.integers(1, 40_000)) | st.sampled_from(LARGE))
    element = data.draw(st.tuples(st.integers(0, shape[0] - 1), st.integers(0, shape[1] - 1)))
    svg = catalogue.draw(name, shape=shape, element=element)
    assert faults(svg) == []
    marked = [rect for rect in ET.fromstring(svg).iter(f"{SVG}rect") if "fp-line-mark" in rect.get("class", "")]
    assert marked
    place = Geometry(fp4ref.NVFP4, shape).place(*element)
    assert f"data byte {place.data_byte} " in " ".join(one.text for one in texts(svg))


@pytest.mark.parametrize(
    "text, shape, element",
    [
        ("n(*) b(*): |17 b0 n0", (1280, 16384), (1279, 16383)),
        ("m(3,5,*) k(7,*): m1 k0 |240 m0 k1 m2", (98880, 23708), (98879, 23707)),
        ("m(*,2) k(3,*): k1 m1 k0 m0; pad m 10; base 5", (197667, 19204), (197666, 0)),
        ("m(*,2) k(3,*): k1 m1 k0 m0; pad m 10; base 5", (34604, 16893), (0, 0)),
    ],
)
def test_labels_of_a_large_tensor_fit(text: str, shape: tuple[int, int], element: tuple[int, int]) -> None:
    """Rows far apart beside each other, gaps and a base; one byte is marked, and it is the element's scale."""
    layout = LAYOUTS.register(Layout("test.large", text))
    try:
        svg = scale_layout(Request(layout=layout, shape=shape, element=element))
    finally:
        LAYOUTS.forget(layout.name)
    assert faults(svg) == []
    marks = [rect for rect in ET.fromstring(svg).iter(f"{SVG}rect") if "fp-line-mark" in rect.get("class", "")]
    assert len(marks) == 1


@pytest.mark.parametrize("name", [name for name, found in LAYOUTS.items() if len(found.axes) == 2])
@pytest.mark.rule("LAY-13", "LAY-17", "LAY-19", "LAY-20")
def test_the_worked_sum_is_the_offset(name: str) -> None:
    """Python evaluates the sum, in numbers and in symbols, to the byte that the layout's map gives."""
    layout, chosen = LAYOUTS[name], random.Random(name)
    sizes = tuple(3 * axis.multiple for axis in layout.axes)
    for _ in range(10):
        index = tuple(chosen.randrange(size) for size in sizes)
        said = worked.worked(layout, sizes, index)
        text, _, answer = said.rpartition(" = ")
        assert int(answer) == int(layout.offsets(index, sizes))
        assert eval(text) == int(answer), said
        assert eval(worked.formula(layout, sizes, ("m", "k")), dict(zip("mk", index, strict=True))) == int(answer)


@pytest.mark.parametrize("name", [name for name, found in LAYOUTS.items() if found.strides(*found.multiples).table])
@pytest.mark.rule("LAY-21")
def test_the_worked_sum_goes_through_the_table(name: str) -> None:
    """The sum of the digits, the table's entry and the sum after it, each evaluated by Python."""
    layout, chosen = LAYOUTS[name], random.Random(name)
    sizes = tuple(3 * axis.multiple for axis in layout.axes)
    table = [int(part) for part in layout.text.partition("table ")[2].partition(";")[0].split(",")]
    for _ in range(20):
        index = tuple(chosen.randrange(size) for size in sizes)
        said = worked.worked(layout, sizes, index)
        digits, moved = said.split("; place ")
        place, entry = re.match(r"(\d+) of the table is (\d+): ", moved).groups()
        before, (after, answer) = digits.rpartition(" = ")[2], moved.partition(": ")[2].split(" = ")
        assert eval(digits.rpartition(" = ")[0]) == int(before)
        assert (int(before) % len(table), table[int(place)]) == (int(place), int(entry))
        assert eval(after) == int(answer) == int(layout.offsets(index, sizes)), said


@pytest.mark.rule("LAY-16", "LAY-39")
def test_the_legend_tells_a_gap_from_padding() -> None:
    """A base leaves bytes to others: they are no padding. A layout with neither has no such entry."""
    for text, shape, words in (
        ("m(*) k(*): k0 m0; base 5", (4, 64), {"gap"}),
        ("m(*,2) k(3,*): k1 m1 k0 m0; pad m 10; base 5", (31, 80), {"padding", "gap"}),
        ("m(32,4,*) k(4,*): k0 m1 m0 k1 m2", (97, 80), {"padding"}),
        ("m(*) k(*): k0 m0", (4, 64), set()),
    ):
        layout = LAYOUTS.register(Layout("test.legend", text))
        try:
            request = Request(layout=layout, shape=shape)
            svg, plain = ET.fromstring(scale_layout(request)), layout_text(request)
        finally:
            LAYOUTS.forget(layout.name)
        legend = {found.text for found in svg.iter(f"{SVG}text") if found.text in {"padding", "gap"}}
        assert legend == words
        said = plain.partition("scale (row,column) at each byte")[2].partition("\n")[0]
        assert {word for word in ("padding", "gap") if word in said} == words


@pytest.mark.rule("LAY-3", "LAY-4")
@pytest.mark.parametrize("name", ["linear", "linear_padded", "tiled_128x4", "tiled_8x4"])
@pytest.mark.parametrize(
    "shape, element", [((128, 64), (37, 30)), ((300, 288), (37, 130)), ((131072, 16384), (130000, 16000))]
)
def test_lines_of_a_layout_as_text_fit_a_terminal(name: str, shape: tuple[int, int], element: tuple[int, int]) -> None:
    """No line but a sum or a layout's own words is wider than a page, and every byte of four lines of 16 is there."""
    text = layout_text(Request(layout=LAYOUTS[name], shape=shape, element=element))
    wide = [line for line in text.splitlines() if len(line) > 96 and " = " not in line and "CuTe" not in line]
    assert not wide
    lines = text.partition("at each byte")[2].split("\n\n")[0].splitlines()[1:]
    starts = [int(line.partition(":")[0]) for line in lines]
    cells = [len(line.partition(":")[2].split()) for line in lines]
    assert sum(cells) == 64
    assert starts == [starts[0] + sum(cells[:i]) for i in range(len(cells))]


@pytest.mark.parametrize("width", [60, 80])
def test_a_layout_as_text_fits_a_narrower_terminal(width: int) -> None:
    """A sum is broken between its terms, and means the same."""
    for name in STANDARD_LAYOUTS:
        text = catalogue.text(name.name, width, shape=(28672, 8192), element=(20000, 8000))
        assert max(map(len, text.splitlines())) <= width
        terms = text.partition("byte = ")[2].split()
        wide = layout_text(Request(layout=name, shape=(28672, 8192), element=(20000, 8000)), 1000)
        assert terms == wide.partition("byte = ")[2].split()
    lines = sum_lines("tiled byte = (37 // 128)*2560 + (8 // 4)*512 + 8 % 4 = 1108", 40, "  ")
    assert lines == ["  tiled byte = (37 // 128)*2560 +", "    (8 // 4)*512 + 8 % 4 = 1108"]


@pytest.mark.rule("LAY-13")
def test_worked_sum_and_cute_of_the_tiled_layout() -> None:
    """Written down here from the rule's own digits."""
    assert worked.worked(TILED_128X4, (300, 18), (37, 8)) == (
        "(37 // 128)*2560 + (8 // 4)*512 + (37 % 32)*16 + (37 // 32 % 4)*4 + 8 % 4 = 1108"
    )
    assert worked.cute(TILED_128X4, (128, 4), (1, 16)) == "((32,4,1),(16,4,1)):((16,4,512),(0,1,512))"
    assert worked.cute(Layout("turned", "m(8,*) k(8,*): k0^m0 m0 k1 m1"), (8, 8)) == ""


def test_text_places_and_explorer_need_no_extra(tmp_path: Path) -> None:
    code = """
import sys
sys.modules.update(drawsvg=None, resvg_py=None)
from fp4ref.cli import main
for arguments in sys.argv[1:]:
    try:
        main(arguments.split())
    except SystemExit as ended:
        print("status", ended.code, file=sys.stderr)
"""
    page = str(tmp_path / "page.html")
    served = ("diagram", "diagram tiled_128x4", "where 1 2 --shape 4x4", f"explore -o {page}")
    refused = ("diagram gemm", f"diagram gemm -o {page}.png")
    run = subprocess.run([sys.executable, "-c", code, *served, *refused], capture_output=True, text=True, check=True)
    assert re.findall("status (.*)", run.stderr) == ["0"] * len(served) + ["2"] * len(refused), run.stderr
    assert run.stderr.count("pip install 'fp4ref[diagrams]'") == len(refused)


@pytest.mark.rule("PACK-4", "PACK-5")
@pytest.mark.parametrize("columns, window", [(7, None), (33, (26, 33)), (64, (8, 16))])
def test_six_bits_are_drawn_where_they_are(columns, window):
    spec = fp4ref.MXFP6_E2M3
    drawn = catalogue.draw("packing", spec=spec, shape=(1, columns), window=window and ((0, 1), window))
    first, stop = window or (0, columns)
    stored = np.unpackbits(pack((np.arange(columns)[None] * 13 % 64).astype(np.uint8), spec.element.format)[0])
    seen = set()
    for cell in re.finditer(
        r"<title>byte (\d+), element (\d+), its bits (\d) to (\d)</title>.*?>([01]+)<", drawn, re.DOTALL
    ):
        byte, element, low, high = map(int, cell.groups()[:4])
        start = element * 6 + low - byte * 8
        bits = stored[byte * 8 : byte * 8 + 8][::-1][start : start + high - low + 1][::-1]
        assert "".join(map(str, bits)) == cell[5]
        seen |= {(element, bit) for bit in range(low, high + 1)}
    assert {(element, bit) for element in range(first, stop) for bit in range(6)} <= seen
    assert ("spare bits" in drawn) == (stop == columns and columns % 4 != 0)


@pytest.mark.rule("INT8-1", "UE4M3-1", "UE5M3-1")
@pytest.mark.parametrize(
    "name, said",
    [
        ("int8", ("1.984375", "256 finite values", "no infinity, no NaN", "the integer")),
        ("ue4m3", ("448", "127 finite values", "0x7f = 0, and is never written", "unused")),
        ("ue5m3", ("255 finite values", "NaN = 0xff", "no sign")),
    ],
)
def test_every_registered_format_has_a_figure(name, said):
    assert set(fp4ref.formats.FORMATS) - {n for n in fp4ref.formats.FORMATS if "." in n} <= set(catalogue.FIGURES)
    for words in said:
        assert words in ALL[name]


@pytest.mark.parametrize("width", [80, 60])
def test_where_fits_the_terminal(monkeypatch, width):
    module = importlib.import_module("fp4ref.cli.common")
    asked = ["where", "37", "130", "--shape", "300x288"]
    whole = CliRunner().invoke(main, asked).output
    monkeypatch.setattr(module, "terminal_width", lambda: width)
    fitted = CliRunner().invoke(main, asked).output
    assert max(map(len, whole.splitlines())) > 100
    assert max(map(len, fitted.splitlines())) <= width
    assert fitted.split() == whole.split()


def test_each_variant_has_a_point_of_its_own():
    """The values of a variant make its point, so no two variants of a figure have the same one."""
    points = [(figure, catalogue.point(name)) for name, figure, _ in catalogue.VARIANTS]
    assert len(set(points)) == len(points)
    assert "there is no global scale" in catalogue.point("hierarchy-mx")
    assert "x^T is transformed first" in catalogue.point("pipeline-nvfp4-rht-column")
    assert catalogue.point("memory-high_first") == "high_first begins with (0, 1), then comes (0, 0)."
    runs = "aiter.shuffle_weight_16x16 runs along k to (0, 15), then comes (1, 0)."
    assert catalogue.point("memory-aiter.shuffle_weight_16x16").startswith(runs)


@pytest.mark.rule("LAY-13", "LAY-32")
@pytest.mark.parametrize(("name", "shape"), [("vllm.kv_v_scale", "2x4x8x4"), ("flashinfer.sf_8x4", "2x9x5")])
def test_layouts_of_more_axes_are_drawn_for_a_shape(name: str, shape: str, tmp_path: Path) -> None:
    form, sizes = relayouts.named(name), tuple(map(int, shape.split("x")))
    where = tmp_path / "figure.svg"
    assert RUNNER.invoke(main, ["diagram", name, "--shape", shape, "-o", str(where)]).exit_code == 0
    shown = [re.fullmatch(r"\d+-bit unit (\d+): \((.*)\)", title) for title in titles(where.read_text())]
    found = {tuple(map(int, match[2].split(", "))): int(match[1]) for match in shown if match}
    assert set(found) == set(np.ndindex(*sizes))  # all of them
    assert all(int(form.offsets(index, sizes)) == offset for index, offset in found.items())


@pytest.mark.rule("RES-4")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--shape", "64x64"], "shape 64x64, need 4 sizes of at least 1, of p, h, t, s [LAY-32]"),
        (["--shape", "1x1x0x1"], "shape 1x1x0x1, need 4 sizes of at least 1, of p, h, t, s [LAY-32]"),
        (["--shape", "99x99x400x99"], "shape 99x99x400x99, need at most 1,048,576 units to draw"),
        (["--element", "1,2"], "--element of a layout with 4 axes, need one of the options that it takes: --shape"),
    ],
)
def test_options_that_a_layout_of_more_axes_does_not_take(options: list[str], said: str) -> None:
    run = RUNNER.invoke(main, ["diagram", "vllm.kv_v_scale", *options])
    assert run.exit_code == 2
    assert said in run.output
