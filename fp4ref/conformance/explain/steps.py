"""The stages of one element as steps to read: name, value, bits, rules, and how it came about."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fp4ref.arithmetic import stored
from fp4ref.conformance.explain.codec_notes import rounding
from fp4ref.conformance.explain.formulas import cited, decimal, float_bits, formula
from fp4ref.conformance.explain.way import Candidate, Stages
from fp4ref.conformance.families.rules import PACKED
from fp4ref.formats import Codec, F, ignoring_float_warnings
from fp4ref.layout import scale_layouts
from fp4ref.packing import part_of_byte
from fp4ref.spec import Amax, Granularity

OF_A_ZERO_BYTE = "BLK-6"  # a rule on blocks whose scale byte is 0x00 only
NOTE_MIN = 36  # columns that a note needs, to stand beside its step


@dataclass(frozen=True)
class Step:
    """An intermediate. value: decimal; bits: hex, or empty where there are none; note: how it was made."""

    name: str
    value: str
    bits: str = ""
    rules: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Section:
    """Steps under a heading."""

    title: str
    steps: tuple[Step, ...]


@ignoring_float_warnings
def sections(stages: Stages) -> list[Section]:
    """All steps of an element, in the order in which they are taken."""
    found = [Section("input", tuple(_input(stages))), Section("block scale", tuple(_block_scale(stages)))]
    names = ("",) if len(stages.candidates) == 1 else ("first candidate", "second candidate")
    for name, tried in zip(names, stages.candidates, strict=True):
        found.append(Section(name or "element", tuple(_candidate(stages, tried))))
    if names[0]:
        found.append(Section("choice", (_choice(stages),)))
    return [*found, Section("result", tuple(_result(stages)))]


def _input(stages: Stages) -> Iterator[Step]:
    spec, (row, column), (at_row, at_column) = stages.spec, stages.element, stages.at
    note = f"{np.dtype(stages.dtype).name}"
    if stages.direction == "column":
        note += f"; element [{at_row}, {at_column}] of x^T"
    rules = ("NUM-3", "NUM-4") if stages.direction == "row" else ("NUM-3", "NUM-4", "BLK-8")
    yield Step(f"x[{row}, {column}]", decimal(stages.x), float_bits(stages.x), rules, note)
    seen = stages.blocks[stages.inside]
    if spec.hadamard and stages.direction == "column":
        note = f"Hadamard transform, signs {spec.hadamard.signs:#x}"
        yield Step("transformed", decimal(seen), float_bits(seen), ("HAD-2", "HAD-3"), note)
    elif float_bits(F(stages.x)) != float_bits(seen):
        yield Step("flushed", decimal(seen), float_bits(seen), ("NUM-5",), "a subnormal input becomes zero")
    rows, columns = stages.tile
    where = f"{_span('row', rows)}, {_span('column', columns)}"
    if stages.direction == "column":
        where += " of x^T"
    size = f"{spec.block.rows}x{spec.block.columns}"
    yield Step("block", size, "", ("BLK-1",), f"{where}: {_elements(stages)}")


def _span(name: str, part: slice) -> str:
    """Return indices of a range, the last one included."""
    return f"{name} {part.start}" if part.stop - part.start == 1 else f"{name}s {part.start}-{part.stop - 1}"


def _elements(stages: Stages) -> str:
    """Return the values of a block, the explained one in brackets, runs of equal ones as value*count."""
    shown: list[list[Any]] = []
    for index, value in np.ndenumerate(stages.blocks):
        text = f"[{decimal(value)}]" if index == stages.inside else decimal(value)
        if shown and shown[-1][0] == text:
            shown[-1][1] += 1
        else:
            shown.append([text, 1])
    return " ".join(text if count == 1 else f"{text}*{count}" for text, count in shown)


def _block_scale(stages: Stages) -> Iterator[Step]:
    spec, amax = stages.spec, stages.block_amax.flat[0]
    nan = "NaN ignored" if spec.amax is Amax.IGNORE_NAN else "NaN kept"
    note = f"largest magnitude, {nan}{_first_at(stages, amax)}"
    yield Step("block amax", decimal(amax), float_bits(amax), ("BLK-2",), note)
    if stages.amax is not None:
        value = stages.amax[0]
        of, rule = ("row", "GLB-5") if spec.global_scale is Granularity.ROW else ("tensor", "GLB-1")
        transformed = spec.hadamard is not None and stages.direction == "column"
        rules = ("GLB-4",) if stages.amax_given else (rule, "HAD-4") if transformed else (rule,)
        of += ", transformed" if transformed else ""
        note = f"given by the caller for the {of}" if stages.amax_given else f"largest magnitude of the {of}"
        yield Step("global amax", decimal(value), float_bits(value), rules, note)
        yield _computed("global scale g", stages.g.flat[0], spec.arithmetic.global_scale)
    else:
        yield Step("global scale g", "1", float_bits(F(1)), ("GLB-6",), "the specification has none")


def _first_at(stages: Stages, amax: Any) -> str:
    """Return the place of a block's maximum in the matrix of the direction."""
    found = np.argwhere(np.abs(stages.blocks[0, 0]) == amax)
    if not len(found) or amax == 0:
        return ""
    return f", at [{stages.tile[0].start + found[0][0]}, {stages.tile[1].start + found[0][1]}]"


def _computed(name: str, value: Any, function: Any) -> Step:
    return Step(name, decimal(value), float_bits(value), cited(function), formula(function))


