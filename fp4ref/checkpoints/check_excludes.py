"""Checks of the list of modules that stay in high precision, by the rule of each consumer that reads it."""

from __future__ import annotations

from collections.abc import Iterator

from fp4ref.checkpoints.configuration import EXPRESSION, EXPRESSIONS, ListMatch
from fp4ref.checkpoints.consumers import CONSUMERS
from fp4ref.checkpoints.declared import LINEAR_CLASSES
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding, listed
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.errors import UnknownNameError

FLOATS = {"BF16", "F16", "F32"}
LINEAR = {
    *("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "qkv_proj", "gate_up_proj"),
    *("fc1", "fc2", "out_proj", "lm_head", "w1", "w2", "w3"),
}


def require_consumer(name: str | None) -> None:
    """Refuse a consumer whose rules are not known. Rules: CKP-13."""
    if name is not None and name not in CONSUMERS:
        raise UnknownNameError("lint", f"unknown consumer {name!r}", f"one of {', '.join(CONSUMERS)}", "CKP-13")


def check_excludes(found: Recognized, consumer: str | None = None) -> Iterator[LintFinding]:
    """Yield modules that the list treats otherwise than they are stored. Rules: CKP-13, CKP-40."""
    if not found.configuration.excludes or not found.config.files or found.config.layers is not None:
        return
    groups = [group for group in found.groups if "codes" in group.parts]
    excluded = [group for group in groups if group.complete and found.config.ignores(group.module)]
    if excluded:
        entries = sorted({entry for group in excluded for entry in _entries(found, group.module)})
        text = f"stored quantized, but excluded by {listed(entries)}"
        yield finding("exclude-list", ERROR, [group.module for group in excluded], text)
    high = [name for name in _linear(found) if found.config.of(name) is not None]
    if high and groups:
        text = "stored in high precision, but not in the list of excluded modules"
        if any(each.startswith(EXPRESSION) for each in found.config.ignore) and found.config.named is not EXPRESSIONS:
            text += f", which has no regular expressions: it is {found.config.named.meaning}"
        yield finding("exclude-list", ERROR, high, text)
    if groups and _is_tied_head_quantized(found):
        text = "its weight is the embeddings', in high precision, but it is not in the list of excluded modules"
        how = {"transformers": "makes a quantized head, whose tensors are not stored"}
        yield finding("exclude-list", WARNING, ["lm_head"], text, consumers=how, mendable=False)
    swallowed = [group for group in groups if group.complete and group not in excluded]
    known = {entry for group in excluded for entry in _entries(found, group.module)}
    for name, match in found.configuration.readers.items():
        if consumer in {None, name}:
            wide = _wider(found, swallowed, match, known)
            if wide:
                swallowed = [group for group in swallowed if group.module not in wide]
                entries = sorted(set(wide.values()))
                text = f"stored quantized; {name} reads {listed(entries)} as {match.meaning}, and excludes them"
                how = {name: "loads quantized modules as if they were in high precision"}
                yield finding("exclude-list", WARNING, wide, text, consumers=how, mendable=False)


def _is_tied_head_quantized(found: Recognized) -> bool:
    """Return True if a list of target classes takes the head of tied embeddings, of which nothing is stored."""
    sizes, tensors = found.config.geometry, found.checkpoint.tensors
    classes = sizes.get("architectures")
    causal = isinstance(classes, list) and any(str(each).endswith("ForCausalLM") for each in classes)
    tied = causal and sizes.get("tie_word_embeddings") is True and found.checkpoint.complete
    stored = any("lm_head" in name.split(".") for name in tensors)
    embedded = any(name.endswith("embed_tokens.weight") for name in tensors)
    loads = CONSUMERS["transformers"].takes(found.family)
    by_class = any(LINEAR_CLASSES & {*group.targets} for group in found.config.groups)
    return loads and by_class and tied and embedded and not stored and found.config.of("lm_head") is not None


def _entries(found: Recognized, module: str) -> list[str]:
    return [entry for entry in found.config.ignore if found.config.named.takes(entry, module)]


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
        and (found.configuration.closed or (found.config.ignore and not name.endswith("lm_head")))
    ]


def _wider(found: Recognized, groups: list[TensorGroup], match: ListMatch, known: set[str]) -> dict[str, str]:
    """Return quantized modules that a rule excludes, with the entry that does so."""
    wide: dict[str, str] = {}
    for group in groups:
        for entry in found.config.ignore:
            if not entry.startswith(EXPRESSION) and entry not in known and match.takes(entry, group.module):
                wide[group.module] = entry
    return wide
