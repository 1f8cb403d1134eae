"""Declarations: what the files of configuration say of a checkpoint's tensors, as one record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.configuration import ABOVE, CONFIG, HF_QUANT, SECTION, Configuration, ListMatch, is_match
from fp4ref.checkpoints.convention import families

LINEAR_CLASSES = {"Linear", "MoEGMM", "FusedMoE"}  # targets that take every linear module
INNER = ("text_config", "llm_config", "language_config")  # keys under which multimodal models keep a configuration


@dataclass
class QuantizationGroup:
    """An entry of `config_groups`: modules by target, and the settings of their weights and inputs."""

    name: str
    targets: tuple[str, ...]
    format: str
    weights: dict[str, Any]
    inputs: dict[str, Any] | None

    def takes(self, module: str) -> bool:
        """Return True if a target matches a linear module. Rules: CKP-12."""
        return any(_target_matches(target, module) for target in self.targets)


@dataclass
class QuantizationConfig:
    """The quantization that a checkpoint declares; every field is empty where nothing is declared.

    algorithm: of all modules that `ignore` does not match. layers: algorithm and block size by module. files: the
    record of each file that declares something. overrides: declarations of single modules. repeated: the record that
    repeats the one of `config.json` under another key. named: the rule by which the family's writers match an entry.
    """

    family: str = ""
    method: str = ""
    algorithm: str = ""
    group_size: int | None = None
    kv: str = ""
    ignore: tuple[str, ...] = ()
    layers: dict[str, dict[str, Any]] | None = None
    groups: list[QuantizationGroup] = field(default_factory=list)
    block: tuple[int, int] | None = None
    scale_format: str = ""
    experts: str = ""
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    geometry: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    repeated: dict[str, Any] = field(default_factory=dict)
    named: ListMatch = ABOVE

    def ignores(self, module: str) -> bool:
        """Return True if the producer's own rule leaves a module in high precision. Rules: CKP-13."""
        return any(self.named.takes(entry, module) for entry in self.ignore)

    def of(self, module: str) -> str | None:
        """Return the declared algorithm of a module; None if it is to stay in high precision, "" if unknown."""
        if self.layers is not None:
            entry = self.layers.get(module)
            return str(entry.get("quant_algo", entry.get("mode", ""))).lower() if entry is not None else None
        if self.ignores(module) or self.overrides.get(module) is False:
            return None
        if isinstance(own := self.overrides.get(module), dict) and own.get("mode"):
            return str(own["mode"]).lower()
        if self.experts and ".experts." in module:
            return self.experts
        if self.groups:
            taken = [group for group in self.groups if group.takes(module)]
            return (taken[-1].format or self.algorithm) if taken else None
        return self.algorithm

    def strategy_of(self, module: str) -> str:
        """Return the strategy of the last group that takes a module, such as "channel"; "" if there is none."""
        taken = [group.weights.get("strategy") for group in self.groups if group.takes(module)]
        return str(taken[-1] or "") if taken else ""

    def group_size_of(self, module: str) -> int | None:
        """Return the declared number of elements that share a scale; None if nothing is declared."""
        entry = (self.layers or {}).get(module, {})
        own = self.overrides.get(module)
        size = (own if isinstance(own, dict) else entry).get("group_size", self.group_size)
        for group in self.groups:
            if group.takes(module) and group.weights.get("group_size") is not None:
                size = group.weights["group_size"]
        return size if isinstance(size, int) and size > 0 else None


def _target_matches(target: str, module: str) -> bool:
    if target.startswith("re:"):
        return is_match(target[3:], module)
    return target in LINEAR_CLASSES or target == module or module.endswith(f".{target}")


def declared(checkpoint: Checkpoint) -> QuantizationConfig:
    """Read the quantization that config.json and hf_quant_config.json declare. Rules: CKP-12."""
    known = _families()
    config = checkpoint.config or {}
    inner = [config, *(config[key] for key in INNER if isinstance(config.get(key), dict))]
    found = QuantizationConfig(geometry={key: value for each in reversed(inner) for key, value in each.items()})
    quantization = next((q for each in inner if isinstance(q := each.get(SECTION), dict)), None)
    if quantization is not None:
        found.files[CONFIG] = quantization
        _read_method(found, quantization, known)
    for family, members in families().items():
        _read_own(found, config, family, members[0].configuration)
    if checkpoint.hf_quant is not None:
        _read_hf_quant(found, checkpoint.hf_quant, known)
    if found.family:
        found.named = families()[found.family][0].configuration.named
    return found


def _families() -> dict[str, str]:
    """Return the family by `quant_method`, and by the name of the file that a family alone writes."""
    found: dict[str, str] = {}
    for family, members in families().items():
        for each in members:
            for key in filter(None, (*each.configuration.methods, each.configuration.file)):
                found.setdefault(key, family)
    return found


