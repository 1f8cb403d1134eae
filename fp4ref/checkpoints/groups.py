"""Groups: the tensors that one quantized weight is stored in, recognized by names, types, shapes and declarations."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fp4ref.checkpoints import conventions as _conventions  # registers them
from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.convention import CONVENTIONS, FLOATS, Convention, families
from fp4ref.checkpoints.declared import QuantizationConfig, declared
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.errors import UnknownNameError
from fp4ref.layout import LINEAR, Layout

del _conventions
FP8_TYPES = ("F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
CODED = {"U8", "I8", "F4", "U32", "MXFP4", "NVFP4", *FP8_TYPES}  # types in which quantized elements are stored
WEIGHT = ".weight"
COMFY_METADATA = "_quantization_metadata"


@dataclass
class TensorGroup:
    """A quantized weight. parts: its tensors by role. facts: attributes that the file's metadata declares for it."""

    name: str
    convention: Convention
    parts: dict[str, StoredTensor]
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> str:
        """The module's name, as configurations name it."""
        return self.name.removesuffix("._weight")

    @property
    def layout(self) -> Layout:
        """The layout of the scales."""
        tiled = self.facts.get("is_swizzled_scales")
        if self.convention.per_tensor_layout:
            from fp4ref.layout import TILED_128X4

            return TILED_128X4 if tiled else LINEAR
        return self.convention.layout

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape of the stored elements, padding included: [..., rows, columns]; () if it is not known."""
        codes = self.parts.get("codes")
        if codes is None or len(codes.shape) < 2 + self.convention.split:
            return ()
        items = 1 if codes.dtype == "F4" else self.convention.codes_per_item
        if self.convention.split:
            *front, blocks, width = codes.shape
            return (*front, blocks * width * items)
        return (*codes.shape[:-1], codes.shape[-1] * items)

    @property
    def rows(self) -> int:
        """Rows of one matrix."""
        return self.shape[-2]

    @property
    def columns(self) -> int:
        """Columns of one matrix."""
        return self.shape[-1]

    @property
    def matrices(self) -> int:
        """The number of matrices, such as experts, that are stored one after the other."""
        return math.prod(self.shape[:-2])

    @property
    def names(self) -> list[str]:
        """Names of the stored tensors."""
        return [tensor.name for tensor in self.parts.values()]


@dataclass
class Recognized:
    """A checkpoint in the terms of its family of conventions.

    plain: tensors of high-precision modules and all others, by name. strays: tensors with a role and no group.
    """

    checkpoint: Checkpoint
    config: QuantizationConfig
    family: str
    evidence: list[str]
    groups: list[TensorGroup] = field(default_factory=list)
    plain: dict[str, StoredTensor] = field(default_factory=dict)
    strays: dict[str, dict[str, StoredTensor]] = field(default_factory=dict)

    @property
    def conventions(self) -> list[str]:
        """Names of the conventions that occur, most frequent first."""
        return [name for name, _ in Counter(group.convention.name for group in self.groups).most_common()]


def recognize(checkpoint: Checkpoint, chosen: str | None = None) -> Recognized:
    """Sort a checkpoint's tensors into groups. Nothing is decided by values.

    chosen: a convention or a family that replaces the recognition.

    Rules: CKP-28, CKP-29.
    """
    config = declared(checkpoint)
    family, evidence = _family(checkpoint, config, chosen)
    found = Recognized(checkpoint, config, family, evidence)
    exact = [CONVENTIONS[chosen]] if chosen is not None and chosen in CONVENTIONS else None
    candidates = exact or families().get(family, [])
    modules = _modules(checkpoint, candidates, found)
    metadata = _metadata(checkpoint)
    for stem, parts in modules.items():
        _place(found, stem, parts, candidates, metadata.get(stem) or metadata.get(stem.removesuffix("._weight")) or {})
    return found


def _family(checkpoint: Checkpoint, config: QuantizationConfig, chosen: str | None) -> tuple[str, list[str]]:
    """Return the family of a checkpoint's conventions with the evidence for it; "" if none fits."""
    known = families()
    if chosen is not None:
        family = CONVENTIONS[chosen].family if chosen in CONVENTIONS else chosen
        if family not in known:
            needed = f"one of {', '.join([*known, *CONVENTIONS])}"
            raise UnknownNameError("lint", f"unknown convention {chosen!r}", needed, "CKP-28")
        return family, ["chosen by the caller"]
    if checkpoint.kind == ".gguf":
        return "gguf", ["the file is a GGUF"]
    return _by_names(checkpoint, config) or _by_scales(checkpoint)


