"""Layers with attention, against torch's own functions on the same parameters."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import gelu, layer_norm, linear  # noqa: E402

from fp4ref import te  # noqa: E402
from fp4ref.te.attention import apply_rotary_pos_emb  # noqa: E402

WIDTH, FFN, HEADS, GROUPS, LENGTH, BATCH = 64, 96, 4, 2, 8, 2
SIZE = WIDTH // HEADS


def states(length=LENGTH, batch=BATCH):
    return torch.randn(length, batch, WIDTH, generator=torch.Generator().manual_seed(0))


def layer(**options):
    torch.manual_seed(0)
    made = te.TransformerLayer(
        WIDTH, FFN, HEADS, **{"num_gqa_groups": GROUPS, "hidden_dropout": 0.0, "attention_dropout": 0.0} | options
    )
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "bias" in name or "norm_weight" in name:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return made


@pytest.mark.rule("TEM-30")
def test_names_and_shapes_of_parameters():
    split, fused = layer(qk_norm_type="RMSNorm"), layer(fuse_qkv_params=True, bias=False, normalization="RMSNorm")
    attention, mlp = "self_attention", "layernorm_mlp"
    assert {name: tuple(value.shape) for name, value in split.named_parameters()} == {
        f"{attention}.q_norm.weight": (SIZE,),
        f"{attention}.k_norm.weight": (SIZE,),
        f"{attention}.layernorm_qkv.layer_norm_weight": (WIDTH,),
        f"{attention}.layernorm_qkv.layer_norm_bias": (WIDTH,),
        f"{attention}.layernorm_qkv.query_weight": (WIDTH, WIDTH),
        f"{attention}.layernorm_qkv.key_weight": (32, WIDTH),
        f"{attention}.layernorm_qkv.value_weight": (32, WIDTH),
        f"{attention}.layernorm_qkv.query_bias": (WIDTH,),
        f"{attention}.layernorm_qkv.key_bias": (32,),
        f"{attention}.layernorm_qkv.value_bias": (32,),
        f"{attention}.proj.weight": (WIDTH, WIDTH),
        f"{attention}.proj.bias": (WIDTH,),
        f"{mlp}.layer_norm_weight": (WIDTH,),
        f"{mlp}.layer_norm_bias": (WIDTH,),
        f"{mlp}.fc1_weight": (FFN, WIDTH),
        f"{mlp}.fc1_bias": (FFN,),
        f"{mlp}.fc2_weight": (WIDTH, FFN),
        f"{mlp}.fc2_bias": (WIDTH,),
    }
    assert {name: tuple(value.shape) for name, value in fused.named_parameters()} == {
        f"{attention}.layernorm_qkv.layer_norm_weight": (WIDTH,),
        f"{attention}.layernorm_qkv.weight": (128, WIDTH),
        f"{attention}.proj.weight": (WIDTH, WIDTH),
        f"{mlp}.layer_norm_weight": (WIDTH,),
        f"{mlp}.fc1_weight": (FFN, WIDTH),
        f"{mlp}.fc2_weight": (WIDTH, FFN),
    }
    extra = [name for name in fused.state_dict() if "_extra_state" in name]
    kinds = ("layernorm_qkv", "core_attention", "proj")
    assert extra == [*(f"{attention}.{kind}._extra_state" for kind in kinds), f"{mlp}._extra_state"]
    older = {name: value for name, value in fused.state_dict().items() if "core_attention" not in name}
    fused.load_state_dict(older)


def attend(q, k, v, causal):
    """[s, b, h, d] in, [s, b, h d] out."""
    q, k, v = (x.permute(1, 2, 0, 3) for x in (q, k.repeat_interleave(2, 2), v.repeat_interleave(2, 2)))
    scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return (scores.softmax(-1) @ v).permute(2, 0, 1, 3).flatten(-2)


def heads(x, weight, bias):
    return linear(x, weight, bias).unflatten(-1, (-1, SIZE))


def norm(x, module):
    return layer_norm(x, (WIDTH,), module.layer_norm_weight, module.layer_norm_bias)


def mlp(x, module):
    hidden = gelu(linear(norm(x, module), module.fc1_weight, module.fc1_bias), approximate="tanh")
    return linear(hidden, module.fc2_weight, module.fc2_bias)


@pytest.mark.parametrize("rotary", [False, True])
@pytest.mark.parametrize("parallel", [False, True])
def test_an_encoder_layer(rotary, parallel):
    module, x = layer(parallel_attention_mlp=parallel), states()
    freqs = te.RotaryPositionEmbedding(SIZE)(LENGTH) if rotary else None
    own = module.self_attention.layernorm_qkv
    normed = norm(x, own)
    q, k, v = (heads(normed, getattr(own, f"{n}_weight"), getattr(own, f"{n}_bias")) for n in ("query", "key", "value"))
    if rotary:
        q, k = (apply_rotary_pos_emb(y, freqs) for y in (q, k))
    proj = module.self_attention.proj
    y = x + linear(attend(q, k, v, causal=True), proj.weight, proj.bias)
    expected = y + mlp(x if parallel else y, module.layernorm_mlp)
    assert torch.allclose(module(x, rotary_pos_emb=freqs), expected, atol=1e-5)


def test_a_decoder_layer_attends_to_the_encoder():
    module, x, memory = layer(layer_type="decoder"), states(), states(6) * 2
    with torch.no_grad():
        module.self_attention.proj.weight.zero_()
        module.self_attention.proj.bias.zero_()
    cross = module.inter_attention
    q = heads(norm(x, cross.layernorm_query), cross.layernorm_query.query_weight, cross.layernorm_query.query_bias)
    k, v = (
        heads(memory, getattr(cross.key_value, f"{n}_weight"), getattr(cross.key_value, f"{n}_bias"))
        for n in ("key", "value")
    )
    y = x + linear(attend(q, k, v, causal=False), cross.proj.weight, cross.proj.bias)
    expected = y + mlp(y, module.layernorm_mlp)
    assert torch.allclose(module(x, encoder_output=memory), expected, atol=1e-5)


@pytest.mark.parametrize("interleaved", [False, True])
def test_one_weight_for_queries_keys_and_values(interleaved):
    split, fused = layer(), layer(fuse_qkv_params=True, qkv_weight_interleaved=interleaved)
    values = split.state_dict()
    prefix = "self_attention.layernorm_qkv."
    for kind in ("weight", "bias"):
        q, k, v = (values.pop(f"{prefix}{name}_{kind}") for name in ("query", "key", "value"))
        parts = [part.unflatten(0, (GROUPS, -1)) for part in (q, k, v)]
        values[f"{prefix}{kind}"] = torch.cat(parts, 1).flatten(0, 1) if interleaved else torch.cat((q, k, v))
    fused.load_state_dict(values)
    assert torch.allclose(fused(states()), split(states()), atol=1e-6)


def test_output_norms_and_residuals_after_the_norm():
    x = states()
    last = layer(output_layernorm=True)
    assert list(dict(last.named_children())) == ["self_attention", "layernorm_mlp", "layernorm"]
    assert torch.allclose(last(x).mean(-1), last.layernorm.bias.mean().expand(LENGTH, BATCH), atol=0.2)
    plain, after = layer(), layer(apply_residual_connection_post_layernorm=True)
    after.load_state_dict(plain.state_dict())
    attended = plain.self_attention(x)
    y = norm(x, plain.self_attention.layernorm_qkv) + attended[0] + attended[1]
    expected = norm(y, plain.layernorm_mlp) + mlp(y, plain.layernorm_mlp)
    assert torch.allclose(after(x), expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["L2Normalization", "RMSNorm", "LayerNorm"])
def test_queries_and_keys_are_normalized(kind):
    options = {"qk_norm_type": kind, "qk_norm_before_rope": True, "qk_norm_eps": 1e-12}
    module = te.MultiheadAttention(WIDTH, HEADS, attention_dropout=0.0, **options)
    seen = []
    module.core_attention.register_forward_pre_hook(lambda _, args: seen.extend(args))
    module(states())
    lengths = {"L2Normalization": 1.0, "RMSNorm": math.sqrt(SIZE), "LayerNorm": math.sqrt(SIZE)}
    for x in seen[:2]:
        assert torch.allclose(x.norm(dim=-1), torch.tensor(lengths[kind]), atol=1e-4)
    with pytest.raises(ValueError, match="qk_norm_type 'odd'"):
        te.MultiheadAttention(WIDTH, HEADS, qk_norm_type="odd")


@pytest.mark.parametrize("recipe", [te.recipe.NVFP4BlockScaling(), te.recipe.MXFP8BlockScaling()])
def test_a_layer_trains_under_a_recipe(recipe):
    module, x = layer(params_dtype=torch.bfloat16), states(32).bfloat16()
    te.debug.reset_operation_counts()
    with te.autocast(recipe=recipe):
        y = module(x)
    y.float().square().mean().backward()
    assert te.debug.operation_counts()["quantize"] == {"input": 4, "weight": 4, "grad_output": 4}
    assert all(parameter.grad is not None for parameter in module.parameters())
    exact = module(x).float()
    assert 0 < (y - exact).norm() / exact.norm() < 0.3


@pytest.mark.parametrize("options", [{}, {"output_layernorm": True}, {"parallel_attention_mlp": True}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_mixed_precision_gives_its_type(options, dtype):
    module, x = layer(**options), states().requires_grad_()
    with torch.autocast("cpu", dtype=dtype):
        y = module(x)
    y.float().square().sum().backward()
    assert y.dtype is dtype
    assert x.grad.dtype is torch.float32
    assert {parameter.grad.dtype for parameter in module.parameters()} == {torch.float32}


def test_dropped_paths_leave_the_stream_alone():
    module, x = layer(drop_path_rate=1 - 1e-9, parallel_attention_mlp=True), states()
    assert torch.equal(module(x), x)
    assert not torch.equal(module.eval()(x), x)


def test_settings_that_exclude_each_other():
    for options, said in (
        ({"layer_type": "odd"}, "layer_type 'odd'"),
        ({"parallel_attention_mlp": True, "layer_type": "decoder"}, "layer_type 'decoder'"),
        ({"parallel_attention_mlp": True, "output_layernorm": True}, "output_layernorm"),
        ({"fuse_wgrad_accumulation": True}, "fuse_qkv_params"),
        ({"num_gqa_groups": 3}, "num_attention_heads 4"),
        ({"ub_tp_comm_overlap": True}, "ub_"),
    ):
        with pytest.raises(ValueError, match=said):
            layer(**options)
