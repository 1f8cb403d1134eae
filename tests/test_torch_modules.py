"""Quantized linear layers of torch: values of the golden model, compiled or not."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.torch_modules import QuantizedLinear, fake_quantize, quantize_linears  # noqa: E402


def golden(x, spec, amax=None):
    q = fp4ref.quantize(x.float().numpy(), spec, amax=amax, backend="numpy")
    return torch.from_numpy(np.array(fp4ref.dequantize(q, backend="numpy")))


@pytest.mark.rule("DEQ-1", "DEQ-2")
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-2d", "nvfp4-row-scaled", "mxfp8-e4m3", "mxfp4", "te.fp8_block"])
def test_fake_quantization_has_the_values_of_the_golden_model(spec):
    x = torch.randn(3, 5, 48, generator=torch.Generator().manual_seed(0), requires_grad=True)
    y = fake_quantize(x, spec)
    assert torch.equal(y, golden(x.detach().reshape(15, 48), spec).view(3, 5, 48))
    y.sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    assert fake_quantize(torch.ones(0, 32), spec).shape == (0, 32)


def test_a_layer_multiplies_quantized_values():
    torch.manual_seed(0)
    layer = torch.nn.Linear(64, 32)
    x = torch.randn(7, 64)
    weight, values = golden(layer.weight.detach(), "nvfp4-2d"), golden(x, "nvfp4")
    made = QuantizedLinear(layer, "nvfp4-2d", fp4ref.NVFP4)
    assert torch.equal(made(x), torch.nn.functional.linear(values, weight, layer.bias))
    assert torch.equal(QuantizedLinear(layer, "nvfp4-2d")(x), torch.nn.functional.linear(x, weight, layer.bias))
    static = QuantizedLinear(layer, "nvfp4-2d", "nvfp4", activation_amax=8.0)
    expected = torch.nn.functional.linear(golden(x, "nvfp4", amax=8.0), weight, layer.bias)
    assert torch.equal(static(x), expected)
    assert "nvfp4-2d" in repr(made)
    other = QuantizedLinear(torch.nn.Linear(64, 32), "nvfp4-2d", "nvfp4", activation_amax=1.0)
    other.load_state_dict(static.state_dict())
    assert torch.equal(other(x), expected)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compiled_bits_are_equal(dtype):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).to(dtype)
    quantize_linears(model, "nvfp4-2d", "nvfp4")
    x = torch.randn(9, 64, dtype=dtype)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x))
    torch._dynamo.reset()


def test_layers_are_chosen_by_name():
    def model():
        return torch.nn.ModuleDict(
            {
                "experts": torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2)),
                "head": torch.nn.Linear(32, 32),
            }
        )

    assert quantize_linears(model(), "mxfp4", select="experts.*") == ["experts.0", "experts.1"]
    assert quantize_linears(model(), "mxfp4", select=["head", "*.1"]) == ["experts.1", "head"]
    assert quantize_linears(model(), "mxfp4", select=lambda name, layer: name == "head") == ["head"]
    tied = model()
    tied["head"] = tied["experts"][0]
    quantize_linears(tied, "mxfp4")
    assert tied["head"] is tied["experts"][0]
    converted = te.convert(model(), te.recipe.MXFP8BlockScaling(), select="experts.*")
    assert [isinstance(layer, te.Linear) for layer in (*converted["experts"], converted["head"])] == [True, True, False]


def test_what_has_no_meaning_is_refused():
    layer = torch.nn.Linear(32, 32)
    for arguments in (
        ("nvfp4-sr",),
        ("nvfp4", "nvfp4-sr"),
        ("nvfp4", None, 1.0),
        ("nvfp4", "mxfp4", 1.0),
    ):
        with pytest.raises(fp4ref.DomainError):
            QuantizedLinear(layer, *arguments)
    with pytest.raises(fp4ref.DomainError, match="select"):
        quantize_linears(torch.nn.Sequential(layer), "nvfp4", select="nothing")
