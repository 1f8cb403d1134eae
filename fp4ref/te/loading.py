"""Loading a quantized checkpoint into a model of emulated modules: the weights keep the bytes of the file."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import Recognized, TensorGroup, recognize
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.te.errors import NotSupportedError, SettingError, TensorShapeError
from fp4ref.te.module.base import TransformerEngineBaseModule
from fp4ref.te.stored_weights import described, parts_of, stacked

Tensor = torch.Tensor
OPERATION = "load_quantized"
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
FEW = 5  # names in a message
NamesOf = Callable[[str], str | Sequence[str]]


@dataclass(frozen=True)
class LoadedCheckpoint:
    """The parameters that a checkpoint gave to a model, by the model's names.

    family: of the checkpoint's conventions. packed: weights that hold the file's bytes. copied: what the file stores in
    high precision. rows_only: those of `packed` without a column direction, which gradients of inputs are made with.
    """

    family: str
    packed: list[str] = field(default_factory=list)
    copied: list[str] = field(default_factory=list)
    rows_only: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Target:
    """A parameter or buffer of the model. sources: its names in the checkpoint. weight: True if it may be packed."""

    name: str
    module: torch.nn.Module
    attribute: str
    sources: tuple[str, ...]
    weight: bool

    @property
    def value(self) -> Tensor:
        value: Tensor = getattr(self.module, self.attribute)
        return value

    def require_shape(self, shape: Sequence[int]) -> None:
        """Raise unless a shape is that of the model's tensor. Rules: TEM-39."""
        if tuple(shape) != tuple(self.value.shape):
            got = f"{self.name} of {list(shape)} in the checkpoint"
            raise TensorShapeError(OPERATION, got, f"{list(self.value.shape)} of the model", "TEM-39")


def load_quantized(
    model: torch.nn.Module,
    source: str | os.PathLike[str],
    *,
    names: NamesOf | None = None,
    convention: str | None = None,
    strict: bool = True,
) -> LoadedCheckpoint:
    """Load a quantized checkpoint into a model, in place.

    Weights of emulated modules become packed parameters with the codes and scales of the file: NVFP4 in 1x16 blocks,
    MXFP8, FP8 with one scale, and FP8 in squares of 128x128. Everything else is copied. A packed weight without a
    column direction has `requires_grad` off.

    source: a directory or a file in a convention that `fp4ref lint` recognizes, or in that of `convention`. names: from
    a dotted name of the model to that of the checkpoint, or to several whose rows follow each other, such as those of
    query, key and value. strict: refuse tensors that only the model or only the checkpoint has. If anything is refused,
    the model stays as it was.

    Errors: FileError for files that cannot be read, SettingError for names, TensorShapeError for shapes that do not
    fit, NotSupportedError for weights that no emulated tensor can hold.

    Rules: TEM-38, TEM-39, TEM-50.
    """
    checkpoint = open_checkpoint(source)
    checkpoint.require_readable()
    found = recognize(checkpoint, convention)
    if not found.groups:
        raise SettingError(OPERATION, f"{source} without a quantized weight", "an export that `fp4ref lint` recognizes")
    groups = {key: group for group in found.groups for key in _keys(group)}
    targets = _targets(model, names or str)
    if strict:
        _require_all(found, targets, groups)
    changes: list[tuple[_Target, Tensor, bool]] = []
    for target in targets:
        if set(target.sources) <= groups.keys():
            changes.append((target, _packed(target, [groups[name] for name in target.sources]), True))
        elif set(target.sources) <= found.plain.keys():
            changes.append((target, _plain(target, [found.plain[name] for name in target.sources]), False))
    checkpoint.require_unchanged()
    result = LoadedCheckpoint(found.family)
    for target, value, packed in changes:
        _assign(target, value, packed)
        (result.packed if packed else result.copied).append(target.name)
        if packed and not _has_columns(value):
            result.rows_only.append(target.name)
    return result


def _targets(model: torch.nn.Module, names: NamesOf) -> list[_Target]:
    """Return the parameters and persistent buffers of a model; a shared one once, under its first name."""
    seen, targets = set[int](), list[_Target]()
    for name in model.state_dict(keep_vars=True):
        path, _, attribute = name.rpartition(".")
        module = model.get_submodule(path)
        value = getattr(module, attribute, None)
        if not isinstance(value, Tensor) or id(value) in seen:
            continue
        seen.add(id(value))
        operand = isinstance(module, TransformerEngineBaseModule) and attribute in module.weight_operands()
        given = names(name)
        targets.append(_Target(name, module, attribute, (given,) if isinstance(given, str) else tuple(given), operand))
    return targets


