"""The findings of a diagnosis, and the sentences in which they are told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fp4ref.conformance.diagnosis.stages import StageFinding
from fp4ref.conformance.mistakes.record import Cause
from fp4ref.spec import Spec

LISTED = 3  # tensors that are named before the others are counted
ENDED = "the search tried all mistakes and profiles that it knows, in time: more time would find nothing else"
CUT = "the search ran out of time: a larger --diagnosis-seconds lets it try more"


@dataclass(frozen=True)
class Explanation:
    """Mistakes that make the candidate's bytes.

    names: of the mistakes in the library, or `profile NAME`. stage: the first one. text: a sentence. except_on: classes
    of special input whose bytes it does not make; empty: it makes every byte. place: where it holds, in words; empty:
    everywhere. differs: what a profile does otherwise than the specification. spared: it would change bytes of some
    classes of which none differs; the sentence leaves them out. causes: each of the mistakes with its stage and the
    rules that it breaks; empty where that is not known of several.
    """

    names: tuple[str, ...]
    stage: str
    text: str
    except_on: tuple[str, ...] = ()
    profile: str | None = None
    place: str = ""
    differs: str = ""
    spared: bool = False
    causes: tuple[Cause, ...] = ()

    @property
    def each(self) -> tuple[Cause, ...]:
        """The mistakes one by one; empty where their stages are not known."""
        return self.causes or (tuple(Cause(name, self.stage) for name in self.names) if len(self.names) == 1 else ())

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON data."""
        return vars(self) | {"causes": [cause._asdict() for cause in self.each]}

    @property
    def complete(self) -> bool:
        """True if it makes every byte of the evidence."""
        return not self.except_on


@dataclass(frozen=True)
class DiagnosedTensors:
    """Tensors of a dump that were diagnosed apart from the others, and what was found about them."""

    tensors: tuple[str, ...]
    spec: Spec
    found: Diagnosis

    @property
    def label(self) -> str:
        """The names of the tensors."""
        return labelled(self.tensors)


@dataclass(frozen=True)
class Diagnosis:
    """The findings about a candidate.

    conforms: nothing differs. explanations: what makes every byte, the simplest first; they are equally good on the
    evidence. partial: the best that does not. first_stage: where bytes first differ. findings: of what nothing
    explains, stage by stage, each judged on the candidate's own output of the stages before. where: the first place of
    it that differs. complete: whether the search ended in time. place: where all of it is, in words, if it is
    anywhere in particular. near: that all of it is beside a boundary of a rounding, in words. groups: tensors of a dump
    that no explanation joins, each with its own. undiagnosed: the number of other tensors that differ.
    """

    conforms: bool
    explanations: tuple[Explanation, ...] = ()
    partial: Explanation | None = None
    first_stage: str | None = None
    findings: tuple[StageFinding, ...] = ()
    complete: bool = True
    where: str = ""
    place: str = ""
    near: str = ""
    groups: tuple[DiagnosedTensors, ...] = ()
    undiagnosed: int = 0

    @property
    def profiles(self) -> tuple[str, ...]:
        """Names of the profiles that make every byte without any mistake."""
        return tuple(e.profile for e in self.explanations if e.profile is not None and len(e.names) == 1)

    @property
    def sentence(self) -> str:
        """The cause in words: a mistake's sentence, or what a profile does otherwise; empty without an explanation."""
        plain = sorted(self.explanations, key=lambda explanation: explanation.profile is not None)
        return (plain[0].differs or plain[0].text) if plain else ""

    @property
    def explained(self) -> bool:
        """True if something makes every byte."""
        apart = bool(self.groups) and all(group.found.explained for group in self.groups)
        return self.conforms or bool(self.explanations) or apart

    def to_json(self) -> dict[str, Any]:
        """Return the diagnosis as JSON data."""
        return {
            "explained": self.explained,
            "explanations": [item.to_json() for item in self.explanations],
            "partial": None if self.partial is None else self.partial.to_json(),
            "first_stage": self.first_stage,
            "stages": [vars(finding) for finding in self.findings],
            "profiles": list(self.profiles),
            "complete": self.complete,
            "where": self.where,
            "place": self.place,
            "near": self.near,
            "groups": [{"tensors": group.tensors, **group.found.to_json()} for group in self.groups],
            "undiagnosed": self.undiagnosed,
        }


