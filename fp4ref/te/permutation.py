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


def moe_permute_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, num_out_tokens: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the rows as `moe_permute` does by a mask, their probabilities of probs [tokens, experts], and the map."""
    made, rows = moe_permute(inp, routing_map, num_out_tokens)
    return made, probs[rows[:, 0], rows[:, 1]], rows


def moe_permute_and_pad_with_probs(
    inp: Tensor, probs: Tensor, routing_map: Tensor, tokens_per_expert: Tensor, align_size: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor]:
    """Return the same, with zeros behind each expert's rows that fill them up to a multiple of align_size.

    The map has token -1 for a row of zeros.

    Returns rows, probabilities, map, how many rows of zeros stand before each expert's, None for none at all, and the
    rows of each expert.

    Errors: SettingError.
    """
    if tokens_per_expert is None or align_size <= 0:
        got = f"tokens_per_expert {tokens_per_expert}, align_size {align_size}"
        raise SettingError("moe_permute_and_pad_with_probs", got, "counts, and a positive size")
    counts = tokens_per_expert.to(inp.device).long()
    padded = (counts + align_size - 1) // align_size * align_size
    before = (padded - counts).cumsum(0) - (padded - counts)
    made, kept, rows = moe_permute_with_probs(inp, probs, routing_map, int(counts.sum()))
    if torch.equal(padded, counts):
        return made, kept, rows, None, padded
    places = torch.arange(len(rows), device=inp.device) + before[rows[:, 1]]
    total = int(padded.sum())
    whole = rows.new_full((total, 2), -1).index_copy(0, places, rows)
    made, kept = (part.new_zeros(total, *part.shape[1:]).index_copy(0, places, part) for part in (made, kept))
    return made, kept, whole, before, padded


def moe_unpermute(
    inp: Tensor,
    row_id_map: Tensor,
    merging_probs: Tensor | None = None,
    restore_shape: Sequence[int] | None = None,
    map_type: str = "mask",
    probs: Tensor | None = None,
    pad_offsets: Tensor | None = None,
) -> Tensor:
    """Sum the rows of each token in float32, each times its probability, rounded once: [tokens, K].

    merging_probs, or by its former name probs: [tokens, columns of routing_map]; without them rows are added as they
    are. restore_shape: the shape of the result; without it there are as many tokens as probabilities or, without
    these, as rows. pad_offsets: not read, since the map says which rows are padding.

    Errors: SettingError.
    """
    _require_map(map_type)
    if probs is not None and merging_probs is not None:
        raise SettingError("moe_unpermute", "merging_probs and probs", "one of them")
    merging_probs = probs if merging_probs is None else merging_probs
    filled = row_id_map[:, 0] >= 0
    inp, row_id_map = inp[filled], row_id_map[filled]
    token, column = row_id_map.unbind(1)
    values = inp.float()
    if merging_probs is not None:
        values = values * merging_probs.float()[token, column].unsqueeze(1)
    counted = inp if merging_probs is None else merging_probs
    tokens = counted.shape[0] if restore_shape is None else restore_shape[0]
    return values.new_zeros(tokens, inp.shape[1]).index_add(0, token, values).to(inp.dtype)


def moe_sort_chunks_by_index(inp: Tensor, split_sizes: Tensor, sorted_index: Tensor) -> Tensor:
    """Return the row ranges of inp [tokens, K], of these sizes, in another order."""
    return inp[_in_order(split_sizes, sorted_index, inp.device)]


def moe_sort_chunks_by_index_with_probs(
    inp: Tensor, probs: Tensor, split_sizes: Tensor, sorted_index: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the row ranges of inp [tokens, K] and of probs [tokens] in another order."""
    rows = _in_order(split_sizes, sorted_index, inp.device)
    return inp[rows], probs[rows]


def _in_order(split_sizes: Tensor, sorted_index: Tensor, device: torch.device) -> Tensor:
    sizes = [int(size) for size in split_sizes.flatten().tolist()]
    chunks = torch.split(torch.arange(sum(sizes), device=device), sizes)
    return torch.cat([chunks[index] for index in sorted_index.flatten().tolist()])


def _require_map(map_type: str) -> None:
    if map_type not in MAPS:
        raise SettingError("moe_permute", f"map_type {map_type!r}", "mask or index")