def _keys(group: TensorGroup) -> tuple[str, str]:
    """Return the names of the weight that a group stands for."""
    return group.module, f"{group.module}.weight"


def _require_all(found: Recognized, targets: list[_Target], groups: dict[str, TensorGroup]) -> None:
    """Refuse a model and a checkpoint of which one has tensors that the other lacks. Rules: TEM-39."""
    asked = {name for target in targets for name in target.sources}
    missing = sorted(asked - groups.keys() - found.plain.keys())
    spare = [group.module for group in found.groups if not asked & {*_keys(group)}]
    spare += [name for name in (*found.plain, *found.strays) if name not in asked]
    for what, lacking in (("the checkpoint lacks", missing), ("the model lacks", sorted(spare))):
        if lacking:
            more = f" and {len(lacking) - FEW} more" if len(lacking) > FEW else ""
            got = f"{what} {', '.join(lacking[:FEW])}{more}"
            raise SettingError(OPERATION, got, "the same names, names=..., or strict=False", "TEM-39")


def _packed(target: _Target, groups: list[TensorGroup]) -> Tensor:
    """Return the tensor that holds the bytes of the groups, one below the other. Rules: TEM-38."""
    if not target.weight:
        got = f"{target.name}, quantized in the checkpoint, of a {type(target.module).__name__}"
        raise NotSupportedError(OPERATION, got, "a weight of an emulated module: te.convert makes them", "TEM-38")
    weights = [read_weight(group) for group in groups]
    weight = weights[0] if len(weights) == 1 else stacked(weights)
    if weight is None:
        got = f"{target.name} of {'; '.join(map(described, weights))}"
        raise NotSupportedError(OPERATION, got, "weights of one kind with one global scale, in whole squares", "TEM-38")
    target.require_shape(weight.shape)
    parts = parts_of(weight)
    if parts is None:
        needed = "NVFP4, MXFP8, or FP8 with one scale or in squares of 128x128; `fp4ref convert --spec` makes them"
        raise NotSupportedError(OPERATION, f"{target.name} of {described(weight)}", needed, "TEM-38")
    return parts.tensor(weight.shape, target.value.dtype, _device(target.value))


def _plain(target: _Target, stored: list[StoredTensor]) -> Tensor:
    """Return the values of tensors that are stored in high precision, one below the other."""
    value = torch.cat([_floats(each) for each in stored]) if len(stored) > 1 else _floats(stored[0])
    target.require_shape(value.shape)
    return value


def _floats(stored: StoredTensor) -> Tensor:
    if stored.dtype not in FLOATS:
        got = f"{stored.name} of type {stored.dtype}"
        raise NotSupportedError(OPERATION, got, f"a type of {', '.join(FLOATS)}", "TEM-39")
    if not stored.size:
        return torch.empty(stored.shape, dtype=FLOATS[stored.dtype])
    return torch.frombuffer(bytearray(stored.bytes()), dtype=FLOATS[stored.dtype]).view(stored.shape)


def _device(value: Tensor) -> torch.device:
    """Return where a tensor is; the CPU for one without memory."""
    return torch.device("cpu") if value.device.type == "meta" else value.device


def _has_columns(packed: Tensor) -> bool:
    return "column" in packed.directions()  # type: ignore[attr-defined]


def _assign(target: _Target, value: Tensor, packed: bool) -> None:
    """Put a value into the model: a packed one as a new parameter with the old one's attributes, others by copying."""
    old = target.value
    if packed:
        new: Tensor = torch.nn.Parameter(value, requires_grad=old.requires_grad and _has_columns(value))
        target.module.primary_weights_in_fp8 = True  # type: ignore[assignment]
    elif old.device.type != "meta":
        with torch.no_grad():
            old.copy_(value)
        return
    else:
        new = value.to(old.dtype)
        new = torch.nn.Parameter(new, old.requires_grad) if isinstance(old, torch.nn.Parameter) else new
    vars(new).update({name: kept for name, kept in vars(old).items() if not name.startswith("_")})
    setattr(target.module, target.attribute, new)
