"""Attention against the formula, one query at a time, in float64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te.attention import DotProductAttention, RotaryPositionEmbedding, apply_rotary_pos_emb  # noqa: E402

BATCH, QUERIES, KEYS, HEADS, GROUPS, SIZE = 2, 5, 7, 4, 2, 8
LENGTHS = ([3, 5], [7, 4])  # of queries and of keys


def sample(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).float()


def operands(keys=KEYS):
    return sample(QUERIES, BATCH, HEADS, SIZE), sample(keys, BATCH, GROUPS, SIZE), sample(keys, BATCH, GROUPS, SIZE) * 2


def oracle(q, k, v, sees, sink=None, bias=None):
    """The formula: sees(batch, i, j) says whether query i sees key j; [s, b, h, d] in, [s, b, h d] out."""
    rows = torch.zeros(q.shape[0], q.shape[1], q.shape[2], v.shape[3], dtype=torch.float64)
    for i in range(q.shape[0]):
        for b in range(q.shape[1]):
            for h in range(q.shape[2]):
                g = h * k.shape[2] // q.shape[2]
                weights = {}
                for j in range(k.shape[0]):
                    if sees(b, i, j):
                        score = float(q[i, b, h].double() @ k[j, b, g].double()) / math.sqrt(q.shape[3])
                        weights[j] = math.exp(score + (0 if bias is None else float(bias[0, h, i, j])))
                total = sum(weights.values()) + (0 if sink is None else math.exp(sink[h]))
                for j, weight in weights.items():
                    rows[i, b, h] += weight / total * v[j, b, g].double()
    return rows.flatten(-2)


def near(got, expected):
    return torch.allclose(got.double(), expected, rtol=1e-5, atol=1e-6)


def padding_masks():
    return tuple(
        torch.arange(size).view(1, 1, 1, size) >= torch.tensor(lengths).view(-1, 1, 1, 1)
        for size, lengths in zip((QUERIES, KEYS), LENGTHS, strict=True)
    )


def both(b, i, j):
    return i < LENGTHS[0][b] and j < LENGTHS[1][b]


def shift(b):
    return LENGTHS[1][b] - LENGTHS[0][b]


CASES = {
    ("no_mask", None): lambda b, i, j: True,
    ("causal", None): lambda b, i, j: j <= i,
    ("causal", (2, 0)): lambda b, i, j: i - 2 <= j <= i,
    ("causal_bottom_right", None): lambda b, i, j: j <= i + KEYS - QUERIES,
    ("no_mask", (1, 2)): lambda b, i, j: i + KEYS - QUERIES - 1 <= j <= i + KEYS - QUERIES + 2,
    ("padding", None): both,
    ("padding_causal", None): lambda b, i, j: both(b, i, j) and j <= i,
    ("causal,padding", None): lambda b, i, j: both(b, i, j) and j <= i,
    ("padding_causal_bottom_right", None): lambda b, i, j: both(b, i, j) and j <= i + shift(b),
    ("padding", (1, 1)): lambda b, i, j: both(b, i, j) and abs(j - i - shift(b)) <= 1,
}


@pytest.mark.parametrize("mask, window", CASES)
@pytest.mark.parametrize("layout", ["sbhd", "bshd"])
def test_masks(mask, window, layout):
    q, k, v = operands()
    attention = DotProductAttention(
        HEADS, SIZE, GROUPS, attn_mask_type=mask, window_size=window, attention_type="cross", qkv_format=layout
    )
    expected = oracle(q, k, v, CASES[mask, window])
    masks = padding_masks() if "padding" in mask else None
    moved = [x if layout == "sbhd" else x.transpose(0, 1) for x in (q, k, v)]
    got = attention(*moved, attention_mask=masks)
    assert near(got if layout == "sbhd" else got.transpose(0, 1), expected)
    if masks is not None:
        sums = [torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32) for lengths in LENGTHS]
        assert torch.equal(attention(*moved, cu_seqlens_q=sums[0], cu_seqlens_kv=sums[1]), got)


@pytest.mark.parametrize("mask", ["padding", "padding_causal"])
@pytest.mark.parametrize("gap", [0, 2])
def test_packed_sequences(mask, gap):
    """Sequences behind each other, with and without unused tokens between them."""
    q, k, v = operands()
    rows, starts = [], []
    for x, lengths in zip((q, k, v), (LENGTHS[0], LENGTHS[1], LENGTHS[1]), strict=True):
        pieces = [torch.cat((x[:size, b], torch.full((gap, *x.shape[2:]), 9.0))) for b, size in enumerate(lengths)]
        rows.append(torch.cat(pieces))
        starts.append(torch.tensor([0, lengths[0] + gap, sum(lengths) + 2 * gap], dtype=torch.int32))
    sums = [torch.tensor([0, lengths[0], sum(lengths)], dtype=torch.int32) for lengths in LENGTHS]
    attention = DotProductAttention(HEADS, SIZE, GROUPS, attn_mask_type=mask, attention_type="cross", qkv_format="thd")
    got = attention(
        *rows,
        cu_seqlens_q=sums[0],
        cu_seqlens_kv=sums[1],
        cu_seqlens_q_padded=starts[0] if gap else None,
        cu_seqlens_kv_padded=starts[1] if gap else None,
    )
    expected = oracle(q, k, v, CASES[mask, None])
    for b, size in enumerate(LENGTHS[0]):
        first = int(starts[0][b])
        assert near(got[first : first + size], expected[:size, b])
        assert not got[first + size : first + size + gap].any()


@pytest.mark.parametrize("softmax", ["off-by-one", "learnable"])
def test_sinks_biases_and_largest_scores(softmax):
    q, k, v = operands()
    bias, hides = sample(1, HEADS, QUERIES, KEYS), sample(BATCH, 1, QUERIES, KEYS) > 0.5
    attention = DotProductAttention(
        HEADS, SIZE, GROUPS, attn_mask_type="arbitrary", softmax_type=softmax, return_max_logit=True
    )
    sink = [0.0] * HEADS
    if softmax == "learnable":
        assert list(attention.state_dict()) == ["softmax_offset", "_extra_state"]
        with torch.no_grad():
            sink = attention.softmax_offset.copy_(torch.arange(HEADS) / 2).tolist()
    got, largest = attention(
        q, k, v, attention_mask=hides, core_attention_bias_type="post_scale_bias", core_attention_bias=bias
    )
    assert near(got, oracle(q, k, v, lambda b, i, j: not hides[b, 0, i, j], sink, bias))
    scores = torch.einsum("ibhd,jbhd->bhij", q, k.repeat_interleave(2, 2)) / math.sqrt(SIZE) + bias
    assert torch.allclose(largest, scores.masked_fill(hides, -math.inf).amax((0, 2, 3)))
    if softmax == "learnable":
        got.sum().backward()
        assert attention.softmax_offset.grad.abs().min() > 0


@pytest.mark.parametrize("heads, slopes", [(4, [2**-2, 2**-4, 2**-6, 2**-8]), (3, [2**-4, 2**-8, 2**-2])])
@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("mask", ["causal", "no_mask", "padding_causal_bottom_right"])
def test_alibi_lowers_scores_by_the_distance_from_the_diagonal(heads, slopes, given, mask):
    q, k, v = sample(QUERIES, BATCH, heads, SIZE), sample(KEYS, BATCH, heads, SIZE), sample(KEYS, BATCH, heads, SIZE)
    attention = DotProductAttention(heads, SIZE, attn_mask_type=mask, attention_type="cross")
    slopes = [1.0 + h for h in range(heads)] if given else slopes
    masks = padding_masks() if "padding" in mask else None
    options = {"alibi_slopes": torch.tensor(slopes)} if given else {}
    got = attention(q, k, v, attention_mask=masks, core_attention_bias_type="alibi", **options)
    for b in range(BATCH):
        begins = {"causal": 0, "no_mask": KEYS - QUERIES}.get(mask, shift(b))
        bias = torch.tensor(
            [[[-slopes[h] * abs(i + begins - j) for j in range(KEYS)] for i in range(QUERIES)] for h in range(heads)]
        )
        expected = oracle(q, k, v, CASES[mask, None], bias=bias[None])
        assert near(got[:, b], expected[:, b])


@pytest.mark.parametrize("axis", [-3, -2])
def test_operands_in_one_tensor(axis):
    q, k, v = sample(QUERIES, BATCH, HEADS, SIZE), sample(QUERIES, BATCH, HEADS, SIZE), operands(QUERIES)[2]
    v = v.repeat_interleave(2, 2)
    attention = DotProductAttention(HEADS, SIZE)
    expected = attention(q, k, v)
    packed = torch.stack((q, k, v), axis).requires_grad_()
    got = attention(qkv_layer=packed, qkv_interleave_dim=axis)
    assert torch.equal(got, expected)
    got.sum().backward()
    assert packed.grad.abs().amax() > 0
    assert torch.equal(attention(q, kv_layer=torch.stack((k, v), axis), qkv_interleave_dim=axis), expected)


@pytest.mark.rule("TEM-31")
def test_one_computation_has_the_names_of_fused_and_unfused_kernels(monkeypatch):
    from fp4ref.te.attention.backends import AttentionParams, FusedAttnBackend, get_attention_backend

    for name in ("NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"):
        monkeypatch.delenv(name, raising=False)
    fused = FusedAttnBackend["F16_arbitrary_seqlen"]
    assert get_attention_backend(AttentionParams()) == (False, None, True, fused, False, [False, True, True])
    for refused in ({"fp8": True}, {"context_parallel": True}, {"inference_params": 1}, {"has_score_mod": True}):
        assert get_attention_backend(AttentionParams(**refused))[-1] == [False] * 3
    monkeypatch.setenv("NVTE_FUSED_ATTN", "0")
    nothing = FusedAttnBackend["No"]
    assert get_attention_backend(AttentionParams()) == (False, None, False, nothing, True, [False, False, True])


def test_gradients_with_queries_that_see_nothing_and_recomputation():
    x = [t.requires_grad_() for t in operands()]
    attention = DotProductAttention(HEADS, SIZE, GROUPS, attn_mask_type="padding", attention_type="cross")
    grads = []
    for recompute in (False, True):
        y = attention(*x, attention_mask=padding_masks(), checkpoint_core_attention=recompute)
        grads.append(torch.autograd.grad(y.square().sum(), x))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))
    assert all(grad.isfinite().all() for grad in grads[0])
    assert not grads[0][0][LENGTHS[0][0] :, 0].any()


@pytest.mark.rule("TEM-31")
def test_recipes_leave_attention_alone():
    x, attention = operands(), DotProductAttention(HEADS, SIZE, GROUPS)
    with te.autocast(recipe=te.recipe.NVFP4BlockScaling()):
        inside = attention(*x)
    assert torch.equal(inside, attention(*x))


@pytest.mark.rule("TEM-4")
def test_attention_refuses_by_name():
    q, k, v = operands()
    attention = DotProductAttention(HEADS, SIZE, GROUPS)
    for call, said in (
        (lambda: DotProductAttention(HEADS, SIZE, attn_mask_type="odd"), "mask 'odd'"),
        (lambda: DotProductAttention(HEADS, SIZE, qkv_format="hdsb"), "qkv_format 'hdsb'"),
        (lambda: DotProductAttention(HEADS, SIZE, softmax_type="odd"), "softmax_type 'odd'"),
        (lambda: DotProductAttention(HEADS, SIZE, 3), "num_attention_heads 4 over 3"),
        (lambda: attention(q, k, v, core_attention_bias_type="odd"), "core_attention_bias_type='odd'"),
        (lambda: attention(q, k), "query_layer, key_layer, need queries, keys and values"),
        (lambda: attention(q, kv_layer=torch.stack((k, k, v), -3)), "qkv_interleave_dim -3"),
        (lambda: attention(q, k, kv_layer=torch.stack((k, v), -3)), "query_layer, key_layer, kv_layer"),
        (lambda: attention(q, k, v, fp8_output=True), "fp8_output"),
        (lambda: attention(q, k, v, alibi_slopes=torch.ones(HEADS)), "alibi_slopes=a tensor"),
        (lambda: attention(q, k, v, attn_mask_type="padding"), "attention_mask or cu_seqlens_q"),
        (lambda: attention(q, q, v), "4 heads of queries and 4 of keys"),
    ):
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.parametrize("interleaved", [False, True])
def test_rotary_embedding_turns_pairs(interleaved):
    x = sample(6, 2, 3, 10)
    freqs = RotaryPositionEmbedding(16, rotary_percent=0.5, interleaved=interleaved)(9)
    assert freqs.shape == (9, 1, 1, 8)
    starts = torch.tensor([0, 3])
    got = apply_rotary_pos_emb(x, freqs, start_positions=starts, interleaved=interleaved)
    for s in range(6):
        for b in range(2):
            for pair in range(4):
                angle = (s + int(starts[b])) / 10000 ** (2 * pair / 8)
                one, two = (2 * pair, 2 * pair + 1) if interleaved else (pair, pair + 4)
                turned = torch.complex(x[s, b, :, one], x[s, b, :, two]).to(torch.complex128) * complex(
                    math.cos(angle), math.sin(angle)
                )
                assert torch.allclose(got[s, b, :, one].double(), turned.real, atol=1e-6)
                assert torch.allclose(got[s, b, :, two].double(), turned.imag, atol=1e-6)
    assert torch.equal(got[..., 8:], x[..., 8:])
    other = apply_rotary_pos_emb(
        x.transpose(0, 1), freqs, "bshd", start_positions=starts, interleaved=interleaved, fused=True
    )
    assert torch.allclose(other.transpose(0, 1), got)
    rows = torch.cat((x[:4, 0], x[:6, 1]))
    packed = apply_rotary_pos_emb(
        rows, freqs, "thd", start_positions=starts, interleaved=interleaved, cu_seqlens=torch.tensor([0, 4, 10])
    )
    assert torch.equal(packed, torch.cat((got[:4, 0], got[:6, 1])))
    with pytest.raises(ValueError, match="10 positions"):
        apply_rotary_pos_emb(x, freqs, start_positions=starts + 1)


def test_rotary_positions_are_interpolated():
    plain = RotaryPositionEmbedding(8)(64)
    scaled = RotaryPositionEmbedding(8, seq_len_interpolation_factor=2, pretrained_max_position_embeddings=16)
    assert torch.equal(scaled(32), plain[:32] * 0.5)
    assert torch.equal(scaled(64), plain * 0.25)


def test_the_public_names_are_the_classes():
    assert te.DotProductAttention is DotProductAttention
    assert te.RotaryPositionEmbedding is RotaryPositionEmbedding
