"""Reports on checkpoints as files: a SARIF log and an HTML page that needs nothing else."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fp4ref import __version__
from fp4ref.checkpoints.convention import CONVENTIONS
from fp4ref.checkpoints.findings import CODES, ERROR, WARNING, LintFinding
from fp4ref.checkpoints.lint import LintReport
from fp4ref.checkpoints.picture import SHAPE, picture
from fp4ref.checkpoints.picture import STYLE as PICTURE_STYLE
from fp4ref.checkpoints.places import StoredPlace

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
STYLE = (
    "body{font:16px/1.5 Helvetica,Arial,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #8884;padding:.3rem .6rem;"
    "text-align:left;vertical-align:top}td,code,h1,p,li{overflow-wrap:anywhere}"
    ".findings td:not(:last-child){white-space:nowrap}"
    "@media(max-width:40rem){.findings,.findings :is(tbody,tr,td){display:block;border:0;padding:.1rem 0}"
    ".findings tr:first-child{display:none}.findings tr{border-bottom:1px solid #8884;padding:.5rem 0}"
    ".findings td:not(:last-child){font-weight:bold}}.wide{overflow-x:auto}.wide svg{min-width:40rem}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}" + PICTURE_STYLE
)


def sarif(report: LintReport) -> str:
    """Return the findings as a SARIF 2.1.0 log."""
    used = sorted({each.code for each in report.findings})
    rules = [{"id": code, "shortDescription": {"text": CODES[code].meaning}} for code in used]
    driver = {"name": "fp4ref", "version": __version__, "rules": rules}
    results = [_result(report, each) for each in report.findings]
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": results}]}
    return json.dumps(log, indent=1)


def _result(report: LintReport, each: LintFinding) -> dict[str, Any]:
    level = each.severity if each.severity in {ERROR, WARNING} else "note"
    return {
        "ruleId": each.code,
        "level": level,
        "message": {"text": each.message},
        "locations": [_location(report, each.code, name) for name in each.tensors or ("",)],
        "properties": {"evidence": each.evidence, "consumers": each.consumers, "repair": each.repair},
    }


def _location(report: LintReport, code: str, name: str) -> dict[str, Any]:
    """Return the file of a name, its bytes in it, and the name."""
    place = report.places.get((code, name), StoredPlace(Path(report.path)))
    artifact = {"artifactLocation": {"uri": _uri(place.path)}}
    region = {"region": {"byteOffset": place.start, "byteLength": place.length}} if place.length else {}
    named = {"logicalLocations": [{"fullyQualifiedName": name}]} if name else {}
    return {"physicalLocation": artifact | region, **named}


def _uri(path: Path) -> str:
    """Return a path as a reference of RFC 3986, relative if the path is."""
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())


def html(report: LintReport) -> str:
    """Return the report as a page; every name and message in it is escaped."""
    rows = "".join(
        f"<tr><td>{escape(each.severity)}</td><td>{escape(each.code)}<br>{escape(CODES[each.code].rule)}</td>"
        f"<td>{_breakable(each.message)}{_more(each, report)}</td></tr>"
        for each in report.findings
    )
    table = (
        f"<table class='findings'><tr><th>severity</th><th>code</th><th>message</th></tr>{rows}</table>" if rows else ""
    )
    remarks = "".join(f"<li>{escape(each)}</li>" for each in report.remarks)
    verdict = (
        f"{len(report.findings)} finding{'s' * (len(report.findings) > 1)}" if report.findings else "nothing found"
    )
    facts = "".join(
        f"<tr><td>{_breakable(name)}</td><td>{_breakable(str(fact['convention']))}</td>"
        f"<td>{escape(' x '.join(map(str, fact['shape'])))}</td></tr>"
        for name, fact in report.facts.items()
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>fp4ref lint</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(report.path)}</h1>"
        f"<p>{escape(', '.join(report.families) or 'not recognized')}: {verdict}. {report.tensors} tensors, "
        f"{report.read_bytes:,} bytes read, fp4ref {escape(__version__)}.</p>{table}<ul>{remarks}</ul>"
        f"<details><summary>Quantized modules</summary><table>"
        f"<tr><th>module</th><th>convention</th><th>shape</th></tr>{facts}</table></details></body></html>\n"
    )


def _breakable(text: str) -> str:
    """Return text as HTML; its names may break behind their dots, underscores and slashes."""
    return re.sub(r"(?<=[._/])(?=\w)", "<wbr>", escape(text))


def _more(each: LintFinding, report: LintReport) -> str:
    """Return the evidence, the consumers, the repair and the names of a finding, and where its tensors stand."""
    evidence = "".join(f"<br>{escape(name)}: {escape(str(value))}" for name, value in each.evidence.items())
    breaks = "".join(f"<br>{escape(name)} {escape(how)}" for name, how in each.consumers.items())
    repair = f"<br>repair: <code>{escape(each.repair)}</code>" if each.repair else ""
    names = "".join(f"<li>{_breakable(name)}</li>" for name in each.tensors)
    count = f"{len(each.tensors)} name{'s' * (len(each.tensors) != 1)}"
    listed = f"<details><summary>{count}</summary><ul>{names}</ul></details>"
    return evidence + breaks + repair + listed + _picture(each, report)


def _picture(each: LintFinding, report: LintReport) -> str:
    """Return how the convention stores a tensor, with the part marked that a finding names; "" if it names none."""
    places = {
        module + part.suffix: (convention, role)
        for module, fact in report.facts.items()
        for convention in [CONVENTIONS[fact["convention"]]]
        for role, part in convention.roles.items()
    }
    name = next((name for name in each.tensors if name in places), "")
    if not name:
        return ""
    convention, role = places[name]
    rows, columns = SHAPE
    title = f"{convention.name}: how a tensor of {rows} x {columns} is stored, ROW.COLUMN and ROW.BLOCK"
    return (
        f"<details><summary>{escape(title)}</summary><div class='wide' tabindex='0' role='group' aria-label='Picture'>"
        f"{picture(convention, role, f'{title}; marked: {name}')}</div></details>"
    )
