"""Checks of names: tensors that are missing, and tensors that belong to nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator

from fp4ref.checkpoints.convention import CONVENTIONS, FLOATS
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup

STATE = re.compile(r"_quantizer\.|_quantizer$|\._amax$|_observer\.|_fake_quant\.|\.activation_post_process")
ZEROS = ".biases"  # of affine integers
LAYERS = re.compile(r"((?:language_model\.)?(?:model\.)?(?:language_model\.)?layers)\.(\d+)\.")
NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(.+)")
BESIDE = ("norm.weight", ".gate.weight", ".router.weight", "bias")  # in high precision, beside quantized modules
DIFFERENT = ("block_configs", "hybrid_override_pattern", "attn_layer_period", "attn_layer_indices")  # of layers
EXPERT_KEYS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def check_presence(found: Recognized) -> Iterator[LintFinding]:
    """Yield what modules lack, and tensors without a weight. Rules: CKP-7, CKP-8, CKP-55, CKP-59."""
    yield from _foreign(found)
    stems = {numberless(group.name) for group in found.groups if "codes" in group.parts}
    absent: dict[str, list[str]] = {}
    orphans: list[str] = []
    for group in found.groups:
        if has_no_matrix(group):
            orphans += [tensor.name for role, tensor in group.parts.items() if role != "codes"]
            continue
        known = numberless(group.name) in stems or len([*_needed(found, group)]) > 2
        if "codes" not in group.parts and not known:
            orphans += group.names
            continue
        for suffix in _needed(found, group):
            if group.name + suffix not in _stored(group):
                absent.setdefault(suffix, []).append(group.name + suffix)
    orphans += [
        tensor.name
        for stem, parts in found.strays.items()
        for tensor in parts.values()
        if tensor.dtype not in {"BF16", "F16"} or not tensor.name.endswith(".weight")
        if not STATE.search(tensor.name) and stem
    ]
    variants = [group for group in found.groups if group.convention.variant_of]
    if 2 * len(variants) < len(found.groups):  # single modules with another producer's name for the scale
        for group in variants:
            usual = CONVENTIONS[group.convention.variant_of].scales
            if usual is not None:
                absent.setdefault(usual.suffix, []).append(group.name + usual.suffix)
    lost = found.checkpoint.lost
    if found.checkpoint.complete:
        for suffix, lacking in absent.items():
            names = [name for name in lacking if name not in lost]
            if names:
                yield finding("missing-tensor", ERROR, names, f"not stored; the convention requires every {suffix}")
        yield from _missing_experts(found)
        yield from _missing_members(found)
        yield from _missing_names(found)
        yield from _missing_modules(found)
        yield from _missing_beside(found)
        orphans = [name for name in orphans if not _lost_weight(found, name)]
        if orphans:
            yield finding("orphan-tensor", WARNING, orphans, "a scale without a quantized weight")


def has_no_matrix(group: TensorGroup) -> bool:
    """Return True if what stands in the place of the elements is a vector in high precision, such as a norm."""
    codes = group.parts.get("codes")
    return codes is not None and codes.dtype in FLOATS and len(codes.shape) < 2


def _foreign(found: Recognized) -> Iterator[LintFinding]:
    """Yield tensors of other quantization, or of the run that made the file. Rules: CKP-59, CKP-60, CKP-61."""
    zeros = [name for group in found.groups if (name := f"{group.name}{ZEROS}") in found.checkpoint.tensors]
    if zeros:
        yield finding("orphan-tensor", WARNING, zeros, "zero points of integers, beside elements that have none")
    inside = {group.name for group in found.groups if group.complete}
    foreign = [name for name in found.plain if name.rpartition(".")[0] in inside and _is_scale(name.rpartition(".")[2])]
    foreign += [name for group in found.groups if group.complete for name in _unplaced(found, group)]
    if foreign:
        yield finding("orphan-tensor", WARNING, foreign, "the convention has no place for it beside a quantized weight")
    states = [name for name in found.checkpoint.tensors if STATE.search(name)]
    if states:
        yield finding("orphan-tensor", WARNING, states, "the internal state of a quantizer, which no loader expects")


def _unplaced(found: Recognized, group: TensorGroup) -> Iterator[str]:
    """Yield the tensors of a group's module that other conventions of the family store for a weight."""
    own = {*group.names, *(group.name + suffix for suffix in group.convention.others)}
    for each in found.members:
        for role, place in each.roles.items():
            name = group.name + place.suffix
            if role != "input_scale" and each.stem == group.convention.stem and name not in own:
                own.add(name)
                if name in found.checkpoint.tensors and name not in found.plain:
                    yield name


def _is_scale(last: str) -> bool:
    """Return True for the name of a weight's scale, and not of the activations' or the cache's."""
    return "scale" in last and last.startswith("weight")