def _by_names(checkpoint: Checkpoint, config: QuantizationConfig) -> tuple[str, list[str]] | None:
    """Decide by metadata, by names that only one family uses, then by the declaration."""
    votes = _votes(checkpoint)
    by_names = max(votes, key=lambda name: votes[name]) if votes else ""
    if "tensor_names" in checkpoint.metadata or by_names == "torchao":
        return "torchao", ["tensor_names in the metadata, or names ending in _qdata"]
    if COMFY_METADATA in checkpoint.metadata or any(name.endswith(".comfy_quant") for name in checkpoint.tensors):
        return "comfy", ["the metadata of Comfy"]
    if by_names in {"compressed-tensors", "gpt-oss"} or (by_names and not config.family):
        return by_names, [f"{votes[by_names]} tensors have names that only {by_names} uses"]
    if config.family:
        return config.family, [f"declared in {' and '.join(config.files) or 'config.json'}"]
    return None


def _votes(checkpoint: Checkpoint) -> dict[str, int]:
    """Count names that only one family uses."""
    votes: Counter[str] = Counter()
    for name, tensor in checkpoint.tensors.items():
        if name.endswith((".weight_packed", ".weight_global_scale", ".input_global_scale")):
            votes["compressed-tensors"] += 1
        elif name.endswith(("_blocks", ".blocks")) and tensor.dtype == "U8":
            votes["gpt-oss"] += 1
        elif name.endswith("_weight_qdata"):
            votes["torchao"] += 1
        elif name.endswith(".weight_scale_inv"):
            votes["deepseek"] += 1
        elif name.endswith(".scales") and tensor.dtype == "U8" and _is(checkpoint, name, ".scales", "U32"):
            votes["mlx"] += 1
        elif name.endswith(".scale") and tensor.dtype == "F8_E8M0":
            votes["deepseek"] += 1
    return dict(votes)


def _is(checkpoint: Checkpoint, name: str, suffix: str, dtype: str) -> bool:
    weight = checkpoint.tensors.get(name.removesuffix(suffix) + WEIGHT)
    return weight is not None and weight.dtype == dtype


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


def _modules(
    checkpoint: Checkpoint, candidates: list[Convention], found: Recognized
) -> dict[str, dict[str, StoredTensor]]:
    """Return tensors by module and suffix; tensors without a known suffix are plain."""
    suffixes = {role.suffix for each in candidates for role in each.roles.values()}
    suffixes |= {suffix for each in candidates for suffix in each.others} - {".bias", "_bias"}
    longest = sorted(suffixes, key=len, reverse=True)
    modules: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in checkpoint.tensors.items():
        suffix = next((each for each in longest if name.endswith(each) and len(name) > len(each)), None)
        if suffix is None or (suffix in {"_scale", "_scales", "_blocks"} and "qdata" in name):
            found.plain[name] = tensor
        else:
            modules.setdefault(name.removesuffix(suffix), {})[suffix] = tensor
    return modules


