"""The router: the experts of each token, their probabilities, and the loss that keeps experts balanced.

Everything is computed in float32, by torch's operations, and rounded once to the type of the input. Where
scores are equal, the lower expert is chosen first.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum

import torch
from torch import Tensor

from fp4ref.te.errors import SettingError

SMALLEST_SUM = 1e-20  # added to a sum of scores before dividing by it
BITS = 8  # experts of one byte of a bitmap
INDEX_TYPES = (torch.int16, torch.int32, torch.int64)


class RoutingMapFormat(IntEnum):
    """The forms of a map of experts: a bool for each, or one bit for each, the lowest bit first."""

    BYTEMAP = 0
    BITMAP_U8 = 1


class QBHistogramMode(IntEnum):
    """The kernels that count for quantile balancing; here they are one computation."""

    TWO_KERNEL = 0
    FUSED_ATOMIC = 1


def fused_topk_with_score_function(
    logits: Tensor,
    topk: int,
    use_pre_softmax: bool,
    num_groups: int | None,
    group_topk: int | None,
    scaling_factor: float | None,
    score_function: str,
    expert_bias: Tensor | None,
    routing_map_format: str | RoutingMapFormat | int = RoutingMapFormat.BYTEMAP,
    topk_indices: Tensor | None = None,
    qb_histogram: Tensor | None = None,
    qb_bin_bounds: Tensor | None = None,
    qb_histogram_mode: str | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the probabilities of logits [..., experts], zero where a token does not go, and the map of experts.

    score_function: softmax, of all experts if use_pre_softmax and else of the chosen ones; sigmoid and sqrtsoftplus are
    divided by the sum of the chosen ones. num_groups, group_topk: choose in the best groups only, those whose
    topk / group_topk largest scores have the largest sum. expert_bias: added to a score to choose by. topk_indices
    [..., topk]: is filled with the chosen experts, and returned in the place of the map. qb_histogram [experts, bins],
    int32: for quantile balancing, gets one more count for each token and expert, in the bin of the bias with which this
    expert would be the next one; qb_bin_bounds: the lower end of the first bin, and the upper end of the last.

    Errors: SettingError.
    """
    form = _form(routing_map_format)
    balanced = (qb_histogram, qb_bin_bounds, qb_histogram_mode)
    _require(logits, score_function, topk_indices, form)
    rows = logits.reshape(-1, logits.shape[-1]).float()
    scores = rows if score_function == "softmax" and not use_pre_softmax else _scores(rows, score_function)
    ranked = scores if expert_bias is None or score_function == "softmax" else scores + expert_bias.float()
    if any(each is not None for each in balanced):
        _require_balanced(balanced, score_function, expert_bias, num_groups, group_topk)
    chosen = _best(_in_best_groups(ranked, topk, num_groups, group_topk), topk)
    if qb_histogram is not None and qb_bin_bounds is not None:
        _count(qb_histogram, qb_bin_bounds, scores.detach(), _cutoff(ranked.detach(), topk))
    probs = scores.gather(1, chosen)
    if score_function == "softmax":
        probs = probs if use_pre_softmax else probs.softmax(-1)
    elif topk > 1:
        probs = probs / (probs.sum(-1, keepdim=True) + SMALLEST_SUM)
    probs = probs * scaling_factor if scaling_factor else probs
    made = torch.zeros_like(rows).scatter(1, chosen, probs).to(logits.dtype).view(logits.shape)
    if topk_indices is None:
        return made, _map(chosen, logits.shape, form)
    topk_indices.copy_(chosen.view(topk_indices.shape))
    return made, topk_indices


def fused_compute_score_for_moe_aux_loss(
    logits: Tensor, topk: int, score_function: str, routing_map_format: str | RoutingMapFormat | int = 0
) -> tuple[Tensor, Tensor]:
    """Return the map of experts of logits [..., experts], and the scores of all experts, float32, whose sum is 1.

    Errors: SettingError.
    """
    form = _form(routing_map_format)
    _require(logits, score_function, None, form)
    scores = _scores(logits.reshape(-1, logits.shape[-1]).float(), score_function)
    if score_function != "softmax":
        scores = scores / (scores.sum(-1, keepdim=True) + SMALLEST_SUM)
    return _map(_best(scores, topk), logits.shape, form), scores.view(logits.shape)


def fused_moe_aux_loss(
    probs: Tensor,
    tokens_per_expert: Tensor,
    total_num_tokens: int | Tensor,
    num_experts: int,
    topk: int,
    coeff: float,
) -> Tensor:
    """Return the sum over experts of probs' sums [tokens, experts] and counts, by coeff E / (topk tokens^2)."""
    factor = num_experts * coeff / (topk * total_num_tokens * total_num_tokens)
    return ((probs.float().sum(0) * tokens_per_expert).sum() * factor).to(probs.dtype)