def _lost_weight(found: Recognized, name: str) -> bool:
    stem = name.rpartition(".")[0]
    return any(each.startswith(stem) for each in found.checkpoint.lost)


def numberless(name: str) -> str:
    """Return a name with # for each number in it."""
    return NUMBER.sub("#", name)


def _stored(group: TensorGroup) -> set[str]:
    return {tensor.name for tensor in group.parts.values()}


def _needed(found: Recognized, group: TensorGroup) -> Iterator[str]:
    """Yield the suffixes of the tensors that a group must have. Rules: CKP-55."""
    for name, role in group.convention.roles.items():
        usual = name == "global_scale" and not group.facts and _is_usual(found, group, name)
        if role.needed or usual or (name == "input_scale" and needs_input_scale(found, group)):
            yield role.suffix


def _is_usual(found: Recognized, group: TensorGroup, role: str) -> bool:
    """Return True if most modules have an optional tensor whose names differ from this one's in numbers only."""
    if role in group.parts:
        return False
    pattern = numberless(group.name)
    alike = [each for each in found.groups if each.convention is group.convention and numberless(each.name) == pattern]
    if not 2 * sum(role in each.parts for each in alike) >= len(alike) > 1:
        return False
    suffix = group.convention.roles[role].suffix
    begins = f"{group.name}{group.convention.codes.suffix}."  # another writer's name of the same tensor
    return not any(name.startswith(begins) and name.endswith(suffix) for name in found.checkpoint.tensors)


def needs_input_scale(found: Recognized, group: TensorGroup) -> bool:
    """Return True if the declaration, or most groups of the convention, make an input scale necessary."""
    config, convention = found.config, group.convention
    algorithm = config.of(group.module)
    if convention.declares(algorithm or "") and convention.static_inputs:
        return algorithm in {each.lower() for each in convention.static_inputs}
    for each in config.groups:
        if each.takes(group.module):
            return each.inputs is not None and each.inputs.get("dynamic") in {"local", False}
    same = [other for other in found.groups if other.convention is convention]
    having = sum("input_scale" in other.parts for other in same)
    return 2 * having > len(same)


def _missing_experts(found: Recognized) -> Iterator[LintFinding]:
    """Yield experts that a layer lacks: all tensors of a projection. Rules: CKP-57."""
    experts: dict[tuple[str, str], set[int]] = {}
    for name in found.checkpoint.tensors:
        if match := EXPERT.fullmatch(name):
            experts.setdefault((match[1], match[3].split(".")[0]), set()).add(int(match[2]))
    declared = next((found.config.geometry.get(key) for key in EXPERT_KEYS if key in found.config.geometry), None)
    stored = max((max(numbers) + 1 for numbers in experts.values()), default=0)
    count = declared if isinstance(declared, int) and 0 < declared < 1 << 16 else stored
    missing = [
        f"{prefix}.{number}.{projection}"
        for (prefix, projection), numbers in experts.items()
        for number in range(count)
        if number not in numbers and not _lost_weight(found, f"{prefix}.{number}.{projection}.weight")
    ]
    if missing:
        yield finding("missing-tensor", ERROR, missing, f"experts without tensors; {count} experts are declared")
    beyond = [
        f"{prefix}.{number}.{projection}"
        for (prefix, projection), numbers in experts.items()
        for number in sorted(numbers)
        if number >= count
    ]
    weights = {group.name for group in found.groups if "codes" in group.parts}
    weights |= {name.removesuffix(".weight") for name in found.plain}
    beyond = [name for name in beyond if name in weights]  # what else has the name of an expert is an orphan
    if beyond:
        yield finding("shape", ERROR, beyond, f"experts beyond the declared number, which is {count}")


def _missing_members(found: Recognized) -> Iterator[LintFinding]:
    """Yield members of fused sets that are absent in one place and present in the others."""
    modules = {group.name for group in found.groups}
    modules |= {name.removesuffix(".weight") for name in found.plain if name.endswith(".weight")}
    sets = {members for group in found.groups for members in group.convention.fused}
    missing = []
    for members in sets:
        homes: dict[str, set[str]] = {}
        for name in modules:
            head, _, last = name.rpartition(".")
            if last in members:
                homes.setdefault(head, set()).add(last)
        usual = {frozenset(present) for head, present in homes.items()}
        for head, present in homes.items():
            alike = [other for place, other in homes.items() if place != head and numberless(place) == numberless(head)]
            if len(usual) > 1 and alike and all(other > present for other in alike):
                lacking = [f"{head}.{member}" for member in alike[0] - present]
                missing += [name for name in lacking if not _lost_weight(found, f"{name}.weight")]
    if missing and not any(EXPERT.fullmatch(f"{name}.x") for name in missing):
        yield finding("missing-tensor", ERROR, sorted(missing), "a module that the same block has everywhere else")


