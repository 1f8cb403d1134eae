"""Tokens sorted by the experts that they are routed to, and back again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError

MAPS = ("mask", "index")


def moe_permute(
    inp: Tensor, routing_map: Tensor, num_out_tokens: int = -1, max_token_num: int = -1, map_type: str = "mask"
) -> tuple[Tensor, Tensor]:
    """Return the rows of inp [tokens, K] sorted by expert, in the order of the tokens; and the map of rows.

    routing_map: with the map_type "mask" 1 where a token goes to an expert, [tokens, experts]; with "index" the experts
    of each token, [tokens, choices]. num_out_tokens: keep this many rows at most; all if it is not positive. The map
    has a row's token and its column of routing_map, [rows, 2]; `moe_unpermute` reads it. max_token_num only advises
    kernels.

    Errors: SettingError.
    """
    _require_map(map_type)
    if map_type == "mask":
        rows = routing_map.t().nonzero().flip(1)
    else:
        order = routing_map.flatten().argsort(stable=True)
        rows = torch.stack((order // routing_map.shape[1], order % routing_map.shape[1]), 1)
    rows = rows[:num_out_tokens] if num_out_tokens > 0 else rows
    return inp[rows[:, 0]], rows


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: Sequence[int] | None = None,
    map_type: str = "mask",
) -> Tensor:
    """Sum the rows of each token in float32, each times its probability, rounded once: [tokens, K].

    merging_probs: [tokens, columns of routing_map]; without them rows are added as they are. restore_shape: the shape
    of the result; without it there are as many tokens as probabilities or, without these, as rows.

    Errors: SettingError.
    """
    _require_map(map_type)
    token, column = row_id_map.unbind(1)
    values = inp.float()
    if merging_probs is not None:
        values = values * merging_probs.float()[token, column].unsqueeze(1)
    counted = inp if merging_probs is None else merging_probs
    tokens = counted.shape[0] if restore_shape is None else restore_shape[0]
    return values.new_zeros(tokens, inp.shape[1]).index_add(0, token, values).to(inp.dtype)


def _require_map(map_type: str) -> None:
    if map_type not in MAPS:
        raise SettingError("moe_permute", f"map_type {map_type!r}", "mask or index")
