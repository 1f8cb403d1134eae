"""The plan of a conversion: which units make which shard, and the files beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from fp4ref.checkpoints.checkpoint import INDEX, READERS, Checkpoint, open_checkpoint
from fp4ref.checkpoints.configuration import CONFIG, HF_QUANT
from fp4ref.checkpoints.convention import CONVENTIONS, families
from fp4ref.checkpoints.declarations import CheckpointDeclaration
from fp4ref.checkpoints.declared import QuantizationConfig, declared
from fp4ref.checkpoints.experts import STACK
from fp4ref.checkpoints.findings import listed
from fp4ref.checkpoints.gguf_views import as_on_the_hub
from fp4ref.checkpoints.groups import Recognized, recognize
from fp4ref.checkpoints.origins import ORIGIN
from fp4ref.checkpoints.transfer.choice import require_family
from fp4ref.checkpoints.transfer.gathering import (
    configuration_of,
    copies,
    is_matrix,
    moved,
    quantized,
    stored_cache,
    weights_of,
    with_experts_of,
)
from fp4ref.checkpoints.transfer.gguf_files import (
    carried,
    gguf_metadata,
    named_for_gguf,
    split_metadata,
    vocabulary_metadata,
)
from fp4ref.checkpoints.transfer.placing import PlacedWeight
from fp4ref.checkpoints.transfer.plan import ConversionPlan, PlannedShard, placed_in
from fp4ref.checkpoints.transfer.request import ConversionRequest
from fp4ref.checkpoints.transfer.units import Unit
from fp4ref.errors import DomainError

MANIFEST = "fp4ref_manifest.json"
QUANTIZATION_KEYS = ("quantization_config", "quantization", "expert_dtype")
HEAD = "lm_head"
OWN = "fp4ref"  # the family whose shapes may have any number of columns


def make_plan(request: ConversionRequest) -> ConversionPlan:
    """Return the plan of a conversion; the same for the same request in any process.

    Errors: FileError or DomainError if the source cannot be read, or cannot be expressed in the target.

    Rules: CNV-1, CNV-4, CNV-6, CNV-7, CNV-9.
    """
    checkpoint = open_checkpoint(request.source)
    checkpoint.require_readable()
    if request.to and not _in_structs(request.to) and (view := as_on_the_hub(checkpoint)):
        checkpoint = view.checkpoint
    if request.quantize:
        checkpoint = with_experts_of(request, checkpoint)
    found = recognize(checkpoint, request.convention or None)
    if "config" in request.repairs and not found.config.kv:
        found.config.kv = stored_cache(found)
    to = request.to or found.family
    if not to:
        raise DomainError("convert", "no quantized weight and no target", "--to CONVENTION", "CNV-1")
    require_family(to)
    plan = ConversionPlan(request, checkpoint.shards)
    weights = weights_of(request, found)
    units = [*moved(plan, weights, to), *quantized(plan, found, weights, to)]
    if not units:
        raise DomainError("convert", "no quantized weight", "some, or --spec to quantize", "CNV-1")
    taken = {each.weight.module for unit in units for each in placed_in(unit)}
    units += copies(plan, found, taken, to)
    if any(each.convention.struct for unit in units for each in placed_in(unit)):
        units = named_for_gguf(plan, found, units)
    _cut(plan, _ordered(units, checkpoint))
    _configure(plan, found, to)
    if plan.losses and not request.lossy:
        more = f" ({len(plan.losses)} losses in all)" if len(plan.losses) > 1 else ""
        raise DomainError("convert", f"{plan.losses[0]}{more}", "--lossy, to leave them out", "CNV-4")
    return plan


def _in_structs(to: str) -> bool:
    """Return True if a family or a convention is stored in GGUF."""
    return any(each.struct for each in ([CONVENTIONS[to]] if to in CONVENTIONS else families().get(to, ())))


def _ordered(units: Iterable[Unit], checkpoint: Checkpoint) -> list[Unit]:
    """Return units in the order of the source's shards, and of names in each. Rules: CNV-7, CNV-28."""
    order = {shard.name: number for number, shard in enumerate(checkpoint.shards)}
    return sorted(units, key=lambda unit: (order[unit.home], unit.tensors()[0].name))


def _cut(plan: ConversionPlan, units: list[Unit]) -> None:
    """Divide units into shards: those of one shard of the source, cut where they are too many. Rules: CNV-28."""
    parts: list[list[Unit]] = []
    size, home = 0, ""
    for unit in units:
        count = sum(each.length for each in unit.tensors())
        if not parts or unit.home != home or size + count > plan.request.shard_bytes:
            parts.append([])
            size, home = 0, unit.home
        parts[-1].append(unit)
        size += count
    in_gguf = any(each.convention.struct for unit in units for each in placed_in(unit))
    suffix = ".gguf" if in_gguf else ".safetensors"
    for number, part in enumerate(parts):
        name = f"model-{number + 1:05}-of-{len(parts):05}{suffix}" if len(parts) > 1 else f"model{suffix}"
        plan.shards.append(PlannedShard(name, part, {}))


