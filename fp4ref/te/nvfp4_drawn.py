"""NVFP4 tensors by stochastic rounding, whose random bytes a backend draws within the program that reads them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor

from fp4ref import api
from fp4ref.quantized import DirectionChoice, DirectionData
from fp4ref.random_source import bits_by_key
from fp4ref.spec import Spec
from fp4ref.te import rng, steps

NOTHING = DirectionData(None, None, None)


def made_again(
    quantizer: Any, tensor: Tensor, how: tuple[Spec, DirectionChoice, str], settings: dict[str, Any]
) -> Callable[[Tensor, Any], Any] | None:
    """Return a function that makes other tensors of a kind; None without a backend that repeats draws.

    how: arguments of their `quantize`. settings: of the result.
    """
    shape, device, of = tuple(tensor.shape), tensor.device, (tensor.dtype, tensor.shape, tensor.device)
    matrix = math.prod(shape[:-1]), shape[-1]

    def act(x: Tensor, seed: Any, upper: int) -> tuple[Tensor | None, ...]:
        bits = bits_by_key(matrix, how[1], seed, upper, device)
        q = api.quantize(x.detach().view(matrix), *how, random_bits=bits)
        return *(q.row or NOTHING), *(q.column or NOTHING)

    run = steps.repeated(("nvfp4 drawn", quantizer.kind_of_call(), how[2]), (tensor,), act)
    if run is None:
        return None

    def again(x: Tensor, quantizer: Any) -> Any:
        key = rng.key_of(quantizer.rng_state or rng.next_state(device))
        parts = run(x, numbers=key) if type(key[0]) is int else act(x, *key)
        return quantizer.made((parts[:3], parts[3:]), settings, of)

    return again
