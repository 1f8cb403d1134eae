"""Gathering: the units of a conversion, from the groups and the plain tensors of the source."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.configuration import Configuration
from fp4ref.checkpoints.convention import CONVENTIONS, Convention, families
from fp4ref.checkpoints.declarations import CheckpointDeclaration
from fp4ref.checkpoints.experts import INTERLEAVED, STACK, stacks, with_experts
from fp4ref.checkpoints.findings import listed
from fp4ref.checkpoints.groups import Recognized
from fp4ref.checkpoints.lossless import BLOCK_FP8
from fp4ref.checkpoints.repairs import REPAIRS
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.checkpoints.transfer.choice import choose, lost
from fp4ref.checkpoints.transfer.placing import PlacedWeight
from fp4ref.checkpoints.transfer.plan import ConversionPlan
from fp4ref.checkpoints.transfer.quantizing import (
    FLOATING,
    MatrixValues,
    QuantizedSet,
    require_spec,
    values_again,
    values_of,
)
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.checkpoints.transfer.recoding import Recoded
from fp4ref.checkpoints.transfer.request import ConversionRequest
from fp4ref.checkpoints.transfer.scales import Cost
from fp4ref.checkpoints.transfer.units import Copy, Moved, Unit
from fp4ref.checkpoints.transfer.weights import Weight
from fp4ref.errors import DomainError
from fp4ref.spec import Granularity, Spec, from_json


def _chosen(request: ConversionRequest, module: str) -> bool:
    """Return True if the patterns of a request take a module."""
    wanted = not request.include or any(fits(pattern, module) for pattern in request.include)
    return wanted and not any(fits(pattern, module) for pattern in request.exclude)


def fits(pattern: str, module: str) -> bool:
    """Return True if a pattern names a module, a module above it, or matches it; `*` takes dots too."""
    return module == pattern or module.startswith(f"{pattern}.") or fnmatchcase(module, pattern)


def _spec(request: ConversionRequest, module: str) -> Spec | str | None:
    """Return the specification by which a module is to be quantized, or the name of a target without one."""
    text = next((text for pattern, text in request.quantize if fits(pattern, module)), None)
    return None if text is None or not _chosen(request, module) else _parsed(text)


@lru_cache
def _parsed(text: str) -> Spec | str:
    if text == BLOCK_FP8:
        return text
    spec = from_json(text)
    require_spec(spec)
    return spec


def with_experts_of(request: ConversionRequest, checkpoint: Checkpoint) -> Checkpoint:
    """Return a checkpoint whose experts that are to be quantized are weights [N, K], of each or of all of them.

    Rules: CNV-24, CNV-58.
    """
    found = stacks(checkpoint, wanted=lambda module: isinstance(_spec(request, module), Spec))
    if not found:
        return checkpoint
    members = _candidates(request.to) if request.to else []
    in_gguf = any(each.struct for each in members) and (checkpoint.config or {}).get("model_type") in INTERLEAVED
    if any(each.split and not each.turned for each in members) and not any(each.turned for each in members):
        needed = "a convention of its names: gpt-oss for those of Hugging Face"
        raise DomainError("quantize", f"{found[0].tensor.name} for {request.to}", needed, "CNV-58")
    return with_experts(checkpoint, found, whole=in_gguf or any(each.turned for each in members))


def _candidates(to: str) -> list[Convention]:
    return [CONVENTIONS[to]] if to in CONVENTIONS else families()[to]


def weights_of(request: ConversionRequest, found: Recognized) -> dict[str, tuple[Weight, str]]:
    """Return the quantized weights with their shards, repaired. Rules: CNV-11."""
    named = {code: set(names) for code, names in request.repairs.items()}
    weights: dict[str, tuple[Weight, str]] = {}
    if found.strays and not any(REPAIRS[code].drops for code in named):
        stray = next(tensor.name for parts in found.strays.values() for tensor in parts.values())
        needed = "a whole weight, or --repair orphan-tensor"
        raise DomainError("convert", f"{stray} belongs to no weight", needed, "CKP-8")
    for group in found.groups:
        read, crop = group, False
        for code, names in named.items():
            if names & {group.name, group.module, *group.names}:
                read, crop = REPAIRS[code].regroup(read), crop or REPAIRS[code].crops
        weights[group.module] = read_weight(read, crop=crop), group.parts["codes"].shard.name
    for code, names in named.items():
        groups = [group for group in found.groups if names & {group.name, group.module, *group.names}]
        mended = REPAIRS[code].mend(found, [weights[group.module][0] for group in groups])
        weights |= {weight.module: (weight, weights[weight.module][1]) for weight in mended}
    return weights


def moved(plan: ConversionPlan, weights: dict[str, tuple[Weight, str]], to: str) -> Iterator[Unit]:
    """Yield the weights that keep their codes. Rules: CNV-1, CNV-65."""
    losses: dict[str, list[str]] = {}
    for module, (weight, home) in weights.items():
        if plan.request.requantize and _spec(plan.request, module) is not None:
            continue
        placed = PlacedWeight(weight, choose(weight, to))
        for text in lost(placed):
            losses.setdefault(text, []).append(module)
        _count_scales(plan, placed)
        yield Moved(placed, home, placed.convention.misread.bytes)
    plan.losses += [f"{listed(modules)}: {text}" for text, modules in losses.items()]


def _count_scales(plan: ConversionPlan, placed: PlacedWeight) -> None:
    """Count how many scales are stored exactly, rounded, or with a neighbour on the way back. Rules: CNV-25."""
    weight, convention = placed.weight, placed.convention
    for scale, role, direction in (
        (weight.global_scale, "global_scale", convention.global_direction),
        (weight.input_scale, "input_scale", convention.input_direction),
    ):
        if scale is not None and role in convention.roles:
            cost = scale.cost(direction)
            plan.scales[cost.name.lower()] += 1
            plan.scale_error = max(plan.scale_error, 0.0 if cost is Cost.EXACT else scale.error(direction))


def quantized(
    plan: ConversionPlan, found: Recognized, weights: dict[str, tuple[Weight, str]], to: str
) -> Iterator[Unit]:
    """Yield the sets of matrices that are quantized here. Rules: CNV-13."""
    request = plan.request
    if not request.quantize:
        return
    values: dict[str, tuple[MatrixValues, Spec]] = {}
    only_experts, left_out = any(each.turned for each in _candidates(to)), list[str]()
    for name, tensor in found.plain.items():
        module = name.removesuffix(".weight")
        usual = len(tensor.shape) == 2 or "expert" in name or request.include  # others are kernels of convolutions
        spec = _spec(request, module) if name.endswith(".weight") and is_matrix(tensor) and usual else None
        if spec is not None and only_experts and not STACK.fullmatch(name):
            left_out.append(module)
            continue
        if isinstance(spec, Spec):  # block FP8 has no quantizer
            values[module] = values_of(tensor, module), spec
    cast = list[Recoded]()
    for module, (weight, home) in weights.items() if request.requantize else ():
        spec = _spec(request, module)
        if isinstance(spec, str):
            cast.append(Recoded(weight, to, home))
        elif spec is not None:
            values[module] = values_again(weight, home), spec
    yield from cast
    if left_out and (request.include or not values):
        needed = f"experts in one tensor: {to} stores no other weight quantized"
        raise DomainError("quantize", f"{listed(left_out)} for {to}", needed, "CNV-58")
    if not values and not cast:
        raise DomainError("quantize", "no matrix that the patterns take", "some", "CNV-13")
    left = list[str]()
    for members, spec in _fused(values, to):
        yield (unit := QuantizedSet(members, spec, to))
        left += unit.inputs_left_out()
    left += [unit.weight.module for unit in cast if unit.weight.input_scale is not None]
    if left:
        plan.losses.append(f"{listed(left)}: an input scale, which is for other formats")


def is_matrix(tensor: StoredTensor) -> bool:
    """Return True for one or more matrices in high precision."""
    return tensor.dtype in FLOATING and len(tensor.shape) > 1 and min(tensor.shape) > 0


def _fused(values: dict[str, tuple[MatrixValues, Spec]], to: str) -> Iterator[tuple[list[MatrixValues], Spec]]:
    """Yield the fused sets of the target that are quantized alike, and every other matrix alone. Rules: CKP-22."""
    family = to.partition(".")[0]
    sets = {members for each in families().get(family, ()) for members in each.fused}
    found: dict[Any, list[MatrixValues]] = {}
    for module, (value, spec) in values.items():
        head, _, last = module.rpartition(".")
        fused = next((members for members in sets if last in members and len(value.shape) == 2), None)
        key = (head, fused, spec) if fused and spec.global_scale is not Granularity.NONE else (module, None, spec)
        found.setdefault(key, []).append(value)
    yield from ((members, key[2]) for key, members in found.items())


def copies(plan: ConversionPlan, found: Recognized, taken: set[str], to: str) -> list[Unit]:
    """Return the tensors that keep their bytes, the scales of the KV cache under the target's names. Rules: CNV-14."""
    units: list[Unit] = []
    stems = {f"{module}.weight" for module in taken}
    inside = {name for group in found.groups for name in group.names} | stems
    dropped = {name for code, names in plan.request.repairs.items() if REPAIRS[code].drops for name in names}
    others: dict[str, list[str]] = {}
    kv = cache_names(found, to)
    for name, tensor in found.checkpoint.tensors.items():
        if name in inside or name in dropped:
            continue
        suffix = next((each for each in _others(found.family) if name.endswith(each)), "")
        if suffix and name not in found.plain and suffix not in _others(to.partition(".")[0]):
            others.setdefault(suffix, []).append(name)
        elif name in kv and kv[name] is None:
            others.setdefault("a scale of the KV cache", []).append(name)
        else:
            shape = configuration_of(to).kv_shape if name in kv and tensor.size == 1 else None
            units.append(Copy(tensor, kv.get(name) or name, shape))
    described = {".comfy_quant"}  # bytes of JSON that the target's own description replaces
    for suffix, names in others.items():
        if suffix not in described:
            plan.losses.append(f"{listed(names)}: {suffix}, for which {to} has no place")
    return units


