"""Checks of declarations against the stored tensors, and against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fp4ref.checkpoints.check_metadata import check_metadata
from fp4ref.checkpoints.check_shapes import sound
from fp4ref.checkpoints.configuration import CONFIG, HF_QUANT, SECTION
from fp4ref.checkpoints.convention import FLOATS, families
from fp4ref.checkpoints.declared import LINEAR_CLASSES, QuantizationConfig
from fp4ref.checkpoints.findings import ERROR, WARNING, LintFinding, finding, listed
from fp4ref.checkpoints.float_scales import part_of
from fp4ref.checkpoints.groups import Recognized, TensorGroup
from fp4ref.formats import FORMATS

BLOCKWISE = {"group", "tensor_group"}  # strategies whose scales are for blocks of a row
PARTS = {"tensor": "tensor", "channel": "row", "block": "square"}  # of a weight, by the strategies for float scales
EITHER = {"mixed_precision", "mixed-precision", ""}  # algorithms that name no single format


def check_config(found: Recognized) -> Iterator[LintFinding]:
    """Yield the contradictions of a checkpoint's declarations. Rules: CKP-12."""
    files = [*found.config.files] or [CONFIG]
    contradictory = [*_family(found), *_two_files(found.config)]
    yield from contradictory
    yield from _presence(found)
    mismatched: dict[str, list[TensorGroup]] = {}
    for group in () if any(each.code == "config" for each in contradictory) else found.groups:
        if group.complete and sound(group) and (why := _contradiction(found, group)):
            mismatched.setdefault(why, []).append(group)
    for why, groups in mismatched.items():
        everywhere = len(groups) == len(found.groups) or found.config.layers is None
        names = files if everywhere else [group.name for group in groups]
        example = f"{groups[0].name} and {len(groups) - 1} more" if len(groups) > 1 else groups[0].name
        yield finding(
            "config",
            ERROR,
            [*files, *(group.name for group in groups)] if everywhere else names,
            f"{why}, but {example} is stored as {groups[0].convention.name}",
        )
    yield from _group_settings(found)
    yield from _incomplete(found)
    yield from _untargeted(found)
    yield from _unquantized_layers(found)
    yield from _element(found)
    bits = found.config.files.get(CONFIG, {}).get("bits")
    wrong = [group for group in found.groups if isinstance(bits, int) and group.convention.bits != bits]
    if wrong and len(wrong) == len(found.groups):
        yield finding("config", ERROR, [CONFIG], f"bits is {bits}; stored is {wrong[0].convention.name}")
    repeated, record = found.config.repeated, found.config.files.get(CONFIG)
    sizes = {group.convention.group_size for group in found.groups} - {0}
    fits = record is not None and record.get("group_size") in {None, *sizes} and not wrong and not mismatched
    if repeated and fits and repeated != record:
        text = f"{found.configuration.section} and {SECTION} declare different things"
        yield finding("config", WARNING, [CONFIG], text)
    yield from check_metadata(found)


def _family(found: Recognized) -> Iterator[LintFinding]:
    config = found.config
    if config.family and found.groups and config.family != found.family and not found.configuration.own:
        text = f"quant_method is {config.method or config.family!r}, but the tensors have the names of {found.family}"
        yield finding("config", ERROR, [*config.files], text)
    named = config.files.get(CONFIG, {}).get("quant_method")
    writers = {name: members[0] for name, members in families().items() if members[0].configuration.file == HF_QUANT}
    methods = {method for each in writers.values() for method in each.configuration.methods}
    if HF_QUANT in config.files and named is not None and named not in methods:
        text = f"{CONFIG} declares {named!r}, but {HF_QUANT} is a file of {', '.join(writers)}"
        yield finding("config", ERROR, [CONFIG, HF_QUANT], text)


def _presence(found: Recognized) -> Iterator[LintFinding]:
    """Yield a finding if the model is configured, but its quantization is not."""
    required = any(group.convention.configuration.required for group in found.groups)
    if required and found.checkpoint.config is not None and not found.config.files:
        text = f"no quantization is declared, but {len(found.groups)} modules are quantized"
        yield finding("config", ERROR, [CONFIG], text)
    if is_plain(found):
        text = f"{found.config.family} is declared, but every tensor is in high precision"
        yield finding("config", ERROR, [*found.config.files], text)


