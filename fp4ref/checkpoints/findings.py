"""Findings: the defects that the linter names, by stable codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

ERROR, WARNING, NOTE = "error", "warning", "note"
JOINED = ("scale-layout", "truncated")
SHOWN = 3  # tensors that a message lists


class Code(NamedTuple):
    """The rule that defines a code of findings, and its meaning in one sentence."""

    rule: str
    meaning: str


CODES = {
    "header": Code("CKP-1", "The header cannot be read, or contradicts itself."),
    "truncated": Code("CKP-2", "The file ends before bytes that its header promises."),
    "index": Code("CKP-3", "The index and the shards disagree."),
    "duplicate-tensor": Code("CKP-4", "Two shards contain a tensor of the same name."),
    "missing-tensor": Code("CKP-7", "A tensor that the convention requires is not stored."),
    "orphan-tensor": Code("CKP-8", "A tensor belongs to no weight of the convention."),
    "dtype": Code("CKP-9", "A tensor has another element type than the convention stores."),
    "shape": Code("CKP-10", "Shapes contradict each other or the declared geometry."),
    "group-size": Code("CKP-11", "The declared block size is not the stored one."),
    "config": Code("CKP-12", "A declaration contradicts the stored tensors or another declaration."),
    "exclude-list": Code("CKP-13", "The list of modules in high precision contradicts the stored tensors."),
    "scale-nan": Code("CKP-14", "Block scales contain NaN."),
    "scale-negative": Code("CKP-53", "Block scales contain a byte with the sign set."),
    "scale-zero": Code("CKP-54", "A block scale is zero, its elements are not."),
    "scale-layout": Code("CKP-15", "Block scales are stored in another layout than the convention's."),
    "scale-value-cast": Code("CKP-16", "Exponent bytes were converted as numbers."),
    "unwritten": Code("CKP-17", "A region of scales or elements was never written."),
    "bit-damage": Code("CKP-18", "Single bytes are implausible, or differ from the source."),
    "saturation": Code("CKP-19", "Too many elements have the largest code: the scales are too small."),
    "range-unused": Code("CKP-46", "No block reaches the upper codes: the scales are too large."),
    "value-factor": Code("CKP-50", "All decoded values are the source's times one constant."),
    "scale-direction": Code("CKP-20", "A scale is stored in another direction than the convention's."),
    "global-scale-value": Code("CKP-21", "A global scale is zero, negative, infinite or NaN."),
    "fused-global-scale": Code("CKP-22", "Members of a fused set have different scales."),
    "input-scale": Code("CKP-21", "An activation scale is not a positive finite number, or was never set."),
    "kv-scale": Code("CKP-21", "A scale of the key or value cache is missing or is not a positive finite scalar."),
    "nibble-order": Code("CKP-23", "The two elements of each byte are exchanged."),
    "element-order": Code("CKP-50", "Elements are permuted inside a block or a word."),
    "row-order": Code("CKP-50", "Rows are the source's in another order."),
    "code-histogram": Code("CKP-25", "The element codes cannot be those of a weight in the declared format."),
    "element-nan": Code("CKP-49", "Elements of an FP8 tensor are NaN."),
    "padding": Code("CKP-26", "Bytes outside the logical shape are not those that the convention writes."),
    "producer-bytes": Code("CKP-27", "The declared producer does not write these bytes."),
    "value-mismatch": Code("CKP-50", "Decoded values are not the source's, for no other named reason."),
}


@dataclass(frozen=True)
class LintFinding:
    """A defect of a checkpoint, with the tensors that have it.

    consumers: for each consumer that it breaks, how. repair: the command that repairs it, if there is one.
    mendable: false if the repair of the code does not help here.
    """

    code: str
    severity: str
    tensors: tuple[str, ...]
    message: str
    evidence: dict[str, Any] = field(default_factory=dict)
    consumers: dict[str, str] = field(default_factory=dict)
    repair: str = ""
    mendable: bool = True

    def to_record(self) -> dict[str, Any]:
        """Return the finding as JSON data."""
        return {
            "code": self.code,
            "severity": self.severity,
            "tensors": [*self.tensors],
            "message": self.message,
            "rule": CODES[self.code].rule,
            "evidence": self.evidence,
            "consumers": self.consumers,
            "repair": self.repair,
        }


def finding(code: str, severity: str, tensors: Iterable[str], message: str, **more: Any) -> LintFinding:
    """Return a finding on some tensors, whose message begins with a few of their names."""
    names = tuple(dict.fromkeys(tensors))
    return LintFinding(code, severity, names, f"{listed(names)}: {message}" if names else message, **more)


def tensors_of(findings: Iterable[LintFinding], codes: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensors that findings name by each code."""
    findings = [*findings]
    return {
        code: tuple(dict.fromkeys(name for each in findings if each.code == code for name in each.tensors))
        for code in codes
    }


def listed(names: Iterable[str]) -> str:
    """Return the first names of a list, and the number of the others."""
    names = [*names]
    rest = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + rest


def merged(findings: Iterable[LintFinding]) -> list[LintFinding]:
    """Join findings of one cause: layouts that shapes prove or bytes suggest, and files that a download has cut."""
    found: list[LintFinding] = []
    for each in findings:
        first = next((other for other in found if other.code == each.code in JOINED), None)
        if first is None:
            found.append(each)
        else:
            names = tuple(dict.fromkeys(first.tensors + each.tensors))
            found[found.index(first)] = replace(first, tensors=names, evidence={**each.evidence, **first.evidence})
    return [replace(each, message=_counted(each)) if each.code == "truncated" else each for each in found]


def _counted(each: LintFinding) -> str:
    more = len(each.tensors) - 1
    return f"{each.message}; {more} more files are cut" if more else each.message


def is_failure(findings: Iterable[LintFinding]) -> bool:
    """Return True if a finding is an error or a warning. Rules: CKP-6."""
    return any(each.severity != NOTE for each in findings)