def _others(family: str) -> set[str]:
    return {suffix for each in families().get(family, ()) for suffix in each.others}


def configuration_of(to: str) -> Configuration:
    """Return the configuration of a family or convention."""
    return _candidates(to)[0].configuration


def stored_cache(found: Recognized) -> str:
    """Return the format of a KV cache whose scales are stored; "" if none are. Rules: CNV-34."""
    suffixes = tuple(families()[found.family][0].configuration.kv_scales) if found.family else ()
    return "fp8" if any(name.endswith(suffixes) for name in found.plain) else ""


def cache_names(found: Recognized, to: str) -> dict[str, str | None]:
    """Return the new name of each scale of the KV cache; None where the target declares no cache. Rules: CNV-34."""
    target = configuration_of(to)
    convention = _candidates(to)[0]
    with_cache, without = (target.write(CheckpointDeclaration({"m": convention}, kv=kv)) for kv in ("fp8", ""))
    names: dict[str, str | None] = {}
    if found.family == to.partition(".")[0] or not found.family:
        return names
    own = families()[found.family][0].configuration
    for old, new in zip(own.kv_scales, target.kv_scales, strict=True):
        for name in found.plain:
            if name.endswith(old):
                names[name] = name.removesuffix(old) + new if with_cache != without else None
    return names