def _candidate(stages: Stages, tried: Candidate) -> Iterator[Step]:
    spec, inside = stages.spec, stages.inside
    before, byte = tried.before.flat[0], int(tried.scale.flat[0])
    made = _computed("scale before codec", before, spec.arithmetic.block_scale)
    if tried is not stages.candidates[0]:
        made = dataclasses.replace(made, rules=("FOS-1",), note="1.5 times that of the first candidate")
    yield made
    note, rules = rounding(spec.scale, before, byte)
    s = _decoded(spec.scale, byte)
    yield Step("scale byte", decimal(s), f"0x{byte:02x}", rules, f"{spec.scale.format.name}: {note}")
    if spec.arithmetic.working_scale is not stored:
        yield _computed("scale at work", tried.working.flat[0], spec.arithmetic.working_scale)
    factor, y = tried.factor[inside], tried.y[inside]
    rules = tuple(rule for rule in cited(spec.arithmetic.scaled) if byte == 0 or rule != OF_A_ZERO_BYTE)
    yield Step("factor", decimal(factor), float_bits(factor), rules, "what an element of value 1 becomes")
    yield dataclasses.replace(_computed("scaled value y", y, spec.arithmetic.scaled), rules=rules)
    code = int(tried.codes[inside])
    bits = None if stages.random_bits is None else int(stages.random_bits[inside])
    note, rules = rounding(spec.element, y, code, bits)
    q = _decoded(spec.element, code)
    width = spec.element.format.bits
    yield Step("code", decimal(q), f"0x{code:0{spec.element.format.digits}x}", rules, f"{code:#0{width + 2}b}: {note}")
    if tried.error is not None and spec.four_over_six:
        search = spec.four_over_six
        difference, total = (_inside(formula(function)) for function in (search.difference, search.total))
        note = f"{search.metric}: {difference}; added {total}"
        rules = tuple(dict.fromkeys(cited(search.difference, "FOS-3") + cited(search.total, "FOS-5")))
        yield Step("block error", decimal(tried.error), float_bits(tried.error), rules, note)


def _inside(sentence: str) -> str:
    """Return a sentence as it stands inside of another one."""
    return sentence[:1].lower() + sentence[1:]


def _decoded(codec: Codec, code: int) -> Any:
    return codec.decode(np.array([code], np.uint8))[0]


def _choice(stages: Stages) -> Step:
    second = stages.chosen == 1
    note = "its error is strictly smaller" if second else "the other's error is not strictly smaller"
    return Step("kept", "second candidate" if second else "first candidate", "", ("FOS-6",), note)


def _result(stages: Stages) -> Iterator[Step]:
    spec, (row, column) = stages.spec, stages.at
    width = spec.element.format.bits
    byte = int(stages.made.data[stages.inside[2], (column - stages.first) * width // 8])
    per_row = -(-stages.matrix[1] * width // 8)
    offset = row * per_row + column * width // 8
    part = part_of_byte(width, column)
    note = f"{part and part + ' of '}byte {column * width // 8} of row {row}, offset {offset}"
    yield Step("data byte", str(byte), f"0x{byte:02x}", (PACKED[width],), note)
    blocks = -(-stages.matrix[1] // spec.block.columns)
    block = column // spec.block.columns
    repeated = ("BLK-7",) if spec.block.rows > 1 else ()
    yield Step("scale at", f"[{row}, {block}]", "", repeated, "its byte's offset in each layout:")
    for layout in scale_layouts(stages.matrix[0], blocks):
        offset = layout.offset(row, block, blocks, stages.matrix[0])
        yield Step(f"  {layout.name}", str(offset), f"{offset:#x}", (layout.rule,))
    function = spec.arithmetic.dequantized
    with_global = stages.amax is not None
    rules, note = (cited(function, "DEQ-5"), formula(function)) if with_global else (("DEQ-2",), "q * s")
    yield Step("dequantized", decimal(stages.value), float_bits(stages.value), rules, note)
    wanted = float(stages.blocks[stages.inside])
    error = float(stages.value) - wanted
    relative = f"{abs(error / wanted):.3g} of the value" if wanted and error and np.isfinite(error) else ""
    yield Step("error", f"{error:.6g}", "", (), relative)


def lines(found: list[Section], width: int = 80) -> list[str]:
    """Sections as text: a step's note stands beside it where the width allows, else below it.

    Rules that do not fit beside a step go on in the lines below, in their column.
    """
    steps = [step for section in found for step in section.steps]
    columns = [[step.name, step.value, step.bits, " ".join(step.rules)] for step in steps]
    widths = [max(map(len, column)) for column in zip(*columns, strict=True)]
    beside = 2 + sum(widths) + 2 * len(widths)
    indent = beside if width - beside >= NOTE_MIN else 6
    before = beside - widths[-1] - 2
    room = max(width - before, *(len(rule) for step in steps for rule in ("", *step.rules)))
    text: list[str] = []
    for section in found:
        text += ["", section.title]
        for step in section.steps:
            rules = textwrap.wrap(" ".join(step.rules), room, break_on_hyphens=False) or [""]
            parts = (step.name, step.value, step.bits, rules[0])
            head = "  " + "".join(f"{part:<{size + 2}}" for part, size in zip(parts, widths, strict=True))
            note = textwrap.wrap(step.note, max(width - indent, NOTE_MIN), break_on_hyphens=False)
            if indent == beside:
                text.append((head + (note or [""])[0]).rstrip())
                note = note[1:]
            else:
                text += [head.rstrip(), *(" " * before + more for more in rules[1:])]
            text += [" " * indent + part for part in note]
    return text


def data(stages: Stages) -> dict[str, Any]:
    """Return the same as plain data, for JSON."""
    return {
        "spec": stages.spec.name,
        "direction": stages.direction,
        "element": list(stages.element),
        "code": stages.code,
        "scale": stages.scale,
        "dequantized": float_bits(stages.value),
        "sections": [dataclasses.asdict(section) for section in sections(stages)],
    }