def _form(asked: str | RoutingMapFormat | int) -> RoutingMapFormat:
    names = {form.name.lower(): form for form in RoutingMapFormat}
    try:
        return names[asked] if isinstance(asked, str) else RoutingMapFormat(asked)
    except (KeyError, ValueError):
        needed = "a RoutingMapFormat, its number, 'bytemap' or 'bitmap_u8' (lowercase)"
        raise SettingError("router", f"routing_map_format {asked!r}", needed) from None


def _require(logits: Tensor, score_function: str, indices: Tensor | None, form: RoutingMapFormat) -> None:
    for bad, got, needed in (
        (logits.dtype == torch.float64, "logits of float64", "float32, float16 or bfloat16"),
        (score_function not in SCORES, f"score_function {score_function!r}", ", ".join(SCORES)),
        (indices is not None and indices.dtype not in INDEX_TYPES, "topk_indices", "int16, int32 or int64"),
        (indices is not None and form.value, "topk_indices with a routing_map_format", "one of the two"),
    ):
        if bad:
            raise SettingError("router", got, needed)


def _require_balanced(
    given: tuple[Tensor | None, Tensor | None, str | None],
    score_function: str,
    expert_bias: Tensor | None,
    *groups: int | None,
) -> None:
    modes = [mode.name.lower() for mode in QBHistogramMode]
    for bad, got, needed in (
        (
            None in [type(each) if each is not None else None for each in given],
            "some qb_ arguments",
            "three, provided together",
        ),
        (
            score_function != "sigmoid",
            f"score_function {score_function!r}",
            "sigmoid: quantile balancing only supports it",
        ),
        (expert_bias is None, "no expert_bias", "one, for quantile balancing"),
        (any(each is not None for each in groups), "groups", "none, for quantile balancing"),
        (given[2] not in modes, f"qb_histogram_mode {given[2]!r}", " or ".join(modes)),
    ):
        if bad:
            raise SettingError("router", got, needed)
    lower, upper = given[1].tolist()  # type: ignore[union-attr]
    if not (math.isfinite(lower) and math.isfinite(upper) and lower < upper):
        raise SettingError("router", f"qb_bin_bounds [{lower}, {upper}]", "finite with lower < upper")


def _sqrtsoftplus(rows: Tensor) -> Tensor:
    return torch.nn.functional.softplus(rows).sqrt()


SCORES: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda rows: rows.softmax(-1),
    "sigmoid": torch.sigmoid,
    "sqrtsoftplus": _sqrtsoftplus,
}


def _scores(rows: Tensor, function: str) -> Tensor:
    return SCORES[function](rows)


def _best(scores: Tensor, count: int) -> Tensor:
    """Return the places of the largest elements of each row, the lower one first of equal ones."""
    return scores.detach().argsort(dim=-1, descending=True, stable=True)[:, :count]


def _in_best_groups(scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None) -> Tensor:
    """Return the scores, -inf outside of the best groups."""
    if not group_topk or not num_groups:
        return scores
    grouped = scores.detach().view(len(scores), num_groups, -1)
    sums = grouped.topk(topk // group_topk, -1).values.sum(-1)
    kept = torch.zeros_like(sums, dtype=torch.bool).scatter(1, _best(sums, group_topk), True)
    return grouped.masked_fill(~kept.unsqueeze(-1), -torch.inf).view(scores.shape)


def _cutoff(ranked: Tensor, topk: int) -> Tensor:
    """Return each row's largest element that is not chosen, [rows, 1]."""
    return ranked.gather(1, _best(ranked, topk + 1)[:, topk:])


def _count(histogram: Tensor, bounds: Tensor, scores: Tensor, cutoff: Tensor) -> None:
    """Add one for each row and expert, in the bin of the bias that would lift its score to the cutoff."""
    experts, bins = histogram.shape
    places = torch.floor((cutoff - scores - bounds[0]) * (bins / (bounds[1] - bounds[0]))).long().clamp_(0, bins - 1)
    places += torch.arange(experts, device=places.device) * bins
    histogram += places.flatten().bincount(minlength=experts * bins).view(experts, bins).to(histogram.dtype)


def _map(chosen: Tensor, shape: torch.Size, form: RoutingMapFormat) -> Tensor:
    """Return the map of chosen experts [tokens, topk] for logits of a shape."""
    experts = shape[-1]
    made = torch.zeros(len(chosen), experts, dtype=torch.bool, device=chosen.device).scatter(1, chosen, True)
    if form is RoutingMapFormat.BYTEMAP:
        return made.view(shape)
    padded = torch.nn.functional.pad(made, (0, -experts % BITS)).view(*shape[:-1], -1, BITS)
    powers = 2 ** torch.arange(BITS, dtype=torch.uint8, device=made.device)
    return (padded * powers).sum(-1, dtype=torch.uint8)
