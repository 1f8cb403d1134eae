"""Tokens on their way to experts and back, and rows that fill up whole blocks."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402

CHOICES = [[2, 0], [1, 2], [2, 1], [0, 1]]  # the experts of four tokens
SORTED = [0, 3, 1, 2, 3, 0, 1, 2]  # the tokens of the experts 0, 1 and 2


def routing(kind):
    if kind == "index":
        return torch.tensor(CHOICES, dtype=torch.int32)
    return torch.tensor([[expert in row for expert in range(3)] for row in CHOICES]).int()


@pytest.mark.parametrize("kind", ["mask", "index"])
def test_tokens_are_sorted_by_expert_and_merged_again(kind):
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    rows, places = te.moe_permute(x, routing(kind), 8, map_type=kind)
    assert torch.equal(rows, x[SORTED])
    probabilities = torch.tensor([[0.5, 0.25, 0.125]] * 4) if kind == "mask" else torch.tensor([[0.5, 0.25]] * 4)
    merged = te.moe_unpermute(rows, places, probabilities, restore_shape=(4, 8), map_type=kind)
    for token, row in enumerate(CHOICES):
        total = sum(probabilities[token][expert if kind == "mask" else place] for place, expert in enumerate(row))
        assert torch.equal(merged[token], (x[token].float() * total).bfloat16())
    assert torch.equal(te.moe_unpermute(rows, places, restore_shape=(4, 8), map_type=kind), 2 * x)
    rows.float().sum().backward()
    assert x.grad.unique().tolist() == [2]
    assert torch.equal(te.moe_permute(x, routing(kind), 3, map_type=kind)[0], x[SORTED[:3]])
    with pytest.raises(ValueError, match="map_type 'odd'"):
        te.moe_permute(x, routing(kind), map_type="odd")


def test_probabilities_travel_with_their_tokens():
    x = torch.arange(32.0).view(4, 8).requires_grad_()
    probabilities = torch.rand(4, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    experts = [expert for expert in range(3) for row in CHOICES if expert in row]
    expected = [probabilities[token, expert].item() for token, expert in zip(SORTED, experts, strict=True)]
    rows, kept, places = te.moe_permute_with_probs(x, probabilities, routing("mask"), 8)
    assert torch.equal(rows, x[SORTED])
    assert kept.tolist() == expected
    assert torch.equal(te.moe_unpermute(rows, places, restore_shape=(4, 8)), 2 * x)
    counts = torch.tensor([2, 3, 3])
    rows, kept, places, before, padded = te.moe_permute_and_pad_with_probs(x, probabilities, routing("mask"), counts, 4)
    assert (padded.tolist(), before.tolist()) == ([4, 4, 4], [0, 2, 3])
    filled = [0, 1, 4, 5, 6, 8, 9, 10]
    assert torch.equal(rows[filled], x[SORTED])
    assert kept[filled].tolist() == expected
    empty = [2, 3, 7, 11]
    assert not rows[empty].any()
    assert not kept[empty].any()
    assert torch.equal(te.moe_unpermute(rows, places, restore_shape=(4, 8), pad_offsets=before), 2 * x)
    (rows.sum() + kept.sum()).backward()
    assert x.grad.unique().tolist() == [2]
    assert probabilities.grad.sum() == 8
    whole = te.moe_permute_and_pad_with_probs(x, probabilities, routing("mask"), counts, 1)
    assert whole[3] is None
    with pytest.raises(ValueError, match="align_size 0"):
        te.moe_permute_and_pad_with_probs(x, probabilities, routing("mask"), counts, 0)
    with pytest.raises(ValueError, match="merging_probs and probs"):
        te.moe_unpermute(rows, places, probabilities, probs=probabilities)


def test_ranges_of_rows_are_put_in_another_order():
    x, sizes, order = (
        torch.arange(12.0).view(6, 2).requires_grad_(),
        torch.tensor([1, 0, 3, 2]),
        torch.tensor([2, 3, 1, 0]),
    )
    rows = [1, 2, 3, 4, 5, 0]
    assert torch.equal(te.moe_sort_chunks_by_index(x, sizes, order), x[rows])
    made, probabilities = te.moe_sort_chunks_by_index_with_probs(x, torch.arange(6.0), sizes, order)
    assert torch.equal(made, x[rows])
    assert probabilities.tolist() == rows
    made.sum().backward()
    assert x.grad.unique().tolist() == [1]


def test_groups_are_padded_for_the_recipe_and_cut_again():
    x, splits = torch.randn(40, 64).bfloat16().requires_grad_(), [3, 0, 37]
    with te.autocast(recipe=te.recipe.MXFP8BlockScaling()):
        padding, unpadding = te.Fp8Padding(3), te.Fp8Unpadding(3)
        padded, sizes = padding(x, splits)
        y = te.GroupedLinear(3, 64, 32, params_dtype=torch.bfloat16)(padded, sizes)
        cut = unpadding(y, splits)
    assert sizes == [32, 0, 64]
    assert torch.equal(padded[:3], x[:3])
    assert torch.equal(padded[32:69], x[3:])
    assert not padded[3:32].any()
    assert not padded[69:].any()
    assert torch.equal(cut, torch.cat((y[:3], y[32:69])))
    cut.float().sum().backward()
    assert x.grad.shape == x.shape
    assert te.Fp8Padding(1, align_size=8)(x, [40])[1] == [40]
    with pytest.raises(ValueError, match="1 m_splits"):
        padding(x, [40])
    for module in (padding, unpadding):
        with pytest.raises(ValueError, match="groups that fill them"):
            module(x, [3, 0, 38])
