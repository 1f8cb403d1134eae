"""Checks of the list of modules that stay in high precision, by the rule of each consumer that reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from fp4ref.checkpoints.declared import producer_matches
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding, listed
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.errors import UnknownNameError

FLOATS = {"BF16", "F16", "F32"}
LINEAR = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"),
    *("fc1", "fc2", "out_proj", "lm_head", "w1", "w2", "w3"),
}
FUSED_NAMES = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("w1", "w3"), "w13"),
}
LISTED = {"modelopt", "compressed-tensors", "deepseek", "gpt-oss"}  # families that declare a list


class Consumer(NamedTuple):
    """A consumer of checkpoints: its rule for one entry of a list and one module, and the families it applies it to."""

    name: str
    matches: Callable[[str, str], bool]
    families: tuple[str, ...]
    rule: str


def _substring(entry: str, module: str) -> bool:
    """Match as vLLM does: the entry occurs somewhere in the name of the fused module."""
    head, _, last = module.rpartition(".")
    fused = f"{head}.{FUSED_NAMES.get(last, last)}".lstrip(".")
    if "*" in entry:
        return fnmatchcase(fused, f"*{entry}*" if not entry.endswith("*") else entry)
    return entry in fused


def _wildcard(entry: str, module: str) -> bool:
    return fnmatchcase(module, entry)


CONSUMERS = (
    Consumer("vllm", _substring, ("modelopt",), "an entry that occurs anywhere in the fused module's name"),
    Consumer("sglang", _substring, ("modelopt",), "an entry that occurs anywhere in the fused module's name"),
    Consumer("tensorrt-llm", _wildcard, ("modelopt",), "wildcards over the whole name, where * takes dots and digits"),
    Consumer("transformers", _substring, ("deepseek", "gpt-oss"), "an entry that occurs anywhere in the name"),
)


def require_consumer(name: str | None) -> None:
    """Refuse a consumer whose rules are not known. Rules: CKP-13."""
    known = [each.name for each in CONSUMERS]
    if name is not None and name not in known:
        raise UnknownNameError("lint", f"unknown consumer {name!r}", f"one of {', '.join(known)}", "CKP-13")


def check_excludes(found: Recognized, consumer: str | None = None) -> Iterator[LintFinding]:
    """Yield modules that the list treats otherwise than they are stored. Rules: CKP-13."""
    if found.family not in LISTED or not found.config.files or found.config.layers is not None:
        return
    groups = [group for group in found.groups if "codes" in group.parts]
    excluded = [group for group in groups if _ignored(found, group)]
    if excluded:
        entries = sorted({entry for group in excluded for entry in _entries(found, group.module)})
        text = f"stored quantized, but excluded by {listed(entries)}"
        yield finding("exclude-list", ERROR, [group.module for group in excluded], text)
    high = [name for name in _linear(found) if found.config.of(name) is not None]
    if high and groups:
        text = "stored in high precision, but not in the list of excluded modules"
        yield finding("exclude-list", ERROR, high, text)
    swallowed = [group for group in groups if group not in excluded]
    known = {entry for group in excluded for entry in _entries(found, group.module)}
    for each in CONSUMERS:
        if found.family in each.families and consumer in {None, each.name}:
            wide = _wider(found, swallowed, each, known)
            if wide:
                swallowed = [group for group in swallowed if group.module not in wide]
                entries = sorted(set(wide.values()))
                text = f"stored quantized; {each.name} reads {listed(entries)} as {each.rule}, and excludes them"
                how = {each.name: "loads quantized modules as if they were in high precision"}
                yield finding("exclude-list", WARNING, wide, text, consumers=how)


def _ignored(found: Recognized, group: TensorGroup) -> bool:
    """Return True if an entry names the module; one of wildcards that only widens a number is a consumer's matter."""
    return any(_named(entry, group.module) for entry in found.config.ignore)


def _entries(found: Recognized, module: str) -> list[str]:
    return [entry for entry in found.config.ignore if _named(entry, module)]


def _named(entry: str, module: str) -> bool:
    """Match as the producer means it: a wildcard at the end does not continue a number."""
    if not producer_matches(entry, module):
        return False
    stem = entry.rstrip("*")
    rest = module[len(stem) :] if module.startswith(stem) else ""
    return not (entry.endswith("*") and stem[-1:].isdigit() and rest[:1].isdigit())


def _linear(found: Recognized) -> list[str]:
    """Return the linear modules in high precision, as far as names show them."""
    quantized = {group.name.rpartition(".")[2] for group in found.groups} | LINEAR
    routers = [name for name in found.plain if name.endswith(".mlp.gate.weight")]
    listed_routers = any(found.config.ignores(name.removesuffix(".weight")) for name in routers)
    names = [
        name.removesuffix(".weight")
        for name, tensor in found.plain.items()
        if name.endswith(".weight") and tensor.dtype in FLOATS and len(tensor.shape) == 2
    ]
    return [
        name
        for name in names
        if (name.rpartition(".")[2] in quantized or (listed_routers and name.endswith(".mlp.gate")))
        and not (found.family in {"deepseek", "gpt-oss"} and not found.config.ignore)
        and not (found.family == "deepseek" and name.endswith("lm_head"))
    ]


def _wider(found: Recognized, groups: list[TensorGroup], consumer: Consumer, known: set[str]) -> dict[str, str]:
    """Return quantized modules that a consumer's rule excludes, with the entry that does so."""
    wide: dict[str, str] = {}
    for group in groups:
        for entry in found.config.ignore:
            if not entry.startswith("re:") and entry not in known and consumer.matches(entry, group.module):
                wide[group.module] = entry
    return wide
