"""Records of claims that were proved: JSON files beside the standard, one for each claim, in `certificates`.

A record is out of date if a definition that its claim covers, or the function that decides it, has changed since. It
has a digest of these definitions for each module or file with some of them.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

from fp4ref.errors import FileError
from fp4ref.proof import sources
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject, ProofClaim, Replayed
from fp4ref.spec_root import spec_root

PROVED = "proved"
Record = dict[str, Any]


def folder() -> Path:
    """Return the folder of the records."""
    return spec_root() / "certificates"


def path_of(claim: ProofClaim) -> Path:
    """Return the file of a claim's record."""
    return folder() / f"{claim.name.replace('/', '.')}.json"


@cache
def covered(name: str) -> dict[str, str]:
    """Return a digest of every definition that a claim covers, the function that decides it and its arguments too."""
    claim = claims()[name]
    functions, texts = claim.arguments()
    given = {f"{claim.decider()} {number}": sources.digest(text) for number, text in enumerate(texts)}
    return sources.digests(tuple(dict.fromkeys((*functions, *claim.covers)))) | given


@cache
def _by_file(name: str) -> dict[str, str]:
    """Return one digest for each module, file or lowered specification that a claim covers; many rules ask for it."""
    return sources.by_file(covered(name))


def written(claim: ProofClaim, finding: Replayed, seconds: float, date: str, tools: dict[str, str]) -> Record:
    """Write the record of a claim that was proved, and return it."""
    parts = covered(claim.name)
    record = {
        **_stated(claim),
        "result": PROVED,
        "inputs_computed": finding.computed,
        "processor_seconds": round(seconds, 1),
        "date": date,
        "tools": tools,
        "digest": sources.total(parts),
        "covered": sources.by_file(parts),
    }
    _write(claim, record)
    return record


def _write(claim: ProofClaim, record: Record) -> None:
    """Write a record; a process that ends meanwhile leaves the record that was there, or none."""
    folder().mkdir(exist_ok=True)
    path = path_of(claim)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(_in_lines(record), "utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(claim: ProofClaim) -> Record | None:
    """Return the record of a claim, or None.

    Errors: FileError for a file that is not a record.
    """
    path = path_of(claim)
    try:
        record = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise FileError(f"certificate {path.name}", f"no JSON ({error})", "a record, written by fp4ref prove") from None
    if not isinstance(record, dict) or not isinstance(record.get("covered"), dict):
        raise FileError(f"certificate {path.name}", "no `covered`", "a record, written by fp4ref prove")
    return record


def holding(claim: ProofClaim) -> Record | None:
    """Return the record of a claim if it holds for the claim and its code as they stand, else None."""
    record = read(claim)
    return None if record is None or outdated(claim, record) else record


def outdated(claim: ProofClaim, record: Record) -> list[str]:
    """Return how a record differs from its claim as it stands now: parts of the statement, modules and files."""
    before, now = record["covered"], _by_file(claim.name)
    return _restated(claim, record) + sorted(
        name for name in before.keys() | now.keys() if before.get(name) != now.get(name)
    )


def _restated(claim: ProofClaim, record: Record) -> list[str]:
    """Return the parts of the statement in which a record differs from its claim, its count of inputs among them."""
    stated = [f"its {key}" for key, value in _stated(claim).items() if record.get(key) != value]
    counted = claim.counted(Replayed(record.get("inputs_computed", 0)))
    return stated + ["its inputs_computed"] * bool(counted.witness)


def renewed(claim: ProofClaim) -> bool:
    """Write the record of a claim anew if its definitions only moved to other modules; return True if it was written.

    Nothing is replayed: the statement and every definition's digest have to be those of the record, name by name.
    """
    record, parts = read(claim), covered(claim.name)
    if record is None or not outdated(claim, record):
        return False
    if _restated(claim, record) or record["digest"] != sources.total(parts):
        return False
    _write(claim, {**record, "covered": sources.by_file(parts)})
    return True


def gaps() -> list[str]:
    """Return one line for each cause of records that are out of date or missing, and each record that no claim has."""
    lines: list[str] = []
    unproved: dict[tuple[str, bool], list[str]] = {}  # names by cause, and whether a GPU is needed
    for claim in claims().values():
        record = read(claim)
        if record is None and claim.long and claim.subject is ClaimSubject.CUDA:
            continue  # it is listed as not proved
        if record is None:
            unproved.setdefault(("no record", claim.subject is ClaimSubject.CUDA), []).append(claim.name)
        elif changed := outdated(claim, record):
            named = ", ".join(changed[:3]) + (f" and {len(changed) - 3} more" if len(changed) > 3 else "")
            cause = f"out of date: {named} changed", claim.subject is ClaimSubject.CUDA
            unproved.setdefault(cause, []).append(claim.name)
        lines += [
            f"certificate {claim.name}: rests on {name}, which is none"
            for name in claim.rests_on
            if name not in claims()
        ]
    lines += [_unproved(cause, names, on_gpu=on_gpu) for (cause, on_gpu), names in unproved.items()]
    known = {path_of(claim).name for claim in claims().values()}
    return lines + [
        f"certificate {path.name}: no claim has it"
        for path in sorted(folder().glob("*.json"))
        if path.name not in known
    ]


def _unproved(cause: str, names: list[str], *, on_gpu: bool) -> str:
    """Return a line about certificates that are to be proved for one cause, with the command for it."""
    machine = ", on a machine with a GPU" if on_gpu else ""
    if len(names) == 1:
        return f"certificate {names[0]}: {cause}; run `fp4ref prove {names[0]} --record`{machine}"
    device = " --device cuda" if on_gpu else ""
    run = f"run `fp4ref prove --missing --long{device} --record`{machine}"
    return f"certificate {names[0]} and {len(names) - 1} more: {cause}; {run}"


def _in_lines(record: Record) -> str:
    """Return a record as JSON: a line for each field, and for each digest."""

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False)

    digests = ",\n".join(f"  {text(name)}: {text(digest)}" for name, digest in record["covered"].items())
    others = (f" {text(key)}: {text(value)},\n" for key, value in record.items() if key != "covered")
    return f'{{\n{"".join(others)} "covered": {{\n{digests}\n }}\n}}\n'


def _stated(claim: ProofClaim) -> Record:
    return {
        "name": claim.name,
        "rules": [*claim.rules],
        "method": claim.method.value,
        "subject": claim.subject.value,
        "statement": claim.statement,
        "domain": claim.domain,
        "size": claim.size,
        "reduction": claim.reduction,
        "rests_on": [*claim.rests_on],
    }
