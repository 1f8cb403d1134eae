"""Declarations as each family stores them: the keys that a writer sets, and the attributes that a reader finds.

Rules: CKP-12, CKP-31, CKP-37.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fp4ref.catalogue import PROFILES
from fp4ref.checkpoints.configuration import CONFIG, HF_QUANT, SECTION, Facts, Written
from fp4ref.checkpoints.convention import Convention

COMFY_METADATA = "_quantization_metadata"
PLAIN = "Tensor"  # the type that torchao notes of a parameter in high precision
CACHE = {"dynamic": False, "num_bits": 8, "type": "float"}


class CheckpointDeclaration(NamedTuple):
    """The declarations of a checkpoint that is written.

    modules: the convention of each quantized module. facts: attributes of modules that differ among these, such as a
    layout. excluded: modules that stay in high precision. kv: the format of the KV cache, such as "fp8"; "" for none.
    names: every parameter's name. inputs: true if input scales are stored.
    """

    modules: Mapping[str, Convention]
    excluded: tuple[str, ...] = ()
    facts: Mapping[str, Facts] = {}
    kv: str = ""
    names: tuple[str, ...] = ()
    inputs: bool = True


def _conventions(declaration: CheckpointDeclaration) -> list[Convention]:
    """Return the conventions that occur, that of most modules first."""
    found = list(declaration.modules.values())
    return sorted(dict.fromkeys(found), key=found.count, reverse=True)


def _blocks(convention: Convention) -> dict[str, int]:
    """Return the declared size of blocks, where it is that of a row's."""
    return {"group_size": convention.group_size} if convention.group_size else {}


def write_modelopt(declaration: CheckpointDeclaration) -> Written:
    """Return `quantization_config` and `hf_quant_config.json` as modelopt writes them. Rules: CKP-31."""
    kinds = _conventions(declaration)
    producer = {"name": "modelopt", "version": "0.47.0"}
    excluded = [*declaration.excluded]
    cache = declaration.kv.upper() or None
    if len(kinds) == 1:
        algorithm = _algorithm(kinds[0], declaration)
        sizes = {} if algorithm == "mxfp4" else _blocks(kinds[0])  # its exporter writes none there
        inner: dict[str, Any] = {"quant_algo": algorithm, "kv_cache_quant_algo": cache, **sizes}
        inner["exclude_modules"] = excluded
    else:
        algorithm = "MIXED_PRECISION"
        layers = {
            name: {"quant_algo": _algorithm(each, declaration), **_blocks(each)}
            for name, each in declaration.modules.items()
        }
        inner = {"quant_algo": algorithm, "kv_cache_quant_algo": cache, "quantized_layers": layers}
    outer: dict[str, Any] = {"quant_method": "modelopt", "quant_algo": algorithm, "producer": producer}
    if len(kinds) == 1:
        outer |= _groups(kinds, declaration)
        outer["ignore"] = excluded
    else:
        outer["quantized_layers"] = inner["quantized_layers"]
    if declaration.kv:
        outer["kv_cache_scheme"] = CACHE if declaration.kv == "fp8" else cache
    return Written({CONFIG: {SECTION: outer}, HF_QUANT: {"producer": producer, "quantization": inner}})


def _algorithm(convention: Convention, declaration: CheckpointDeclaration) -> str:
    """Return the algorithm of a convention: where input scales are required and not stored, one of weights only."""
    usual = convention.declared[0]
    if declaration.inputs or usual not in convention.static_inputs:
        return usual
    return next((each for each in convention.declared if each.startswith("W")), usual)


def _groups(kinds: list[Convention], declaration: CheckpointDeclaration) -> dict[str, Any]:
    """Return the entries of `config_groups`: one for all linear modules, or one for the modules of each convention."""
    groups: dict[str, Any] = {}
    for number, each in enumerate(kinds):
        if not each.settings:
            continue
        names = [name for name, convention in declaration.modules.items() if convention == each]
        group: dict[str, Any] = {"targets": ["Linear"] if len(kinds) == 1 else names}
        group["weights"] = dict(each.settings["weights"])
        inputs = each.settings.get("input_activations")
        stored = declaration.inputs or each.input_scale is None
        group["input_activations"] = dict(inputs) if inputs and stored else None
        groups[f"group_{number}"] = group
    return {"config_groups": groups} if groups else {}


def write_compressed(declaration: CheckpointDeclaration) -> Written:
    """Return `quantization_config` as compressed-tensors reads it. Rules: CKP-31."""
    kinds = _conventions(declaration)
    record = _groups(kinds, declaration)
    for group, each in zip(record.get("config_groups", {}).values(), kinds, strict=True):
        group["format"] = each.declared[0]
    record |= {
        "format": kinds[0].declared[0] if len(kinds) == 1 else "mixed-precision",
        "ignore": [*declaration.excluded],
        "kv_cache_scheme": {**CACHE, "strategy": "tensor", "symmetric": True} if declaration.kv else None,
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
    }
    return Written({CONFIG: {SECTION: record}})


def write_method(method: str, **settings: Any) -> Callable[[CheckpointDeclaration], Written]:
    """Return a writer of `quant_method` and constant settings, with the modules that are not converted, if any."""

    def write(declaration: CheckpointDeclaration) -> Written:
        skipped = {"modules_to_not_convert": [*declaration.excluded]} if declaration.excluded else {}
        return Written({CONFIG: {SECTION: {"quant_method": method, **settings, **skipped}}})

    return write


