"""The choice of experts, against plain Python on each token."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from fp4ref.te.router import (  # noqa: E402
    RoutingMapFormat,
    fused_compute_score_for_moe_aux_loss,
    fused_moe_aux_loss,
    fused_topk_with_score_function,
)

TOKENS, EXPERTS, CHOSEN = 7, 12, 4


def softmax(values):
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


SCORES = {
    "softmax": softmax,
    "sigmoid": lambda row: [1 / (1 + math.exp(-value)) for value in row],
    "sqrtsoftplus": lambda row: [math.sqrt(math.log1p(math.exp(value))) for value in row],
}


def largest(values, count):
    return sorted(range(len(values)), key=lambda place: (-values[place], place))[:count]


def in_groups(values, groups, kept):
    size, best = len(values) // groups, CHOSEN // kept
    sums = [sum(sorted(values[start : start + size])[-best:]) for start in range(0, len(values), size)]
    return [value if place // size in largest(sums, kept) else -math.inf for place, value in enumerate(values)]


def expected(row, function, before, groups, factor, bias):
    scores = row if function == "softmax" and not before else SCORES[function](row)
    ranked = scores if function == "softmax" else [a + b for a, b in zip(scores, bias, strict=True)]
    chosen = largest(in_groups(ranked, *groups) if groups else ranked, CHOSEN)
    probs = [scores[place] for place in chosen]
    if function != "softmax":
        probs = [value / sum(probs) for value in probs]
    elif not before:
        probs = softmax(probs)
    return dict(zip(chosen, [value * factor for value in probs], strict=True))


def logits(seed=0, ties=False):
    made = torch.randn(TOKENS, EXPERTS, generator=torch.Generator().manual_seed(seed))
    return (made.round() if ties else made).requires_grad_()


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("groups", [None, (3, 2)])
@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("function", SCORES)
def test_tokens_go_to_the_experts_of_the_best_scores(function, before, groups, ties):
    x, bias = logits(ties=ties), torch.linspace(0.4, -0.4, EXPERTS)
    call = (CHOSEN, before, *(groups or (None, None)), 1.5, function, bias)
    probs, experts = fused_topk_with_score_function(x, *call)
    _, bits = fused_topk_with_score_function(x, *call, routing_map_format="bitmap_u8")
    places = torch.zeros(TOKENS, CHOSEN, dtype=torch.int16)
    again, same = fused_topk_with_score_function(x, *call, topk_indices=places)
    assert same is places
    assert torch.equal(again, probs)
    for token, row in enumerate(x.tolist()):
        wanted = expected(row, function, before, groups, 1.5, bias.tolist())
        assert experts[token].nonzero().flatten().tolist() == sorted(wanted) == sorted(places[token].tolist())
        numbers = [sum(1 << place % 8 for place in wanted if place // 8 == byte) for byte in range(2)]
        assert bits[token].tolist() == numbers
        for place in range(EXPERTS):
            assert probs[token, place].item() == pytest.approx(wanted.get(place, 0), rel=1e-5)
    probs.square().sum().backward()
    assert x.grad.isfinite().all()
    assert x.grad.any()


@pytest.mark.parametrize("function", SCORES)
def test_scores_of_all_experts_have_the_sum_one(function):
    x = logits(1)
    experts, scores = fused_compute_score_for_moe_aux_loss(x.bfloat16(), CHOSEN, function)
    assert scores.dtype is torch.float32
    for token, row in enumerate(x.bfloat16().tolist()):
        wanted = SCORES[function](row)
        assert scores[token].tolist() == pytest.approx([value / sum(wanted) for value in wanted], rel=1e-5)
        assert experts[token].nonzero().flatten().tolist() == sorted(largest(scores[token].tolist(), CHOSEN))


def test_the_loss_weighs_probabilities_by_counts():
    probs, counts = torch.rand(TOKENS, EXPERTS).requires_grad_(), torch.arange(EXPERTS)
    loss = fused_moe_aux_loss(probs, counts, TOKENS, EXPERTS, CHOSEN, 0.01)
    total = sum(sum(column) * count for column, count in zip(probs.t().tolist(), counts.tolist(), strict=True))
    assert loss.item() == pytest.approx(total * EXPERTS * 0.01 / (CHOSEN * TOKENS**2), rel=1e-5)
    loss.backward()
    assert probs.grad[0].tolist() == pytest.approx([n * EXPERTS * 0.01 / (CHOSEN * TOKENS**2) for n in range(EXPERTS)])


def test_biases_that_would_lift_an_expert_are_counted():
    x, bias, bins = logits(2), torch.linspace(-0.1, 0.1, EXPERTS), 5
    histogram = torch.ones(EXPERTS, bins, dtype=torch.int32)
    call = (CHOSEN, False, None, None, None, "sigmoid", bias)
    balance = {"qb_histogram": histogram, "qb_bin_bounds": torch.tensor([-0.5, 0.5]), "qb_histogram_mode": "two_kernel"}
    probs, experts = fused_topk_with_score_function(x, *call, **balance)
    plain = fused_topk_with_score_function(x, *call)
    assert torch.equal(probs, plain[0])
    assert torch.equal(experts, plain[1])
    wanted = [[1] * bins for _ in range(EXPERTS)]
    for row in x.tolist():
        scores = SCORES["sigmoid"](row)
        ranked = sorted(a + b for a, b in zip(scores, bias.tolist(), strict=True))
        for expert, score in enumerate(scores):
            place = math.floor((ranked[-CHOSEN - 1] - score + 0.5) * bins)
            wanted[expert][min(max(place, 0), bins - 1)] += 1
    assert histogram.tolist() == wanted


@pytest.mark.parametrize(
    "change, message",
    [
        ({"score_function": "odd"}, "score_function 'odd'"),
        ({"routing_map_format": "BYTEMAP"}, "lowercase"),
        ({"routing_map_format": 2}, "routing_map_format 2"),
        ({"logits": torch.zeros(2, EXPERTS, dtype=torch.float64)}, "float64"),
        ({"topk_indices": torch.zeros(TOKENS, CHOSEN, dtype=torch.uint8)}, "int16, int32 or int64"),
        ({"qb_histogram_mode": "two_kernel"}, "provided together"),
    ],
)
def test_what_cannot_be_routed_is_refused(change, message):
    call = {"logits": logits(), "topk": CHOSEN, "use_pre_softmax": False, "num_groups": None, "group_topk": None}
    call |= {"scaling_factor": None, "score_function": "sigmoid", "expert_bias": None}
    with pytest.raises(ValueError, match=message):
        fused_topk_with_score_function(**(call | change))


@pytest.mark.parametrize("bounds", [(1.0, 1.0), (1.0, -1.0), (math.nan, 1.0)])
def test_bounds_of_bins_are_checked(bounds):
    balance = {"qb_histogram": torch.zeros(EXPERTS, 4, dtype=torch.int32), "qb_histogram_mode": "fused_atomic"}
    call = (logits(), CHOSEN, False, None, None, None, "sigmoid", torch.zeros(EXPERTS), RoutingMapFormat.BYTEMAP, None)
    with pytest.raises(ValueError, match="finite with lower < upper"):
        fused_topk_with_score_function(*call, **balance, qb_bin_bounds=torch.tensor(bounds))
