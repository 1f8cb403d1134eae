"""Checks of the attributes in a file's metadata, torchao's and Comfy's, against the stored tensors."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fp4ref.checkpoints.findings import ERROR, LintFinding, finding, listed
from fp4ref.checkpoints.fitting import declared_bits, declared_format
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.formats import FORMATS


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def check_metadata(found: Recognized) -> Iterator[LintFinding]:
    """Yield attributes in a file's metadata that contradict the stored tensors. Rules: CKP-12, CKP-39."""
    read = {found.configuration.listing, *found.configuration.marks}
    read |= {f"{group.module}.weight" for group in found.groups}
    texts = {key: text for key, text in found.checkpoint.metadata.items() if key in read and text[:1] in {"{", "["}}
    torn = [key for key, text in texts.items() if not _is_json(text)]
    if torn:
        yield finding("config", ERROR, torn, "the entry of the metadata is not the JSON that it begins as")
    else:
        yield from _attributed(found)
    wrong: dict[str, list[str]] = {}
    for group in found.groups:
        said, bits, element = declared_format(group.facts), declared_bits(group.facts), group.facts.get("elem_dtype")
        known = any(each.declares(said) for each in found.members)
        if said and known and not group.convention.declares(said):
            wrong.setdefault(f"the metadata declares {said!r}: stored is {group.convention.name}", []).append(
                group.name
            )
        elif bits and (bits != group.convention.bits or _is_other_element(group, element)):
            text = f"the metadata declares {element!r}: stored is {group.convention.name}"
            wrong.setdefault(text, []).append(group.name)
    for text, names in wrong.items():
        yield finding("config", ERROR, names, text)


def _is_other_element(group: TensorGroup, declared: Any) -> bool:
    """Return True if an element type such as "float8_e4m3fn" is not the stored one."""
    named = next((each for each in FORMATS if f"_{each}" in str(declared)), "")
    return bool(named) and named != group.convention.element


def _attributed(found: Recognized) -> Iterator[LintFinding]:
    """Compare the modules that a file's metadata has attributes of with those that are stored quantized."""
    attributes = found.attributes()
    tensors = (*found.checkpoint.tensors, *found.checkpoint.lost)
    absent = [module for module in attributes if not any(name.startswith(module) for name in tensors)]
    bare = [group.module for group in found.groups if attributes and not group.facts and group.complete]
    if bare:
        others = f", but {listed(absent)}" if absent else ""
        yield finding("config", ERROR, bare, f"stored quantized, and the metadata does not list it{others}")
    elif absent and found.checkpoint.complete and not found.configuration.listing:
        yield finding("missing-tensor", ERROR, absent, "listed in the metadata, and nothing is stored")
