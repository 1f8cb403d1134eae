"""Groups: the tensors that one quantized weight is stored in, recognized by names, types, shapes and declarations."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from fp4ref.checkpoints import conventions as _conventions  # registers them
from fp4ref.checkpoints.checkpoint import Checkpoint
from fp4ref.checkpoints.configuration import UNDECLARED, Configuration
from fp4ref.checkpoints.convention import CODED, CONVENTIONS, FLOATS, Convention, families
from fp4ref.checkpoints.declared import QuantizationConfig, declared
from fp4ref.checkpoints.family import family_of
from fp4ref.checkpoints.fitting import declared_format, fit
from fp4ref.checkpoints.shards import StoredTensor
from fp4ref.files.tensors import is_packed
from fp4ref.layout import Layout

del _conventions
BIASES = {".bias", "_bias"}


@dataclass
class TensorGroup:
    """A quantized weight.

    parts: its tensors by role. facts: attributes that the file's metadata declares for it. bias: the module's, if any.
    """

    name: str
    convention: Convention
    parts: dict[str, StoredTensor]
    facts: dict[str, Any] = field(default_factory=dict)
    bias: StoredTensor | None = None

    @property
    def module(self) -> str:
        """The module's name, as configurations name it."""
        return self.convention.module(self.name)

    @property
    def layout(self) -> Layout:
        """The layout of the scales."""
        return self.convention.layout_of(self.convention, self.facts)

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape of the stored elements, padding included: [..., rows, columns]; () if it is not known."""
        codes = self.parts.get("codes")
        if codes is None or len(codes.shape) < 2 + self.convention.split:
            return ()
        items = 1 if is_packed(codes.dtype) else self.convention.codes_per_item
        if self.convention.split:
            *front, blocks, width = codes.shape
            return (*front, blocks * width * items)
        return (*codes.shape[:-1], codes.shape[-1] * items)

    @property
    def unpadded(self) -> tuple[int, ...]:
        """The shape without the rows that a shorter bias shows to be padding. Nothing shows padded columns.

        Rules: CNV-70.
        """
        count = self.bias.size if self.bias is not None else self.rows
        padded = len(self.shape) == 2 and 0 < self.rows - count < self.convention.multiples[0]
        return (count, self.columns) if padded and count else self.shape

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
    def complete(self) -> bool:
        """True if all required tensors are stored. The convention of others is a guess."""
        return all(name in self.parts for name, role in self.convention.roles.items() if role.needed)

    @property
    def names(self) -> list[str]:
        """Names of the stored tensors."""
        return [tensor.name for tensor in self.parts.values()]


@dataclass
class Recognized:
    """A checkpoint in the terms of its family of conventions.

    plain: tensors of high-precision modules and all others, by name. strays: tensors with a role and no group.
    members: the conventions of the family.
    """

    checkpoint: Checkpoint
    config: QuantizationConfig
    family: str
    evidence: list[str]
    groups: list[TensorGroup] = field(default_factory=list)
    plain: dict[str, StoredTensor] = field(default_factory=dict)
    strays: dict[str, dict[str, StoredTensor]] = field(default_factory=dict)
    members: list[Convention] = field(default_factory=list)

    @property
    def configuration(self) -> Configuration:
        """The files that the family declares its quantization in."""
        return self.members[0].configuration if self.members else UNDECLARED

    def attributes(self) -> dict[str, dict[str, Any]]:
        """Return the attributes of modules from the metadata of every shard."""
        pairs = [self.configuration.attributes(shard.metadata).items() for shard in self.checkpoint.shards]
        return {module: dict(facts) for each in pairs for module, facts in each}

    @property
    def conventions(self) -> list[str]:
        """Names of the conventions that occur, most frequent first."""
        return [name for name, _ in Counter(group.convention.name for group in self.groups).most_common()]


def recognize(checkpoint: Checkpoint, chosen: str | None = None) -> Recognized:
    """Sort a checkpoint's tensors into groups. Nothing is decided by values.

    chosen: a convention or a family that replaces the recognition.

    Rules: CKP-28, CKP-29, CKP-36.
    """
    config = declared(checkpoint)
    family, evidence = family_of(checkpoint, config, chosen)
    found = Recognized(checkpoint, config, family, evidence, members=families().get(family, []))
    exact = [CONVENTIONS[chosen]] if chosen is not None and chosen in CONVENTIONS else None
    candidates = exact or found.members
    facts = found.attributes()
    for stem, parts in _modules(checkpoint, candidates, found).items():
        module = candidates[0].module(stem)
        _place(found, stem, parts, candidates, facts.get(module, {}))
    return found


def _modules(
    checkpoint: Checkpoint, candidates: list[Convention], found: Recognized
) -> dict[str, dict[str, StoredTensor]]:
    """Return tensors by module and suffix; tensors without a known suffix are plain."""
    suffixes = {role.suffix for each in candidates for role in each.roles.values()}
    suffixes |= {suffix for each in candidates for suffix in each.others} - BIASES
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
    scales = {each.scales for each in candidates if each.scales is not None}
    coarse = any(parts[role.suffix].dtype in FLOATS for role in scales if role.suffix in parts)
    affine = f"{stem}.biases" in found.checkpoint.tensors and coarse
    affine |= f"{stem}.weight_packed_zero" in found.checkpoint.tensors
    if affine or (not codes and _are_vectors(parts, candidates)):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())  # integers, or no quantized weight
        return
    said = declared_format(facts)
    integers = any(tensor.dtype not in CODED | set(FLOATS) for tensor in codes)
    algorithm = found.config.of(candidates[0].module(stem))
    integers = integers and not any(each.declares(algorithm or "") for each in candidates)
    if integers or (said and not any(each.declares(said) for each in candidates)):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())  # a format that is not judged here
        return
    strategy = found.config.strategy_of(candidates[0].module(stem))
    size = found.config.group_size_of(candidates[0].module(stem))
    best = max(candidates, key=lambda each: fit(each, parts, algorithm, strategy, size, facts))
    roles = {name: role for name, role in best.roles.items() if role.suffix in parts}
    needed = [name for name, role in best.roles.items() if role.needed and name != "codes"]
    complete = all(name in roles for name in needed)
    plain = not best.declares(algorithm or "") and len(needed) < 2  # one stray scale makes no quantized weight
    if (not codes and not complete) or (codes and not coded and (not complete or plain)):
        found.strays[stem] = parts
        return
    foreign = algorithm and "-precision" not in algorithm.replace("_", "-")
    foreign = foreign and not any(each.declares(algorithm or "") for each in candidates)
    if foreign and not all(parts[best.roles[name].suffix].dtype in best.roles[name].dtypes for name in roles):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())
        return
    if codes and codes[0].dtype == "I8" and best.bits == 8 and not best.declares(algorithm or ""):
        found.plain.update((tensor.name, tensor) for tensor in parts.values())
        return
    bias = found.checkpoint.tensors.get(f"{stem}.bias")
    stored = {name: parts[role.suffix] for name, role in roles.items()}
    found.groups.append(TensorGroup(stem, best, stored, facts, bias))


def _are_vectors(parts: dict[str, StoredTensor], candidates: list[Convention]) -> bool:
    """Return True for vectors that only have the name of a scale, such as a norm's: such a scale is one number."""
    single = {role.suffix for each in candidates for role in (each.global_scale, each.input_scale) if role is not None}
    single -= {each.scales.suffix for each in candidates if each.scales is not None}
    return single >= {*parts} and all(len(each.shape) == 1 and each.size > 1 for each in parts.values())
