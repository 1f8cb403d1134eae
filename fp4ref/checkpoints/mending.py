"""Repairs of a report: the command that mends each finding, tried before it is printed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.findings import LintFinding, tensors_of
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.repairs import REPAIRS, repair_command
from fp4ref.checkpoints.transfer.gathering import weights_of
from fp4ref.checkpoints.transfer.planning import make_plan
from fp4ref.checkpoints.transfer.request import ConversionRequest
from fp4ref.errors import Fp4Error


def with_repairs(
    path: str, findings: list[LintFinding], *, source: str = "", convention: str = "", header_only: bool = False
) -> list[LintFinding]:
    """Return findings with the commands that repair them.

    A command has the finding's own code, or all codes that can be repaired if the checkpoint cannot be converted
    otherwise. A command that would be refused is left out.

    source, convention: the options of the linter, which the command needs to find the same.

    Rules: CNV-11.
    """
    codes = list(dict.fromkeys(each.code for each in findings if each.mendable and each.code in REPAIRS))
    chosen = {code: _accepted(path, findings, ([code], codes), convention, header_only) for code in codes}

    def command(code: str) -> str:
        return repair_command(path, chosen[code], source=source, convention=convention) if chosen.get(code) else ""

    return [replace(each, repair=command(each.code)) if each.mendable else each for each in findings]


def _accepted(
    path: str, findings: list[LintFinding], choices: Iterable[list[str]], convention: str, header_only: bool
) -> list[str]:
    """Return the first choice of codes whose repair is not refused; nothing if all are."""
    for codes in choices:
        request = ConversionRequest(
            source=str(Path(path).absolute()), target="", convention=convention, repairs=tensors_of(findings, codes)
        )
        try:
            make_plan(request)
            if not header_only:
                _try(request)
        except Fp4Error:
            continue
        return codes
    return []


def _try(request: ConversionRequest) -> None:
    """Read the weights whose repair may be refused while they are read."""
    named = {name for code, names in request.repairs.items() if REPAIRS[code].refuses for name in names}
    if not named:
        return
    found = recognize(open_checkpoint(request.source), request.convention or None)
    touched = {group.module for group in found.groups if named & {group.name, group.module, *group.names}}
    for module, (weight, _) in weights_of(request, found).items():
        for _ in weight.read(1) if module in touched else ():
            pass