def _configure(plan: ConversionPlan, found: Recognized, to: str) -> None:
    """Fill in the metadata of each shard, the configuration, the index, and the files to copy. Rules: CNV-14."""
    request = plan.request
    in_gguf = plan.shards[0].name.endswith(".gguf")
    common = gguf_metadata(plan, found) if in_gguf else {"format": "pt"}
    everything = [each for shard in plan.shards for each in shard.placed]
    written = _written(_declaration(found, everything, ()), to)
    for number, shard in enumerate(plan.shards):
        own = _declaration(found, shard.placed, tuple(sorted(parameter_names(shard))))
        metadata = written.metadata if configuration_of(to).section else _written(own, to).metadata
        shard.metadata.update({**common, **metadata, **(split_metadata(plan, number) if in_gguf else {})})
        if in_gguf and number == 0:
            shard.metadata.update(vocabulary_metadata(plan, found))
        if kept := {each.weight.module: record for each in shard.placed if (record := each.kept())}:
            shard.metadata[ORIGIN] = json.dumps(kept, sort_keys=True)
    files = {name: dict(keys) for name, keys in written.files.items()}
    config = {key: value for key, value in (found.checkpoint.config or {}).items() if key not in QUANTIZATION_KEYS}
    if config or CONFIG in files:
        files[CONFIG] = {**config, **files.get(CONFIG, {})}
    read = _require_true(files, everything)
    plan.remarks += [*_read_otherwise(read, everything, to), *_some_inputs(everything), *_no_loader(everything, to)]
    plan.files = {name: json.dumps(value, indent=2) + "\n" for name, value in files.items()}
    if len(plan.shards) > 1 and not in_gguf:
        plan.files[f"model{INDEX}"] = _index(plan)
    folder = found.checkpoint.path
    known = {CONFIG, HF_QUANT, MANIFEST}
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        is_kept = each.is_file() and each.suffix.lower() not in READERS and not each.name.endswith(INDEX)
        if is_kept and each.name not in known:
            plan.copies.append(each)
    if found.checkpoint.kind == ".gguf" and not (in_gguf and carried(plan, found)):
        plan.remarks.append(f"{len(found.checkpoint.metadata)} entries of the GGUF's metadata are not carried over")
    if uneven := uneven_sets(everything):
        text = f"{uneven} fused sets have members with different global scales, of which consumers of {to} keep one"
        plan.remarks.append(f"{text}; repair them by fp4ref convert --repair fused-global-scale")
    if request.repairs:
        plan.remarks.append(f"repaired: {', '.join(request.repairs)}")


def _require_true(files: dict[str, dict[str, Any]], placed: list[PlacedWeight]) -> QuantizationConfig:
    """Return a configuration as it is read; refuse one that declares a module otherwise than stored. Rules: CNV-35."""
    read = declared(Checkpoint(Path(), config=files.get(CONFIG), hf_quant=files.get(HF_QUANT)))
    for each in placed if read.files else ():
        module, convention = each.weight.module, each.convention
        algorithm = read.of(module)
        if algorithm is None or (algorithm and "mixed" not in algorithm and not convention.declares(algorithm)):
            got = f"{module} as {convention.name}, which the configuration declares as {algorithm or 'not quantized'}"
            raise DomainError("convert", got, "another target", "CNV-35")
    return read


def _read_otherwise(read: QuantizationConfig, placed: list[PlacedWeight], to: str) -> Iterator[str]:
    """Yield quantized modules that a consumer excludes, by entries that it reads more widely. Rules: CKP-13."""
    for name, match in configuration_of(to).readers.items() if read.files else ():
        wide: dict[str, list[str]] = {}
        for each in placed:
            module = each.weight.module
            entry = next((entry for entry in read.ignore if match.takes(entry, module)), None)
            if entry is not None and not read.ignores(module):
                wide.setdefault(entry, []).append(module)
        for entry, modules in wide.items():
            yield f"{name} reads {entry!r} as {match.meaning}, and takes {listed(modules)} for excluded"