def is_plain(found: Recognized) -> bool:
    """Return True if quantized weights are declared in a form that is known, and all that is stored is plain.

    A writer that keeps the weights and their scales says so in `quantization_status`.
    """
    config, tensors = found.config, found.checkpoint.tensors
    matrices = [name for name in tensors if name.endswith("_proj.weight")]
    status = config.files.get(CONFIG, {}).get("quantization_status", "compressed")
    algorithms = [record.get("quant_algo", "") for record in config.files.values()]
    return (
        bool(config.family and matrices and found.checkpoint.complete and not found.checkpoint.lost)
        and status == "compressed"
        and None not in algorithms
        and all(tensor.dtype in FLOATS for tensor in tensors.values())
        and not any("scale" in name for name in tensors)
    )


def _two_files(config: QuantizationConfig) -> Iterator[LintFinding]:
    """Compare config.json with hf_quant_config.json."""
    if not {CONFIG, HF_QUANT} <= config.files.keys():
        return
    one, two = config.files[CONFIG], config.files[HF_QUANT]
    a, b = one.get("quant_algo"), two.get("quant_algo")
    if a and b and str(a).lower() != str(b).lower():
        yield finding("config", ERROR, [CONFIG, HF_QUANT], f"quant_algo is {a!r} in one and {b!r} in the other")
    sizes = {
        weights["group_size"]
        for group in config.groups
        if isinstance(weights := group.weights, dict) and isinstance(weights.get("group_size"), int)
    }
    declared = two.get("group_size")
    if isinstance(declared, int) and sizes and declared not in sizes:
        text = f"group_size is {sorted(sizes)} in {CONFIG} and {declared} in {HF_QUANT}"
        yield finding("group-size", ERROR, [CONFIG, HF_QUANT], text)
    ours, theirs = one.get("kv_cache_scheme"), two.get("kv_cache_quant_algo")
    if ("kv_cache_scheme" in one or theirs) and bool(ours) != bool(theirs) and "kv_cache_quant_algo" in two:
        text = f"the KV cache is {ours or 'not quantized'} in {CONFIG} and {theirs or 'not quantized'} in {HF_QUANT}"
        yield finding("config", WARNING, [CONFIG, HF_QUANT], text)
    lists = one.get("ignore"), two.get("exclude_modules")
    if None not in lists and (only := sorted(set(map(str, lists[0] or ())) ^ set(map(str, lists[1] or ())))):
        text = f"the lists of excluded modules differ: {', '.join(only[:3])}"
        yield finding("exclude-list", WARNING, [CONFIG, HF_QUANT], text)


def _contradiction(found: Recognized, group: TensorGroup) -> str:
    """Return the declaration that a group contradicts; "" if none."""
    config, convention = found.config, group.convention
    if convention.configuration.own or not config.files:
        if config.experts and ".experts." in group.name and not convention.declares(config.experts):
            return f"expert_dtype is {config.experts!r}"
        return ""
    declared = config.of(group.module)
    if declared is None or declared in EITHER:
        return ""
    if not convention.declares(declared):
        return f"{declared!r} is declared"
    return ""


def _group_settings(found: Recognized) -> Iterator[LintFinding]:
    """Check the settings of `config_groups`: bits, kind and symmetry of the numbers."""
    if not found.configuration.grouped:
        return
    for entry in found.config.groups:
        taken = [
            group for group in found.groups if entry.takes(group.module) and not found.config.ignores(group.module)
        ]
        last = [
            group for group in taken if [each for each in found.config.groups if each.takes(group.module)][-1] is entry
        ]
        if not last:
            continue
        convention = last[0].convention
        whole = found.config.algorithm
        if found.configuration.ambiguous and whole not in {*EITHER, "dense", entry.format}:
            text = f"format is {whole!r}, and {entry.format!r} in config_groups.{entry.name}"
            yield finding("config", ERROR, [*found.config.files][:1], text)
        for key, needed in _settings(convention).items():
            value = entry.weights.get(key)
            if value is not None and value != needed:
                place = f"config_groups.{entry.name}.weights.{key}"
                text = f"{place} is {value!r}; stored is {convention.name}: need {needed!r}"
                yield finding("config", ERROR, [*found.config.files][:1], text)
        scaled = [group.parts["input_scale"].name for group in last if "input_scale" in group.parts]
        if entry.inputs is None and scaled and found.configuration.ambiguous:
            text = f"config_groups.{entry.name} has no input_activations, but {len(scaled)} input scales are stored"
            yield finding("config", WARNING, [next(iter(found.config.files)), *scaled], text)
        strategy = entry.weights.get("strategy")
        part = PARTS.get(str(strategy))
        stored = {_part(group) for group in last} - {"", part}
        if part and stored:
            text = f"config_groups.{entry.name}.weights.strategy is {strategy!r}; stored is a scale for each"
            yield finding("config", ERROR, [*found.config.files][:1], f"{text} {' or '.join(sorted(stored))}")
        if strategy is not None and convention.scale and strategy not in BLOCKWISE:
            text = f"config_groups.{entry.name}.weights.strategy is {strategy!r}; stored is {convention.name}"
            yield finding("config", ERROR, [*found.config.files][:1], f"{text}: need one of groups")
    if len(found.config.groups) < 2 or not found.configuration.ambiguous:
        return
    twice = [
        group.name
        for group in found.groups
        if len({each.format for each in found.config.groups if each.takes(group.module)}) > 1
    ]
    if twice:
        text = (
            "targets of groups with different formats match these modules; consumers that take the first mistype them"
        )
        yield finding("config", WARNING, [*found.config.files, *twice], text)