def verdict(diagnosis: Diagnosis) -> str:
    """Return the diagnosis in a line, to stand behind the word `wrong`. Rules: CNF-2."""
    parts = list(_of_groups(diagnosis.groups)) or [_cause(diagnosis)]
    if diagnosis.undiagnosed:
        parts.append(f"other tensors that differ and were not diagnosed: {diagnosis.undiagnosed}")
    return "; ".join(parts)


def _cause(diagnosis: Diagnosis) -> str:
    """Return the cause of the bytes of all tensors, or the stage at which they first differ."""
    if diagnosis.conforms:
        return "not explained: none of the results that the diagnosis was given differs"
    told = [explanation.text for explanation in diagnosis.explanations if explanation.profile is None]
    told += [explanation.text for explanation in diagnosis.explanations if explanation.profile is not None]
    told = list(dict.fromkeys(told))  # two mistakes may differ in less than their sentences say
    if told:
        more = f", and {len(told) - 2} more" if told[2:] else ""
        others = f" (equally consistent with the evidence: {told[1]}{more})" if told[1:] else ""
        return told[0] + others
    partial = diagnosis.partial
    if partial is not None and partial.text:
        return f"{partial.text}; not explained: the differences on {', '.join(partial.except_on)}"
    near = f": {diagnosis.near}" if diagnosis.near else ""
    if partial is not None:
        return f"not explained: bytes differ on {', '.join(partial.except_on)} only{near}"
    parts = [f"{finding.stage}: {finding.text}" for finding in diagnosis.findings if finding.text]
    known = f" (in part, {'; '.join(parts)})" if parts else ""
    where = f", {diagnosis.where}" if diagnosis.where else ""
    held = f", {diagnosis.place}" if diagnosis.place else ""
    return f"not explained{held}{near}: bytes first differ at the {diagnosis.first_stage}{where}{known}"


def _of_groups(groups: Sequence[DiagnosedTensors]) -> Iterator[str]:
    """Yield the cause of each group, and the names of the tensors without one together."""
    for group in groups:
        if group.found.explained:
            yield f"{group.label}: {verdict(group.found)}"
    rest = [name for group in groups if not group.found.explained for name in group.tensors]
    if rest:
        yield f"{labelled(rest)}: not explained"


def labelled(names: Sequence[str]) -> str:
    """Return names of tensors for the beginning of a sentence; of many, the first ones and the number of the others."""
    if len(names) == 1:
        return f"tensor {names[0] or '(unnamed)'}"
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"tensors {', '.join(names[:LISTED])}{more}"


def report_lines(diagnosis: Diagnosis) -> list[str]:
    """Return the diagnosis in lines: what makes the bytes, else what is known of each stage."""
    if diagnosis.conforms:
        return []
    if diagnosis.groups:
        return [f"{group.label}: {line}" for group in diagnosis.groups for line in report_lines(group.found)]
    lines = [
        f"{'also ' if number else ''}explains every byte: {explanation.text} [{', '.join(explanation.names)}]"
        for number, explanation in enumerate(diagnosis.explanations)
    ]
    if diagnosis.partial is not None:
        what = diagnosis.partial.text or "the specification itself"
        lines.append(f"explains all but {', '.join(diagnosis.partial.except_on)}: {what}")
    if not diagnosis.explanations:
        lines.append(f"bytes first differ at: {diagnosis.first_stage}")
        lines += [diagnosis.where] if diagnosis.where else []
        for finding in diagnosis.findings:
            said = "right" if finding.right else finding.text or "not explained"
            lines.append(f"{finding.stage}, given what comes before it: {said}")
    if not diagnosis.explanations:
        lines.append(ENDED if diagnosis.complete else CUT)
    return lines