def _no_loader(placed: list[PlacedWeight], to: str) -> Iterator[str]:
    """Yield weights whose values are right, but which the loaders of a convention do not take as they are stored."""
    cut, alone = dict[str, list[str]](), list[str]()
    for each in placed:
        wide, columns = each.convention.block[1], each.weight.columns
        if wide > 1 and columns % wide and each.weight.scale and each.convention.family != OWN:
            cut.setdefault(f"{columns} columns, no multiple of the block of {wide}", []).append(each.weight.module)
        if each.convention.turned and not STACK.fullmatch(each.weight.module):
            alone.append(each.weight.module)
    for text, modules in cut.items():
        yield f"{listed(modules)}: {text}: loaders of {to} refuse that, or read other columns"
    if alone:
        yield f"{listed(alone)}: loaders of {to} have quantized weights in experts alone"


def _some_inputs(placed: list[PlacedWeight]) -> Iterator[str]:
    """Yield that some weights have an input scale, and others of a convention that then needs all have none."""
    needing: dict[str, list[PlacedWeight]] = {}
    for each in placed:
        if each.convention.input_scale and (each.convention.static_inputs or each.convention.settings):
            needing.setdefault(each.convention.name, []).append(each)
    for name, members in needing.items():
        without = [each.weight.module for each in members if each.scale("input_scale") is None]
        if without and len(without) < len(members):
            text = f"{len(without)} of {len(members)} weights in {name} have no input scale, such as {without[0]}"
            yield f"{text}: the others have one, and a loader of quantized inputs needs it of all"


def uneven_sets(placed: Iterable[PlacedWeight]) -> int:
    """Return the number of fused sets of the target whose members have different global scales. Rules: CKP-22."""
    homes: dict[tuple[str, tuple[str, ...]], set[bytes]] = {}
    for each in placed:
        head, _, last = each.weight.module.rpartition(".")
        scale = each.scale("global_scale")
        for members in each.convention.fused if scale is not None else ():
            if last in members and scale is not None:
                homes.setdefault((head, members), set()).add(scale.values.tobytes())
    return sum(len(values) > 1 for values in homes.values())


def _index(plan: ConversionPlan) -> str:
    homes = {each.name: shard.name for shard in plan.shards for unit in shard.units for each in unit.tensors()}
    record = {"metadata": {"total_size": plan.length}, "weight_map": dict(sorted(homes.items()))}
    return json.dumps(record, indent=2) + "\n"


def parameter_names(shard: PlannedShard) -> set[str]:
    """Return the names of a shard's parameters: a quantized weight counts as one."""
    inside = {name for each in shard.placed for name in each.convention.names(each.weight.module).values()}
    plain = {each.name for unit in shard.units for each in unit.tensors()} - inside
    return plain | {f"{each.weight.module}.weight" for each in shard.placed}


def _declaration(found: Recognized, placed: list[PlacedWeight], names: tuple[str, ...]) -> CheckpointDeclaration:
    modules = {each.weight.module: each.convention for each in placed}
    plain = [name.removesuffix(".weight") for name, each in found.plain.items() if _is_linear(name, each)]
    declared = [
        entry for entry in found.config.ignore if not any(found.config.named.takes(entry, module) for module in modules)
    ]
    high = {*declared, *(module for module in plain if module not in modules), *_tied(found)}
    return CheckpointDeclaration(
        modules=modules,
        excluded=tuple(sorted(high)),
        facts={each.weight.module: facts_of(each) for each in placed},
        kv=found.config.kv,
        names=names,
        inputs=any(each.scale("input_scale") is not None for each in placed),
    )


def _tied(found: Recognized) -> set[str]:
    """Return the head of a model whose weight is the embedding's: loaders make a module of it all the same."""
    tensors = found.checkpoint.tensors
    stored = any(name.startswith(f"{HEAD}.") for name in tensors)
    return {HEAD} if not stored and any(name.endswith("embed_tokens.weight") for name in tensors) else set()


def _is_linear(name: str, tensor: Any) -> bool:
    return name.endswith(".weight") and is_matrix(tensor) and len(tensor.shape) == 2


def facts_of(placed: PlacedWeight) -> dict[str, Any]:
    """Return the attributes of a weight that a family's metadata may hold."""
    own = placed.own.get("facts", {})
    stored = [placed.convention.roles[role].suffix.lstrip("_") for role in placed.stored()]
    spec = placed.convention.specs[0] if placed.convention.specs else ""
    shape = [*placed.weight.shape]
    return {
        "spec": spec,
        "shape": shape,
        "dtype": "bfloat16",
        "scale_layout": placed.layout.name,
        "stored": stored,
        **own,
    }


def _written(declaration: CheckpointDeclaration, to: str) -> Any:
    """Return the declarations as the family of most modules writes them."""
    kinds = list(declaration.modules.values())
    configuration = max(kinds, key=kinds.count).configuration if kinds else configuration_of(to)
    return configuration.write(declaration)
