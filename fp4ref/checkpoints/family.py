"""The family of a checkpoint's conventions: by marks, by names that one family has, by a declaration, by shapes."""

from __future__ import annotations

from collections import Counter

from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.convention import CODED, CONVENTIONS, Convention, families
from fp4ref.checkpoints.declared import QuantizationConfig
from fp4ref.errors import UnknownNameError
from fp4ref.names import unknown


def family_of(checkpoint: Checkpoint, config: QuantizationConfig, chosen: str | None) -> tuple[str, list[str]]:
    """Return the family of a checkpoint's conventions with the evidence for it; "" if none fits."""
    known = families()
    if chosen is not None:
        family = CONVENTIONS[chosen].family if chosen in CONVENTIONS else chosen
        if family not in known:
            needed = f"one of {', '.join([*known, *CONVENTIONS])}"
            raise UnknownNameError("lint", unknown(f"unknown convention {chosen!r}"), needed, "CKP-28")
        return family, ["chosen by the caller"]
    types = {tensor.dtype for tensor in checkpoint.tensors.values()}
    for family, members in known.items():
        if checkpoint.kind == ".gguf" and any(each.struct for each in members):
            return family, ["the file is a GGUF"]
        marks = {mark for each in members for mark in each.configuration.marks}
        seen = marks & checkpoint.metadata.keys() or {
            mark for mark in marks if any(name.endswith(mark) for name in checkpoint.tensors)
        }
        if seen and types & CODED:
            return family, [f"{', '.join(sorted(seen))} in the metadata or the names of tensors"]
    named = _by_names(checkpoint, config)
    if named is not None:
        return named
    family, evidence = _by_scales(checkpoint)
    if config.family and not (family and _holds_elements_of(checkpoint, family)):
        return config.family, [f"declared in {' and '.join(config.files) or 'config.json'}"]
    return family, evidence


def _by_names(checkpoint: Checkpoint, config: QuantizationConfig) -> tuple[str, list[str]] | None:
    """Decide by names that only one family uses, then by the declaration."""
    votes = _votes(checkpoint)
    best = max(votes, key=lambda name: votes[name]) if votes else ""
    certain = any(each.codes.own for each in families().get(best, ()))
    if best and (certain or not config.family):
        return best, [f"{votes[best]} tensors have names that only {best} uses"]
    if best and config.family and not _has_scales_of(checkpoint, config.family):
        return best, [
            f"{votes[best]} tensors have names that only {best} uses, and none has one of {config.family}'s scales"
        ]
    if config.family and _holds_elements_of(checkpoint, config.family):
        return config.family, [f"declared in {' and '.join(config.files) or 'config.json'}"]
    return None


def _holds_elements_of(checkpoint: Checkpoint, family: str) -> bool:
    """Return True if some tensor has the name and the type of a family's elements."""
    roles = [each.codes for each in families()[family]]
    return any(
        tensor.dtype in role.dtypes and name.endswith(role.suffix)
        for name, tensor in checkpoint.tensors.items()
        for role in roles
    )


def _has_scales_of(checkpoint: Checkpoint, family: str) -> bool:
    """Return True if a name ends as block scales of a family's conventions do, or if some of these store none."""
    suffixes = tuple(each.scales.suffix if each.scales else "" for each in families()[family])
    return any(name.endswith(suffixes) for name in checkpoint.tensors)


def _votes(checkpoint: Checkpoint) -> Counter[str]:
    """Count tensors whose names and types only one family uses, beside elements that fit."""
    marks: dict[str, list[Convention]] = {}
    for members in families().values():
        for each in members:
            for role in each.roles.values():
                if role.own and each not in marks.get(role.suffix, ()):
                    marks.setdefault(role.suffix, []).append(each)
    votes: Counter[str] = Counter()
    for name, tensor in checkpoint.tensors.items():
        suffix = next((each for each in marks if name.endswith(each)), None)
        for each in marks.get(suffix or "", ()):
            role = next(role for role in each.roles.values() if role.suffix == suffix)
            codes = checkpoint.tensors.get(name.removesuffix(role.suffix) + each.codes.suffix)
            if tensor.dtype in role.dtypes and (codes is None or codes.dtype in each.codes.dtypes):
                votes[each.family] += 1
                break
    return votes


def _by_scales(checkpoint: Checkpoint) -> tuple[str, list[str]]:
    """Decide between modelopt's and Comfy's use of the same names: by padded shapes, then by the names of modules."""
    padded = plain = 0
    scaled = [name for name in checkpoint.tensors if name.endswith(".weight_scale")]
    for name in scaled:
        weight, scale = checkpoint.tensors.get(name.removesuffix("_scale")), checkpoint.tensors[name]
        if weight is None or len(weight.shape) != 2 or len(scale.shape) != 2 or weight.dtype != "U8":
            continue
        linear = weight.shape[0], weight.shape[1] // 8
        tiled = -(-linear[0] // 128) * 128, -(-linear[1] // 4) * 4
        padded += scale.shape == tiled != linear
        plain += scale.shape == linear != tiled
    if not scaled:
        return "", ["no tensor has a name that a convention uses"]
    blocks = ("double_blocks", "single_blocks", "transformer_blocks", "diffusion_model")
    drawn = any(part in blocks for name in scaled for part in name.split("."))
    if padded > plain or (padded == plain and drawn):
        return "comfy", [f"{padded} of {len(scaled)} scales have shapes padded to tiles of 128x4"]
    return "modelopt", [f"names ending in .weight_scale; {padded} of {len(scaled)} scales are padded to tiles"]