def _place(
    found: Recognized, stem: str, parts: dict[str, StoredTensor], candidates: list[Convention], facts: dict[str, Any]
) -> None:
    """Make a group of a module's tensors, or put them among the plain ones or the strays."""
    codes = [parts[role.suffix] for role in {each.codes for each in candidates} if role.suffix in parts]
    companions = [suffix for suffix in parts if all(suffix != each.codes.suffix for each in candidates)]
    coded = any(tensor.dtype in CODED for tensor in codes)
    if codes and not coded and not companions:
        found.plain.update((tensor.name, tensor) for tensor in parts.values())
        return
    if any(name in found.checkpoint.tensors for name in (f"{stem}.biases", f"{stem}.weight_packed_zero")):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())  # affine: integers, not judged here
        return
    said = str(facts.get("_type", facts.get("format", ""))).lower()
    integers = any(tensor.dtype not in CODED | set(FLOATS) for tensor in codes)
    if integers or (said and not any(said in each.declared for each in candidates)):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())  # a format that is not judged here
        return
    best = max(candidates, key=lambda each: _score(each, parts, found.config.of(stem.removesuffix("._weight")), facts))
    roles = {name: role for name, role in best.roles.items() if role.suffix in parts}
    needed = [name for name, role in best.roles.items() if role.needed and name != "codes"]
    complete = all(name in roles for name in needed)
    plain = found.config.of(stem) not in best.declared and len(needed) < 2  # one stray scale makes no quantized weight
    if (not codes and not complete) or (codes and not coded and (not complete or plain)):
        found.strays[stem] = parts
        return
    algorithm = found.config.of(stem)
    foreign = algorithm and "-precision" not in algorithm.replace("_", "-")
    foreign = foreign and not any(algorithm in each.declared for each in candidates)
    if foreign and not all(parts[best.roles[name].suffix].dtype in best.roles[name].dtypes for name in roles):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())
        return
    if codes and codes[0].dtype == "I8" and best.element != "e2m1":
        found.plain.update((tensor.name, tensor) for tensor in parts.values())
        return
    found.groups.append(TensorGroup(stem, best, {name: parts[role.suffix] for name, role in roles.items()}, facts))


def _score(convention: Convention, parts: dict[str, StoredTensor], algorithm: str | None, facts: dict[str, Any]) -> int:
    """Return how well a convention fits: one defect must not change which one fits best."""
    score = 4 * (algorithm is not None and algorithm in convention.declared)
    bits = 4 if "float4" in str(facts.get("elem_dtype")) else 8 if "float8" in str(facts.get("elem_dtype")) else 0
    score += 3 * (bits == convention.bits)
    score += 3 * (str(facts.get("_type", facts.get("format", ""))).lower() in convention.declared)
    for name, role in convention.roles.items():
        tensor = parts.get(role.suffix)
        weight = 3 if name == "codes" else 2
        if tensor is None:
            score -= weight * role.needed
        else:
            score += weight + weight * (tensor.dtype in role.dtypes)
    score -= sum(
        suffix not in {role.suffix for role in convention.roles.values()} and suffix not in convention.others
        for suffix in parts
    )
    return score + _ratio_fits(convention, parts)


def _ratio_fits(convention: Convention, parts: dict[str, StoredTensor]) -> int:
    """Return 4 if the number of scales per row is that of the convention's blocks."""
    codes = parts.get(convention.codes.suffix)
    scales = parts.get(convention.scales.suffix) if convention.scales else None
    if codes is None or scales is None or not codes.shape or not scales.shape:
        return 0
    items = 1 if codes.dtype in FLOATS else convention.codes_per_item
    columns = codes.shape[-1] * items * (codes.shape[-2] if convention.split else 1)
    rows, width = convention.block
    if not width:
        return 4 * (scales.size <= max(codes.shape[0], 1) and codes.dtype not in FLOATS)
    return 4 * (
        scales.shape[-1] == -(-columns // width) and (rows == 1 or scales.shape[0] == -(-codes.shape[0] // rows))
    )


def _metadata(checkpoint: Checkpoint) -> dict[str, dict[str, Any]]:
    """Return attributes by module from the file's metadata: those of torchao, and those of Comfy."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in checkpoint.metadata.items():
        try:
            value = json.loads(text) if text.startswith("{") else None
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            continue
        layers = value.get("layers")
        if name == COMFY_METADATA and isinstance(layers, dict):
            found.update((key, facts) for key, facts in layers.items() if isinstance(facts, dict))
        elif "_type" in value:
            data = value.get("_data")
            module, _, parameter = name.rpartition(".")
            key = f"{module}._{parameter}" if module else f"_{parameter}"
            found[key] = {
                **(data if isinstance(data, dict) else {}),
                "_type": value["_type"],
                "_tensor_data_names": value.get("_tensor_data_names"),
            }
    return found
