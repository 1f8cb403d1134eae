"""The record of a planned conversion."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from fp4ref.checkpoints.shards import Shard
from fp4ref.checkpoints.transfer.gguf_units import GgufUnit
from fp4ref.checkpoints.transfer.placing import PlacedWeight
from fp4ref.checkpoints.transfer.quantizing import QuantizedSet
from fp4ref.checkpoints.transfer.recoding import Recoded
from fp4ref.checkpoints.transfer.request import ConversionRequest
from fp4ref.checkpoints.transfer.units import Moved, Unit


class PlannedShard(NamedTuple):
    """A shard before it is written."""

    name: str
    units: list[Unit]
    metadata: dict[str, str | bytes]

    @property
    def length(self) -> int:
        """Bytes of all tensors."""
        return sum(each.length for unit in self.units for each in unit.tensors())

    @property
    def placed(self) -> list[PlacedWeight]:
        """The quantized weights."""
        return [each for unit in self.units for each in placed_in(unit)]


def placed_in(unit: Unit) -> list[PlacedWeight]:
    """Return the quantized weights of a unit."""
    if isinstance(unit, GgufUnit):
        return [placed for each in unit.units for placed in placed_in(each)]
    return unit.placed if isinstance(unit, QuantizedSet) else [unit.placed] if isinstance(unit, Moved | Recoded) else []


@dataclass
class ConversionPlan:
    """A conversion, planned. No tensor but scales of few numbers was read for it.

    sources: the files that are read. files: texts beside the shards, by name. copies: files of the source that are
    copied. losses: what is lost, in numbers. remarks: facts for the user. scales: how many global and input scales have
    which cost; scale_error: the largest relative error among them.
    """

    request: ConversionRequest
    sources: list[Shard] = field(default_factory=list)
    shards: list[PlannedShard] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    copies: list[Path] = field(default_factory=list)
    losses: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    scales: Counter[str] = field(default_factory=Counter)
    scale_error: float = 0.0

    @property
    def length(self) -> int:
        """Bytes of all tensors."""
        return sum(shard.length for shard in self.shards)

    @property
    def conventions(self) -> Counter[str]:
        """The number of weights by convention."""
        return Counter(each.convention.name for shard in self.shards for each in shard.placed)
