"""Configurations: what the files beside the tensors hold of a family's checkpoints, as values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Facts = Mapping[str, Any]
CONFIG, HF_QUANT, SECTION = (
    "config.json",
    "hf_quant_config.json",
    "quantization_config",
)
EXPRESSION = "re:"  # before an entry that is a regular expression
FUSED_NAMES = {  # the module that consumers make of members of a set
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
    **dict.fromkeys(("w1", "w3"), "w13"),
}


class ListMatch(NamedTuple):
    """A rule by which an entry of a list of excluded modules matches a module."""

    meaning: str
    takes: Callable[[str, str], bool]


def _fused(module: str) -> str:
    head, _, last = module.rpartition(".")
    return f"{head}.{FUSED_NAMES.get(last, last)}".lstrip(".")


def _occurs(entry: str, name: str) -> bool:
    if "*" in entry:
        return fnmatchcase(name, f"*{entry}*" if not entry.endswith("*") else entry)
    return entry in name


SUBSTRING = ListMatch(
    "an entry that occurs anywhere in the fused module's name", lambda entry, module: _occurs(entry, _fused(module))
)
WILDCARD = ListMatch(
    "wildcards over the whole name, where * takes dots and digits", lambda entry, module: fnmatchcase(module, entry)
)


def is_match(pattern: str, name: str) -> bool:
    """Return True if a name begins with a match of a regular expression; False if it is none."""
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False


def _above(entry: str, module: str) -> bool:
    if "*" not in entry:
        return module == entry or module.startswith(f"{entry}.")
    if not fnmatchcase(module, entry):
        return False
    stem = entry.rstrip("*")  # a wildcard at the end does not continue a number
    rest = module[len(stem) :] if module.startswith(stem) else ""
    return not (entry.endswith("*") and stem[-1:].isdigit() and rest[:1].isdigit())


def _expression_or_above(entry: str, module: str) -> bool:
    return is_match(entry[3:], module) if entry.startswith(EXPRESSION) else _above(entry, module)


def _pattern_or_end(entry: str, module: str) -> bool:
    """Return True if an entry of `modules_to_not_convert` matches a module. Rules: CKP-65."""
    return module.endswith(entry) or is_match(rf"(?:{entry})(?:(?<=\.)|(?=\.|$))", module)


ABOVE = ListMatch("the name of a module or of one above it, with wildcards", _above)
EXPRESSIONS = ListMatch("the same, or a regular expression behind re:", _expression_or_above)
TRANSFORMERS = ListMatch("a pattern of a module's name or of one above it, or the end of the name", _pattern_or_end)


class Written(NamedTuple):
    """Declarations as stored: for each file of configuration the keys to set, and the metadata of every shard."""

    files: Mapping[str, Mapping[str, Any]] = {}
    metadata: Mapping[str, str] = {}


def _nothing(metadata: Mapping[str, str]) -> dict[str, Facts]:
    return {}


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The files in which a family declares its quantization, and what loaders need of them.

    methods: values of `quant_method`, of which a writer takes the first. section: the key in `config.json`; "" for
    none. file: another file that repeats the declaration. own: the tensors or their file say everything, and
    declarations of `config.json` are not compared. required: loaders refuse quantized tensors that nothing declares.
    excludes: the key of the list of excluded modules; "" for none. closed: that list names every linear module in high
    precision. named: the rule by which its writers match an entry. readers: the consumers whose matching of that list
    differs from the producer's, with their rules. grouped: settings are those of `config_groups`. ambiguous: several
    groups may match a module, and consumers differ in which they take. marks: keys of metadata and suffixes of tensors
    that no other family has. listing: the key of metadata that lists every parameter. experts: the key of `config.json`
    that names the algorithm of experts. attributes: attributes of modules from a file's metadata. kv_scales: suffixes
    of an attention's cache scales, keys before values; kv_shape: theirs. write: takes a
    `CheckpointDeclaration` and returns it as stored.

    Rules: CKP-12, CKP-13, CKP-28.
    """

    methods: tuple[str, ...] = ()
    section: str = ""
    file: str = ""
    own: bool = False
    required: bool = False
    excludes: str = ""
    closed: bool = False
    named: ListMatch = ABOVE
    readers: Mapping[str, ListMatch] = field(default_factory=dict, hash=False)
    grouped: bool = False
    ambiguous: bool = False
    marks: tuple[str, ...] = ()
    listing: str = ""
    experts: str = ""
    attributes: Callable[[Mapping[str, str]], dict[str, Facts]] = _nothing
    kv_scales: tuple[str, str] = (".k_scale", ".v_scale")
    kv_shape: tuple[int, ...] = ()
    write: Callable[..., Written] = lambda declaration: Written()


UNDECLARED = Configuration(own=True)