def _missing_modules(found: Recognized) -> Iterator[LintFinding]:
    """Yield layers that the declared geometry requires, a head that is not tied, and what torchao's metadata lists."""
    sizes, tensors = found.config.geometry, found.checkpoint.tensors
    stored: dict[str, set[int]] = {}
    for match in filter(None, map(LAYERS.match, tensors)):
        stored.setdefault(match[1], set()).add(int(match[2]))
    count = sizes.get("num_hidden_layers")
    missing = [
        f"{prefix}.{number}"
        for prefix, numbers in stored.items()
        for number in range(count if isinstance(count, int) and count < 1 << 16 else 0)
        if number not in numbers and not _lost_weight(found, f"{prefix}.{number}.x")
    ]
    heads = [name for name in tensors if name.startswith("lm_head.")]
    embedded = "model.embed_tokens.weight" in tensors
    if (
        sizes.get("tie_word_embeddings") is False
        and embedded
        and not heads
        and not found.checkpoint.lost & {"lm_head.weight", "lm_head"}
    ):
        missing.append("lm_head.weight")
    try:
        listed = json.loads(found.checkpoint.metadata.get(found.configuration.listing, "[]"))
    except (ValueError, RecursionError):
        listed = []
    for name in listed if isinstance(listed, list) else ():
        head, _, last = str(name).rpartition(".")
        flat = f"{head}._{last}_".lstrip(".")
        if name not in tensors.keys() | found.checkpoint.lost and not any(
            each.startswith(flat) for each in (*tensors, *found.checkpoint.lost)
        ):
            missing.append(str(name))
    classes = sizes.get("architectures", [])
    causal = not isinstance(classes, list) or all(str(each).endswith("ForCausalLM") for each in classes)
    if causal and heads and isinstance(count, int) and any(len(numbers) == count for numbers in stored.values()):
        missing += [name for name in _missing_outside(tensors) if name not in found.checkpoint.lost]
    if missing:
        yield finding("missing-tensor", ERROR, missing, "required by the declared geometry or the metadata, not stored")


def _missing_outside(tensors: Collection[str]) -> Iterator[str]:
    """Yield what a model with a head and all its layers lacks outside of these, in the names of Hugging Face."""
    outer = [name for name in tensors if name.startswith("model.") and not LAYERS.match(name)]
    inner = any(name.startswith("model.layers.") and name.endswith("norm.weight") for name in tensors)
    for last, words in (("norm", ("norm", "ln_f")), ("embed_tokens", ("embed", "wte"))):
        if inner and outer and not any(word in name for name in outer for word in words):
            yield f"model.{last}.weight"


def _missing_beside(found: Recognized) -> Iterator[LintFinding]:
    """Yield norms and routers that one layer lacks, where another has its names and these. Rules: CKP-58."""
    layers: dict[tuple[str, str], set[str]] = {}
    for name in found.checkpoint.tensors:
        if match := LAYERS.match(name):
            layers.setdefault((match[1], match[2]), set()).add(numberless(name[match.end() :]))
    missing = []
    for (prefix, number), names in layers.items():
        more = [other - names for other in layers.values() if other > names]
        alone = sum(other == names for other in layers.values()) == 1
        least = min(more, key=len, default=set())
        whole = _is_a_module(found, f"{prefix}.{number}", least, names)
        if alone and (whole or all(name.endswith(BESIDE) for name in least)):
            missing += [
                each for name in sorted(least) if (each := f"{prefix}.{number}.{name}") not in found.checkpoint.lost
            ]
    if missing:
        yield finding("missing-tensor", ERROR, missing, "not stored; a layer with the same other names has it")


def _is_a_module(found: Recognized, layer: str, names: Collection[str], others: Collection[str]) -> bool:
    """Return True for all names of one module, where no declaration gives layers other modules."""
    modules = {name.partition(".")[0] for name in names}
    if modules & {name.partition(".")[0] for name in others}:
        return False
    kinds = found.config.geometry.get("layer_types")
    alike = not isinstance(kinds, list) or len({*map(str, kinds)}) < 2
    alike = alike and not any(key in found.config.geometry for key in DIFFERENT)
    return alike and len(modules) == 1 and not found.config.ignores(f"{layer}.{modules.pop()}")


def _missing_names(found: Recognized) -> Iterator[LintFinding]:
    """Yield tensors that the metadata of a file lists and that are not stored. Rules: CKP-56."""
    missing = []
    for group in found.groups:
        listed = group.facts.get("_tensor_data_names")
        required = {group.name + suffix for suffix in _needed(found, group)}
        for name in listed if isinstance(listed, list) else ():
            full = f"{group.name}_{name}"
            if full not in found.checkpoint.tensors and full not in required | found.checkpoint.lost:
                missing.append(full)
    if missing:
        yield finding("missing-tensor", ERROR, missing, "listed in the file's metadata, not stored")