def _read_method(found: QuantizationConfig, record: dict[str, Any], known: dict[str, str]) -> None:
    found.method = str(record.get("quant_method", "")).lower()
    producer = record.get("producer")
    named = str(producer.get("name", "")) if isinstance(producer, dict) else ""
    found.family = known.get(found.method) or known.get(named, "")
    found.algorithm = str(record.get("quant_algo") or record.get("format") or "").lower()
    found.algorithm = found.algorithm or (found.method if _is_algorithm(found) else "")
    found.ignore = _names(record, "ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
    size = record.get("group_size")
    found.group_size = size if isinstance(size, int) else None
    block = record.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(isinstance(size, int) for size in block):
        found.block = block[0], block[1]
    found.scale_format = str(record.get("scale_fmt") or "").lower()
    found.kv = _kv(record.get("kv_cache_scheme", record.get("kv_cache_quant_algo")))
    groups = record.get("config_groups")
    for name, group in groups.items() if isinstance(groups, dict) else ():
        if isinstance(group, dict):
            _read_group(found, name, group)
    if isinstance(record.get("quantized_layers"), dict):
        found.layers = {name: entry for name, entry in record["quantized_layers"].items() if isinstance(entry, dict)}


def _is_algorithm(found: QuantizationConfig) -> bool:
    """Return True if the method of a family is the algorithm of one of its conventions."""
    return any(each.declares(found.method) for each in families().get(found.family, ()))


def _read_group(found: QuantizationConfig, name: str, group: dict[str, Any]) -> None:
    weights, inputs = group.get("weights"), group.get("input_activations")
    square = weights.get("block_structure") if isinstance(weights, dict) else None
    if isinstance(square, list) and len(square) == 2 and all(isinstance(size, int) for size in square):
        found.block = square[0], square[1]
    targets = group.get("targets")
    found.groups.append(
        QuantizationGroup(
            name,
            tuple(map(str, targets)) if isinstance(targets, list) else (),
            str(group.get("format") or ("" if found.algorithm == "mixed-precision" else found.algorithm)).lower(),
            weights if isinstance(weights, dict) else {},
            inputs if isinstance(inputs, dict) else None,
        )
    )


def _read_own(found: QuantizationConfig, config: dict[str, Any], family: str, form: Configuration) -> None:
    """Read the keys of `config.json` that only one family has."""
    experts = found.geometry.get(form.experts) if form.experts else None
    if isinstance(experts, str):
        found.experts, found.family = experts.lower(), found.family or family
    record = config.get(form.section) if form.section != SECTION else None
    if isinstance(record, dict) and "group_size" in record and not found.method:
        found.repeated = found.files.get(CONFIG, record)
        found.files[CONFIG] = record
        found.family = found.method = family
        _read_modes(found, record)


def _read_modes(found: QuantizationConfig, record: dict[str, Any]) -> None:
    """Read a format that applies to all modules but those that have an entry of their own."""
    found.algorithm = str(record.get("mode", "affine")).lower()
    found.group_size = record["group_size"] if isinstance(record["group_size"], int) else None
    found.overrides = {name: entry for name, entry in record.items() if isinstance(entry, dict) or entry is False}


def _read_hf_quant(found: QuantizationConfig, record: dict[str, Any], known: dict[str, str]) -> None:
    """Read modelopt's own file, which consumers prefer over config.json."""
    inner = record.get("quantization")
    if not isinstance(inner, dict):
        return
    found.files[HF_QUANT] = inner
    found.family = found.family or known.get(HF_QUANT, "")
    found.algorithm = str(inner.get("quant_algo") or found.algorithm or "").lower()
    if isinstance(inner.get("group_size"), int):
        found.group_size = inner["group_size"]
    found.kv = _kv(inner.get("kv_cache_quant_algo")) or found.kv
    if "exclude_modules" in inner:
        found.ignore = _names(inner, "exclude_modules")
    if isinstance(inner.get("quantized_layers"), dict):
        found.layers = {name: entry for name, entry in inner["quantized_layers"].items() if isinstance(entry, dict)}


def _names(record: dict[str, Any], *keys: str) -> tuple[str, ...]:
    values: list[Any] = next((record[key] for key in keys if isinstance(record.get(key), list)), [])
    return tuple(value for value in values if isinstance(value, str))


def _kv(value: Any) -> str:
    """Return the declared algorithm of the KV cache: "" for none."""
    if isinstance(value, dict):
        return f"fp{value.get('num_bits', 8)}" if value.get("dynamic") is not True else ""
    return str(value).lower() if value and value != "none" else ""
