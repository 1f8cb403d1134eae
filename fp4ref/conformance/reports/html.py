"""A report as one HTML page that needs nothing else: verdict, diagnosis, pictures, intermediates, rules."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from html import escape
from importlib.resources import files
from string import Template

import fp4ref
from fp4ref import rules as standard
from fp4ref.conformance.judge.isolation import attempted
from fp4ref.conformance.mistakes.said import plural
from fp4ref.conformance.reports.intermediates import Explained, first_explained
from fp4ref.conformance.reports.picture import Picture, pictures, svg
from fp4ref.conformance.reports.view import ShownDirection, View
from fp4ref.conformance.verdict.dump_report import Cell, counts
from fp4ref.conformance.verdict.violated import NAMED, said_of
from fp4ref.files.kinds import HTML
from fp4ref.files.targets import Paths, write_bytes
from fp4ref.spec import SPEC_VERSION

RULE = re.compile(r"\b[A-Z][A-Z0-9]*-\d+\b")
NAMED_RULES = re.compile(
    rf"<(b|td)>{RULE.pattern}(?: {RULE.pattern})*</\1>"
)  # a cell, or the verdict's word, of rules alone
TILES = 12  # tiles that are listed
BAD = "\N{MULTIPLICATION SIGN} "  # a verdict is not told by colour alone, and every font has this sign
KEY = (
    ("#d55e0070", "under 10 % of a cell"),
    ("#d55e00a8", "under half"),
    ("#d55e00", "half or more"),
    ("#80808048", "padding"),
)


def write(path: str | os.PathLike[str], view: View, sources: Paths = (), *, force: bool = False) -> None:
    """Write the page to a file. sources, force: as of `fp4ref.files.targets.require_target`. Rules: CNF-2, FIL-6."""
    write_bytes(path, page(view).encode(errors="replace"), HTML, sources, force=force)


def page(view: View) -> str:
    """Return the page as text; every name and message in it is escaped."""
    template = Template(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(view.title),
        headline=escape(view.headline),
        tone="good" if view.ok else "bad",
        version=escape(fp4ref.__version__),
        standard=escape(SPEC_VERSION),
        body=_with_rules("\n".join(_body(view))),
    )


def _with_rules(body: str) -> str:
    """Return the body with each rule that a cell or the verdict names linked to its text, which is at the end."""
    known, linked = standard.defined(), dict[str, standard.Rule]()

    def link(found: re.Match[str]) -> str:
        if (rule := known.get(found[0])) is None:
            return found[0]
        linked[rule.id] = rule
        return f'<a href="#{rule.id}">{rule.id}</a>'

    body = NAMED_RULES.sub(lambda cell: RULE.sub(link, cell[0]), body)
    texts = "".join(
        f"<details><summary>{escape(f'{rule.id} · {rule.title} ({rule.kind})')}</summary>"
        f'<div class="text" id="{rule.id}">{escape(rule.text.strip())}</div></details>'
        for rule in sorted(linked.values(), key=lambda rule: (rule.chapter, rule.id))
    )
    return f"{body}\n<h2>Text of the rules</h2>{texts}" if texts else body


def _body(view: View) -> Iterator[str]:
    yield from _violated(view)
    if view.coverage is not None:
        yield "".join(f'<p class="soft">{escape(line)}</p>' for line in view.coverage.lines)
    if view.diagnosis:
        yield "<h2>Diagnosis</h2>"
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in view.diagnosis)}</ul>"
    if view.findings:
        yield "<h2>Findings</h2>"
        yield _table(("kind", ">cases", "first case", "what happened"), view.findings)
    for title, trace in view.traces:
        yield f"<details><summary>{escape(title)}</summary><pre>{escape(trace)}</pre></details>"
    errors = list(view.errors)
    if view.exhibits:
        yield "<h2>What differs</h2>"
        yield _key()
        for exhibit in view.exhibits:
            yield "".join(attempted(f"picture of {exhibit.name}", partial(_shown, exhibit), errors) or ())
    if view.others:
        yield "<h2>Mismatches</h2>"
        places = [
            (case, f"{item.field}{list(item.index) if item.index else ''}", item.input, item.expected, item.got)
            for case, item in view.others
        ]
        yield _table(("case", "where", "input", "expected", "got"), places)
    if view.families:
        yield "<h2>Families of cases</h2>"
        cells = sorted(view.families.items(), key=lambda item: _whole(item[1][0]))
        rows = [(name, cell, reason) for name, (cell, reason) in cells]
        yield _table(("family", ">passed", "what goes wrong there"), rows)
    yield from _rules(view)
    if view.skipped:
        yield "<h2>Not applicable</h2>"
        yield _table(("reason", ">cases"), list(view.skipped.items()))
    if errors:
        yield "<h2>Internal errors</h2>"
        for error in errors:
            yield f"<details open><summary>{escape(str(error))}</summary><pre>{escape(error.traceback)}</pre></details>"


def _whole(cell: Cell) -> bool:
    return cell.passed == cell.total


def _key() -> str:
    shades = "".join(f'<span style="background:{colour}"></span> {text} &nbsp; ' for colour, text in KEY)
    return f'<p class="key soft">Bytes that differ: {shades} Lines are the borders of tiles.</p>'


def _shown(exhibit: ShownDirection) -> list[str]:
    return [*_exhibit(exhibit)]


def _exhibit(exhibit: ShownDirection) -> Iterator[str]:
    compared, shape = exhibit.compared, " x ".join(map(str, exhibit.x.shape))
    yield f"<section><h3>{escape(exhibit.name)}</h3>"
    told = ", ".join(f"{count:,} {what}" for what, count in counts(compared).items())
    excused = ", ".join(f"{count:,} {excuse.value}" for excuse, count in compared.excused.items())
    note = f"{exhibit.spec.name}, {exhibit.direction} direction, {shape} {exhibit.x.dtype.name}: {told} differ"
    note += f"; differing blocks with special input: {excused}" if excused else ""
    yield f'<p class="soft">{escape(note)}</p>'
    places = {
        "amax of row": compared.first_amax,
        f"{compared.spare_name} of row": compared.first_spare,
        "padding at byte": compared.first_padding,
    }
    rows = [(f"{what} {place.index}", place.expected, place.got) for what, place in places.items() if place]
    yield _table(("first", "expected", "got"), rows) if rows else ""
    if exhibit.x.size:
        codes, scales, tiles = pictures(exhibit)
        yield "".join(_figure(picture) for picture in (codes, scales))
        listed = [(f"{one.row}, {one.column}", one.codes, one.scales) for one in tiles[:TILES]]
        more = f", the worst {TILES}" if len(tiles) > TILES else ""
        yield f"<details><summary>{plural(len(tiles), '1 tile', 'tiles')} with differences{more}</summary>"
        yield _table(("tile (row, column)", ">codes", ">scales"), listed) + "</details>"
    for number, found in enumerate(first_explained(exhibit)):
        yield f"<details{'' if number else ' open'}>{_steps(found)}</details>"
    yield "</section>"


def _figure(picture: Picture) -> str:
    tile = f"tiles of {picture.unit[0]} x {picture.unit[1]}"
    return f"<figure>{svg(picture)}<figcaption>{escape(picture.text)}; {tile}</figcaption></figure>"


def _steps(found: Explained) -> str:
    """Every intermediate of one element that differs, as the specification has it, and what was got."""
    rows = [(step, expected, bits, got, " ".join(rules), how) for step, expected, bits, got, rules, how in found.steps]
    table = _table(("step", "expected", "bits", "got", "rules", "how"), rows, "steps")
    return f"<summary>{escape(found.title)}</summary>{table}"


def _rules(view: View) -> Iterator[str]:
    known = standard.defined()
    if view.rules:
        yield "<h2>Rules</h2>"
        by_share = sorted(view.rules, key=lambda rule: (_held(view, rule), rule))
        first = dict.fromkeys((*view.blame.broken, *view.blame.undecided, *view.failing, *by_share))
        rows = [
            (
                rule,
                known[rule].title if rule in known else "",
                *(view.rules[rule].get(name, "-") for name in view.subjects),
            )
            for rule in first
        ]
        yield _table(("rule", "title", *(f">{name}" for name in view.subjects)), rows)
        if view.blame.broken:
            yield "<p>A rule fails in a case if it decides a wrong byte there; the diagnosis tells which is broken.</p>"
        left = [rule for rule in known if rule not in view.rules]
        yield f"<p>{len(view.rules)} of {len(known)} rules were exercised.</p>"
        yield f'<details><summary>the others</summary><p class="soft">{escape(", ".join(left))}</p></details>'


def _violated(view: View) -> Iterator[str]:
    """Name the broken rules above everything else; where the diagnosis does not tell, what it leaves open."""
    known = standard.defined()
    shares = sorted((_held(view, rule), rule) for rule in view.rules)
    failing = view.failing or tuple(rule for share, rule in shares if share < 1)
    for said, rules in said_of(view.blame, failing[:NAMED]):
        told = (f"<b>{escape(rule)}</b> {escape(known[rule].title if rule in known else '')}" for rule in rules)
        end = f": {'; '.join(told)}" if rules else ""
        yield f'<p class="rule">{escape(said[:1].upper() + said[1:])}{end}.</p>'


def _held(view: View, rule: str) -> float:
    """Return the smallest share of cases in which a rule's bytes are right, over all subjects."""
    return min((cell.passed / cell.total for cell in view.rules[rule].values() if cell.total), default=1.0)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], kind: str = "plain") -> str:
    """Return a table of a kind, its CSS class; a column whose name begins with > holds numbers."""
    head = "".join(f'<th scope="col">{escape(name.removeprefix(">"))}</th>' for name in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _cell(value: object) -> str:
    if isinstance(value, Cell):
        mark, tone = ("", "good") if _whole(value) else (BAD, "bad")
        return f'<td class="n {tone}">{mark}{value.passed}/{value.total}</td>'
    if isinstance(value, int):
        return f'<td class="n">{value:,}</td>'
    text = escape(str(value))
    code = text.startswith("0x") or (bool(text) and _is_number(text))
    return f'<td class="c">{text}</td>' if code else f"<td>{text}</td>"


def _is_number(text: str) -> bool:
    try:
        return not math.isnan(float(text))
    except ValueError:
        return False
