"""Neighbours that the emulated library computes by one kernel: their function, and their names in a chain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class FusedNeighbours:
    """Operations that are computed together in one pass."""

    basic_ops: tuple[Any, ...]


class ForwardLinearBiasActivation(FusedNeighbours):
    """A product and its bias. Rules: TEM-33."""


class ForwardLinearBiasAdd(FusedNeighbours):
    """A product, its bias if there is one, and an addition in place. Rules: TEM-40, TEM-54."""


class ForwardLinearScaleAdd(FusedNeighbours):
    """A product, its scale, and an addition in place. Rules: TEM-40."""


class BackwardLinearAdd(FusedNeighbours):
    """The gradient of a product's input, added to that of an extra output in place. Rules: TEM-46."""


class BackwardLinearScale(FusedNeighbours):
    """The gradients of a product and of the scale behind it. Rules: TEM-34."""


class BackwardAddRMSNorm(FusedNeighbours):
    """The gradients of an extra output and of the RMSNorm behind it. Rules: TEM-35."""


class BackwardActivationBias(FusedNeighbours):
    """The gradients of a bias and of the activation behind it, in the bits that both have alone."""


@dataclass(frozen=True)
class Together:
    """The function that computes some neighbours: from the input and extra inputs to the result and extra outputs.

    count: of operations. forward, backward: the kind of kernel that does so in a pass, None if each has its own.
    forward_of, backward_of: the first of the operations that it computes, and the one behind the last.
    """

    call: Callable[..., tuple[Tensor, Sequence[Tensor]]]
    count: int = 2
    forward: type[FusedNeighbours] | None = None
    backward: type[FusedNeighbours] | None = None
    forward_of: tuple[int, int | None] = (0, None)
    backward_of: tuple[int, int | None] = (0, None)