def write_deepseek(declaration: CheckpointDeclaration) -> Written:
    """Return `quantization_config` of FP8 with its squares, or of MXFP8 alone, and the type of experts that are FP4.

    Rules: CKP-31.
    """
    kinds = _conventions(declaration)
    rows = bool(kinds) and all(each.declares("mxfp8") for each in kinds)
    block = next((each.block for each in kinds if rows or each.block[0] > 1), None)
    record: dict[str, Any] = {"quant_method": "mxfp8" if rows else "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
    if block:
        record["weight_block_size"] = [*block]
    if rows:
        record["scale_fmt"] = "ue8m0"
    if declaration.excluded:
        record["modules_to_not_convert"] = [*declaration.excluded]
    config: dict[str, Any] = {SECTION: record}
    if any(each.bits == 4 for each in kinds):
        config["expert_dtype"] = "fp4"
    return Written({CONFIG: config})


def write_mlx(declaration: CheckpointDeclaration) -> Written:
    """Return `quantization` as MLX's loaders read it, once more under `quantization_config`. Rules: CKP-31."""
    kinds = _conventions(declaration)

    def settings(each: Convention) -> dict[str, Any]:
        return {**_blocks(each), "bits": each.bits, "mode": each.declared[0]}

    record = settings(kinds[0])
    record |= {name: settings(each) for name, each in declaration.modules.items() if each != kinds[0]}
    return Written({CONFIG: {"quantization": record, SECTION: record}}, {"format": "mlx"})


def write_comfy(declaration: CheckpointDeclaration) -> Written:
    """Return the metadata that names each layer's format. Rules: CKP-31."""
    layers = {name: {"format": each.declared[0]} for name, each in declaration.modules.items()}
    return Written({}, {COMFY_METADATA: json.dumps({"format_version": "1.0", "layers": layers})})


def write_torchao(declaration: CheckpointDeclaration) -> Written:
    """Return the metadata from which torchao makes its tensors. Rules: CKP-31."""
    metadata = {}
    for module, each in declaration.modules.items():
        facts = declaration.facts.get(module, {})
        swizzled = bool(facts.get("is_swizzled_scales", False))
        data: dict[str, Any] = {"block_size": each.block[1], "orig_dtype": _dtype(facts.get("dtype", "bfloat16"))}
        if each.global_scale is not None:
            data |= {"is_swizzled_scales": swizzled, "use_triton_kernel": False, "act_quant_kwargs": None}
        else:
            element = "float4_e2m1fn_x2" if each.bits == 4 else "float8_e4m3fn"
            data |= {"elem_dtype": _dtype(element), "is_swizzled_scales": swizzled, "act_quant_kwargs": None}
            data["kernel_preference"] = {"_type": "KernelPreference", "_data": "EMULATED"}
        stored = facts.get("stored", ("qdata", "scale", *(["per_tensor_scale"] if each.global_scale else [])))
        record = {"_type": each.declared[0], "_data": data, "_tensor_data_names": sorted(stored)}
        metadata[f"{module}.weight"] = json.dumps(record)
    names = declaration.names or tuple(metadata)
    metadata |= {name: json.dumps({"_type": PLAIN}) for name in names if name not in metadata}
    metadata["tensor_names"] = json.dumps([*names])
    return Written({}, metadata)


def _dtype(name: str) -> dict[str, str]:
    return {"_type": "torch.dtype", "_data": name}


def write_attributes(key: str, **common: Any) -> Callable[[CheckpointDeclaration], Written]:
    """Return a writer of metadata that holds each tensor's attributes under one key, as this project's files do."""

    def write(declaration: CheckpointDeclaration) -> Written:
        tensors = {f"{module}.weight": dict(facts) for module, facts in declaration.facts.items()}
        return Written({}, {key: json.dumps({**common, "tensors": tensors})})

    return write


def _object(text: str) -> dict[str, Any]:
    """Return a text's JSON object; nothing if it is none."""
    try:
        value = json.loads(text) if text.startswith("{") else None
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {}


def comfy_attributes(metadata: Mapping[str, str]) -> dict[str, Facts]:
    """Return the attributes of layers, by module."""
    layers = _object(metadata.get(COMFY_METADATA, "")).get("layers")
    pairs = layers.items() if isinstance(layers, dict) else ()
    return {module: facts for module, facts in pairs if isinstance(facts, dict)}


def torchao_attributes(metadata: Mapping[str, str]) -> dict[str, Facts]:
    """Return the attributes of tensor subclasses, by module."""
    found: dict[str, Facts] = {}
    for name, text in metadata.items():
        value = _object(text)
        if value.get("_type", PLAIN) != PLAIN:
            data = value.get("_data")
            own = {key: value.get(key) for key in ("_type", "_tensor_data_names")}
            found[name.rpartition(".")[0]] = {**(data if isinstance(data, dict) else {}), **own}
    return found


def attributes_under(key: str) -> Callable[[Mapping[str, str]], dict[str, Facts]]:
    """Return a reader of each tensor's attributes, by module; `format` names the formats of its specification."""

    def read(metadata: Mapping[str, str]) -> dict[str, Facts]:
        tensors = _object(metadata.get(key, "")).get("tensors")
        pairs = tensors.items() if isinstance(tensors, dict) else ()
        return {
            name.removesuffix(".weight"): {**facts, **_formats(facts.get("spec"))}
            for name, facts in pairs
            if isinstance(facts, dict)
        }

    return read


def _formats(spec: Any) -> dict[str, str]:
    """Return the formats of a registered specification, as conventions of this project are declared."""
    known = PROFILES.get(spec) if isinstance(spec, str) else None
    if known is None:
        return {}
    constant = f", {known.scale_max:g}" if known.scale.format.signed else ""
    return {"format": f"{known.element.format.name}, {known.scale.format.name}{constant}"}
