"""Write the page on trust: its text, then the tables of what is proved and not, from the records of the certificates.

    python docs/generate/proved.py OUT.md

A record that is out of date is left out.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from fp4ref import rules
from fp4ref.proof import concerned, records
from fp4ref.proof.catalogue import claims
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, in_words
from fp4ref.proof.status import Shown, binding

TEXT = Path(__file__).parents[1] / "site/how-we-know.md"
INTRO = """## What is proved

A certificate is a claim about every input of a domain, and a program that decides it. `fp4ref prove` replays the
certificates: each claim is proved, or refuted with a witness. `fp4ref rules --check` fails if code that a certificate
covers has changed since.

```{ran}
fp4ref prove E2M1-3 --subject golden
```

The golden model and torch are proved as they stand, the header and the cpu backend as the compiler named in the record
builds them for one processor, and the kernels of the cuda backend on the device that the record names. `exhaustive`
claims compute every input, `argument` claims those to which an argument reduces the domain, and `smt` claims, on
formulas that code relies on, ask two solvers, which have to agree. A cell of the first table has the inputs of the
largest domain, long numbers rounded, and the date of its record.
"""


def main(target: Path) -> None:
    """Write the text, the tables by rule and subject and of every rule, each claim, and those without a record."""
    index = rules.read()
    target.write_text(
        "\n".join(
            [
                TEXT.read_text("utf-8"),
                INTRO,
                *by_rule(),
                *every_rule(index),
                *without_certificate(index),
                *by_claim(),
                *without_record(),
            ]
        )
        + "\n",
        "utf-8",
    )


@cache
@cache
def proved() -> list[tuple[ProofClaim, records.Record]]:
    """Return the claims whose records hold, with these."""
    kept = ((claim, records.read(claim)) for claim in claims().values())
    return [(claim, record) for claim, record in kept if record and not records.outdated(claim, record)]


def by_rule() -> Iterator[str]:
    """Yield a table of methods, one row a rule, one column a subject."""
    yield "### By rule\n"
    yield "| rule | " + " | ".join(ClaimSubject) + " |"
    yield "|" + " --- |" * (1 + len(ClaimSubject))
    held = proved()
    names = sorted(
        {rule for claim, _ in held for rule in claim.rules},
        key=lambda rule: (rule.split("-")[0], int(rule.split("-")[1])),
    )
    for rule in names:
        cells = [
            _cell([(claim, record) for claim, record in held if claim.subject is subject and rule in claim.rules])
            for subject in ClaimSubject
        ]
        yield f"| {rule} | " + " | ".join(cells) + " |"
    yield ""


def every_rule(index: rules.Index) -> Iterator[str]:
    """Yield a table of all rules that bind bits: each with its certificates, or else with its tests."""
    found = [*binding(index)]
    count = sum(one.shown is Shown.PROVED for one in found)
    yield "### Every rule\n"
    yield f"Of the {len(found)} rules of the kinds `shall` and `bound`, {count} have a certificate. Others have tests:"
    yield "most of them define words, refuse inputs, or are about settings, files, processes and interfaces.\n"
    yield f"<details><summary>All {len(found)} rules</summary>\n"
    yield "| rule | title | shown by | names |"
    yield "| --- | --- | --- | --- |"
    for rule, shown, _, names in found:
        title = rule.title.replace("|", "\\|")
        yield f"| {rule.id} | {title} | {shown} | {', '.join(f'`{name}`' for name in names)} |"
    yield "\n</details>\n"


def _cell(held: list[tuple[ProofClaim, records.Record]]) -> str:
    """Return the methods by which claims about one rule are proved: the largest domain of each, and its date."""
    parts = []
    for method in Method:
        domains = [(claim.size, record["date"]) for claim, record in held if claim.method is method]
        if domains:
            size, date = max(domains)
            parts.append(f"{method}: {_about(size)}, {date}")
    return "; ".join(parts)


def _about(size: int) -> str:
    """Return a count in words; of a long one two digits and a power of ten."""
    words = in_words(size)
    if len(words) <= len("999,999,999"):
        return words
    digits, power = f"{size:.1e}".split("e+")
    return f"{digits} * 10^{int(power)}"


def without_certificate(index: rules.Index) -> Iterator[str]:
    """Yield a table of subjects that a proved rule concerns, and that have no certificate for it."""
    why = concerned.reasons()
    yield "### Subjects without a certificate\n"
    yield "Code of these subjects cites a rule for which another subject has a certificate.\n"
    yield "| rule | subject | why |"
    yield "| --- | --- | --- |"
    for rule, subject in concerned.lacking(index):
        yield f"| {rule} | {subject} | {why.get((rule, subject), '')} |"
    yield ""


def by_claim() -> Iterator[str]:
    """Yield a table of claims, with their domains, counts and dates."""
    held = proved()
    yield "### By certificate\n"
    yield f"<details><summary>All {len(held)} certificates</summary>\n"
    yield "| certificate | claim | domain | inputs | computed | date |"
    yield "| --- | --- | --- | ---: | ---: | --- |"
    for claim, record in held:
        reduced = f" Reduced: {claim.reduction}." if claim.reduction else ""
        counts = f"{in_words(claim.size)} | {in_words(record['inputs_computed'])} | {record['date']}"
        yield f"| `{claim.name}` | {claim.statement}{reduced} | {claim.domain} | {counts} |"
    yield "\n</details>"


def without_record() -> Iterator[str]:
    """Yield a table of the claims without a record that holds, and why."""
    held = {claim.name for claim, _ in proved()}
    rows = [claim for claim in claims().values() if claim.name not in held]
    if rows:
        yield "\n### Claims without a record\n"
        yield "| certificate | claim | domain | inputs | why |"
        yield "| --- | --- | --- | ---: | --- |"
    for claim in rows:
        why = "its code has changed since" if records.read(claim) else "not replayed yet"
        yield f"| `{claim.name}` | {claim.statement} | {claim.domain} | {in_words(claim.size)} | {why} |"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