def _incomplete(found: Recognized) -> Iterator[LintFinding]:
    """Yield declarations that lack what a loader needs to know."""
    config, files = found.config, found.config.files
    if not found.groups or not files or found.configuration.own:
        return
    if found.configuration.ambiguous and not config.groups:
        yield finding("config", ERROR, [*files][:1], "config_groups has no entry, so that no module is quantized")
    if HF_QUANT in files and not files[HF_QUANT].get("quant_algo"):
        yield finding("config", ERROR, [HF_QUANT], "no quant_algo is declared, but modules are quantized")
    static = files.get(CONFIG, {}).get("activation_scheme") == "static"
    if static and not any("input_scale" in group.parts for group in found.groups):
        yield finding("config", ERROR, [CONFIG], "activation_scheme is 'static', but no input scale is stored")


def _part(group: TensorGroup) -> str:
    """Return "row" or "square" if a weight has several float scales, each for that part of it; else ""."""
    scales = group.parts.get("scales")
    if group.convention.scale or scales is None or not group.shape or scales.size <= group.matrices:
        return ""
    return part_of(group.convention.block, scales.size, group.shape)


def _untargeted(found: Recognized) -> Iterator[LintFinding]:
    """Yield the quantized modules that no group's targets match, where all targets are names of modules."""
    targets = {target for entry in found.config.groups for target in entry.targets}
    if not targets or found.config.layers is not None or any(map(_names_a_class, targets)):
        return
    left = [group.module for group in found.groups if group.complete and not found.config.ignores(group.module)]
    left = [module for module in left if not any(entry.takes(module) for entry in found.config.groups)]
    if left:
        text = f"stored quantized, but no target of config_groups matches: {listed(sorted(targets))}"
        yield finding("config", ERROR, [*[*found.config.files][:1], *left], text)


def _names_a_class(target: str) -> bool:
    """Return True for a target whose modules the file's names do not show."""
    return target[:1].isupper() and target.isidentifier() and target not in LINEAR_CLASSES


def _settings(convention: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_bits": convention.bits, "type": "float"}
    if convention.bits == 4:
        settings |= {"symmetric": True, "dynamic": False}
    return settings


def _element(found: Recognized) -> Iterator[LintFinding]:
    """Compare `fmt`, the number format of FP8 elements, with what is stored."""
    named = str(found.config.files.get(CONFIG, {}).get("fmt", "")).lower().replace("float8_", "")
    wrong = [group for group in found.groups if group.convention.bits == 8 and group.convention.element != named]
    if named in FORMATS and wrong:
        yield finding("config", ERROR, [CONFIG], f"fmt is {named!r}; stored is {wrong[0].convention.name}")


def _unquantized_layers(found: Recognized) -> Iterator[LintFinding]:
    """Compare `quantized_layers` with what is stored."""
    layers, record = found.config.layers, found.config.files.get(CONFIG, {})
    refused = [group.name for group in found.groups if record.get(group.module) is False]
    if refused:
        yield finding("config", ERROR, [CONFIG, *refused], "quantized, and the configuration says that it is not")
    if layers is None:
        return
    groups = {group.module for group in found.groups}
    plain = {name.removesuffix(".weight") for name in found.plain if name.endswith(".weight")}
    high = [name for name in layers if name in plain and name not in groups]
    if high:
        yield finding("config", ERROR, high, "declared in quantized_layers, stored in high precision")
    undeclared = [group.name for group in found.groups if group.module not in layers and "codes" in group.parts]
    if undeclared:
        yield finding("config", ERROR, undeclared, "quantized, but not listed in quantized_layers")
