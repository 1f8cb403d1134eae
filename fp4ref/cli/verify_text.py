"""The text of `fp4ref verify` for people: the verdict, tensors, mismatches, one block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console

from fp4ref import rules as standard
from fp4ref.cli.common import print_lines, table
from fp4ref.conformance.diagnosis.explanations import Diagnosis, report_lines
from fp4ref.conformance.judge.comparison import Difference, StrayByte
from fp4ref.conformance.mistakes.said import plural
from fp4ref.conformance.verdict.dump_report import Cell, DumpReport, Result, counts
from fp4ref.conformance.verdict.replay import Replay
from fp4ref.conformance.verdict.violated import BROKEN, blame, differing, dump_cells, said_of, worst
from fp4ref.formats import Codec
from fp4ref.spec import Spec

if TYPE_CHECKING:
    from fp4ref.conformance.judge.cases import Judgement
    from fp4ref.conformance.verdict.kernel_report import KernelReport

QUIET = 12  # tensors that conform are listed up to this many
Row = tuple[str, ...]


def print_report(out: Console, report: DumpReport, limit: int) -> None:
    """Print the verdict, the tensors and the first mismatches; if many tensors all conform, one line."""
    if report.ok and len(report.results) > QUIET:
        print_lines(out, [f"{report.path}: {'; '.join([report.headline, *report.coverage.lines])}"], "bold")
        return
    print_lines(out, [f"{report.path}: {report.headline}"], "bold")
    if report.results:
        print_lines(
            out,
            violated_lines(
                report.diagnosis, report.results[0].spec, dump_cells(report), differing(report), report.profiles
            ),
        )
    print_lines(out, report.coverage.lines)
    print_lines(out, [str(error) for error in report.errors])
    shown = [result for result in report.results if not result.compared.equal]
    equal = [result for result in report.results if result.compared.equal]
    if len(equal) <= QUIET:
        shown, equal = list(report.results), []
    rows = [_result_row(result) for result in shown]
    rows += [(f"{len(equal)} more", "", "", "", "0", "0", "0", "")] if equal else []
    _print_table(out, ("tensor", "direction", "shape", "scales at", ">codes", ">scales", ">amax", "other"), rows)
    found = [row for result in report.results for row in _mismatch_rows(result)][:limit]
    if found:
        print_lines(out, ["", f"first {len(found)} mismatches" if len(found) > 1 else "first mismatch"], "bold")
        _print_table(out, ("case", "what", "input", "scale", "expected", "got", "special input"), found)
    if report.diagnosis is not None:
        print_lines(out, ["", "diagnosis of the tensors that differ"], "bold")
        print_lines(out, report_lines(report.diagnosis))


def _result_row(result: Result) -> Row:
    compared = result.compared
    extra = [f"{compared.spare} {compared.spare_counted}"] if compared.spare else []
    extra += [f"{compared.padding} padding bytes"] if compared.padding else []
    amax = "-" if result.spec.global_scale == "none" else f"{compared.amax:,}"
    return (
        result.name or "(unnamed)",
        compared.direction,
        "x".join(map(str, result.shape)),
        result.scale_layout,
        f"{compared.codes:,}",
        f"{compared.scales:,}",
        amax,
        ", ".join(extra),
    )


def _mismatch_rows(result: Result) -> Iterator[Row]:
    compared, name = result.compared, result.name or "(unnamed)"
    if compared.first_amax:
        yield _place_row(
            f"{name}:{compared.direction}", "amax of row" if compared.amax > 1 else "amax", compared.first_amax
        )
    for found in compared.differences:
        yield from _block_rows(result, found)
    if compared.first_spare:
        yield _place_row(f"{name}:{compared.direction}", f"{compared.spare_name} of row", compared.first_spare)
    if compared.first_padding:
        yield _place_row(f"{name}:{compared.direction}", "padding at byte", compared.first_padding)


def _place_row(case: str, what: str, place: StrayByte) -> Row:
    index = "" if what == "amax" else f" {place.index}"
    return case, f"{what}{index}", "", "", place.expected, place.got, ""


def _block_rows(result: Result, found: Difference) -> Iterator[Row]:
    """Yield a line for the scale of a block, if it differs, and one for its first code that does."""
    spec, excuse = result.spec, found.excuse or ""
    scale = scale_text(spec, found.expected_scale)
    if found.got_scale != found.expected_scale:
        yield str(result.case(found)), "scale", "", "", scale, scale_text(spec, found.got_scale), excuse
    if found.got is not None and found.expected is not None:
        more = f" (+{found.codes - 1})" if found.codes > 1 else ""
        what = f"code {found.row},{found.column}{more}"
        wanted, got = code_text(spec, found.expected), code_text(spec, found.got)
        yield str(result.case(found)), what, f"{found.bits} {found.value:.9g}", scale, wanted, got, excuse


def print_replay(out: Console, path: object, found: Replay) -> None:
    """Print the finding on one block, and every element of the row that its case names."""
    print_lines(out, [f"{path} {found.case}: {found.headline}"], "bold")
    wanted, got = (scale_text(found.spec, scale) for scale in (found.expected_scale, found.got_scale))
    note = f"scale: expected {wanted}, got {got}" if found.expected_scale != found.got_scale else f"scale: {wanted}"
    print_lines(out, [note + ("" if found.amax is None else f"; amax {found.amax:.9g}")])
    rows = [
        (
            str(item.column),
            f"{item.bits} {item.value:.9g}",
            code_text(found.spec, item.expected),
            code_text(found.spec, item.got),
            "differs" if item.differs else "",
        )
        for item in found.elements
    ]
    _print_table(out, (">column", "input", "expected", "got", ""), rows)


def scale_text(spec: Spec, code: int) -> str:
    """Return a scale byte and what it means."""
    return f"0x{code:02x} {_value(spec.scale, code):.6g}"


def code_text(spec: Spec, code: int) -> str:
    """Return an element code and what it means."""
    return f"0x{code:0{spec.element.format.digits}x} {_value(spec.element, code):g}"


def _value(codec: Codec, code: int) -> float:
    return float(codec.decode(np.array([code], np.uint8))[0])


def _print_table(out: Console, columns: Row, rows: Sequence[Row]) -> None:
    first, *rest = table(columns, rows, out.width)
    print_lines(out, [first], "dim")
    print_lines(out, rest)


def print_kernel(out: Console, report: KernelReport, limit: int) -> None:
    """Print the verdict on a kernel, its diagnosis, the places that failed, and the first mismatches."""
    print_lines(out, [f"{report.subject}: {report.headline}"], "bold")
    print_lines(out, violated_lines(report.diagnosis, report.spec, report.rules, len(report.failing)))
    print_lines(out, report.coverage.lines)
    print_lines(out, [str(error) for error in report.errors])
    for kind, (case, finding) in report.first.items():
        print_lines(out, [f"{kind}: {report.findings[kind]} cases, first {case}: {finding.text}"])
    if report.diagnosis is not None and (report.diagnosis.explanations or not report.findings):
        print_lines(out, report_lines(report.diagnosis))
    from fp4ref.conformance.families import FAMILIES

    names = [name for name, cell in report.families.items() if cell.passed < cell.total]
    if names:
        print_lines(out, ["", "families that fail"], "bold")
        cells = ((name, report.families[name]) for name in names)
        rows = [(name, f"{cell.passed}/{cell.total}", FAMILIES[name].reason) for name, cell in cells]
        _print_table(out, ("family", ">passed", "~reason"), rows)
    found = [row for result in report.results() for row in _mismatch_rows(result)][:limit]
    if found:
        print_lines(out, ["", f"first {len(found)} mismatches" if len(found) > 1 else "first mismatch"], "bold")
        _print_table(out, ("case", "what", "input", "scale", "expected", "got", "special input"), found)
    others = [f"{j.case.id} {item}" for j in report.failures for item in j.mismatches][:limit]
    print_lines(out, ["", *others] if others else [])
    failing = worst(report.spec, report.rules, len(report.failing), report.diagnosis)
    whole = [name for name, cell in report.families.items() if cell.passed == cell.total]
    print_lines(out, [""])
    named = blame(report.diagnosis, report.spec, failing, report.rules).broken
    rules = [_held(rule, cell) for rule, cell in sorted(report.rules.items()) if rule not in {*failing, *named}]
    others = [_held(rule, report.rules[rule]) for rule in failing if rule not in named]
    if named and others and report.diagnosis is not None:
        mistakes = (
            "these mistakes do"
            if any(len(one.names) > 1 for one in report.diagnosis.explanations)
            else "this mistake does"
        )
        print_lines(out, [f"rules in the same cases, which {mistakes} not break: {', '.join(others)}"])
    print_lines(out, [f"families that pass: {', '.join(whole) or 'none'}"])
    print_lines(out, [f"rules in cases that pass: {', '.join(rules) or 'none'}"])
    print_lines(
        out,
        [f"{plural(count, '1 case does', 'cases do')} not apply: {reason}" for reason, count in report.skipped.items()],
    )


def violated_lines(
    diagnosis: Diagnosis | None, spec: Spec, cells: Mapping[str, Cell], count: int, profiles: Sequence[str] = ()
) -> list[str]:
    """Name the broken rules; where the diagnosis does not tell, what it leaves open. Rules: CNF-2."""
    failing = worst(spec, cells, count, diagnosis, profiles)
    told, known, lines = blame(diagnosis, spec, failing, cells), standard.defined(), list[str]()
    for said, rules in said_of(told, failing):
        if said == BROKEN:
            lines += [f"{said}: {rule} {known[rule].title if rule in known else ''}".rstrip() for rule in rules]
        else:
            held = ", ".join(_held(rule, cells[rule]) for rule in rules)
            lines.append(f"{said}: {held} cases pass" if held else said)
    return lines


def _held(rule: str, cell: Cell) -> str:
    return f"{rule} {cell.passed}/{cell.total}"


def print_kernel_case(out: Console, name: str, report: KernelReport, judgement: Judgement | None) -> None:
    """Print the finding on one case whose blocks are not shown."""
    if judgement is None:
        print_lines(out, [f"{report.subject} {name}: conforms to {report.spec.name}"], "bold")
        return
    found = judgement.finding
    print_lines(out, [f"{report.subject} {name}: {found.kind if found else 'differs'}"], "bold")
    print_lines(out, [found.text] if found else [])
    print_lines(out, [str(item) for item in judgement.mismatches])
    if judgement.compared is not None:
        print_lines(out, [f"{count} {what} differ" for what, count in counts(judgement.compared).items()])
