"""A report as JUnit XML, the form that CI systems read."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from fp4ref.conformance.reports.view import View
from fp4ref.files.kinds import JUNIT
from fp4ref.files.targets import Paths, replacing

FORBIDDEN = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # by XML 1.0, even escaped


def write(path: str | os.PathLike[str], views: Sequence[View], sources: Paths = (), *, force: bool = False) -> None:
    """Write reports to a file: a suite per view, with a test for the verdict, and one per family, tensor or rule.

    sources, force: as of `fp4ref.files.targets.require_target`.

    Rules: CNF-2, FIL-6.
    """
    tree = ET.ElementTree(_suites(views))
    ET.indent(tree)
    with replacing(path, sources, JUNIT, force=force) as file:
        tree.write(file, encoding="utf-8", xml_declaration=True)


def _suites(views: Sequence[View]) -> ET.Element:
    root = ET.Element("testsuites", {"name": "fp4ref verify"})
    suites = [_suite(view) for view in views]
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in suites)))
    root.extend(suites)
    return root


def _suite(view: View) -> ET.Element:
    failed = sum(bool(test.failure) for test in view.tests) + (not view.ok)
    counts = {"tests": len(view.tests) + 1, "failures": failed, "errors": 0}
    counts["skipped"] = sum(bool(test.skipped) for test in view.tests)
    words = {name: str(count) for name, count in counts.items()}
    suite = ET.Element("testsuite", {"name": _clean(view.title), **words})
    if view.coverage is not None:
        properties = ET.SubElement(suite, "properties")
        for line in view.coverage.lines:
            ET.SubElement(properties, "property", {"name": "basis", "value": _clean(line)})
    verdict = ET.SubElement(suite, "testcase", {"classname": "verdict", "name": "conforms"})
    if not view.ok:
        _say(verdict, "failure", "\n".join((view.headline, *map(str, view.errors), *view.diagnosis)))
    for test in view.tests:
        case = ET.SubElement(suite, "testcase", {"classname": _clean(test.group), "name": _clean(test.name)})
        if test.failure:
            _say(case, "failure", test.failure)
        elif test.skipped:
            _say(case, "skipped", test.skipped)
    return suite


def _say(case: ET.Element, tag: str, text: str) -> None:
    text = _clean(text)
    ET.SubElement(case, tag, {"message": text.splitlines()[0]}).text = text


def _clean(text: str) -> str:
    return FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
