from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.te.dtypes import TE_DType  # noqa: E402
from fp4ref.te.reference_current import CurrentScalingQuantizerRef, current_scaling_ref_factory  # noqa: E402
from te_samples import sample  # noqa: E402

KINDS = {torch.float8_e4m3fn: "te.fp8_current", torch.float8_e5m2: "te.fp8_current_e5m2"}


@pytest.mark.rule("TEL-21", "PRO-3")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(37, 50), (3, 16, 24), (1, 1)])
def test_reference_and_quantizer_agree(kind, dtype, shape):
    x = sample(*shape, dtype=dtype)
    want, got = CurrentScalingQuantizerRef(kind).quantize(x), te.Float8CurrentScalingQuantizer(TE_DType[kind])(x)
    matrix = got._data.view(-1, shape[-1])
    assert torch.equal(want.data.view(torch.uint8), matrix)
    assert torch.equal(want.data_t.view(torch.uint8), matrix.t())
    assert torch.equal(want.scale, got._scale_inv)
    assert torch.equal(want.dequantize(dtype=torch.float32), got.dequantize(dtype=torch.float32))
    model = fp4ref.quantize(x.view(-1, shape[-1]), KINDS[kind], "row", backend="numpy")
    assert torch.equal(matrix, model.row.data)


def test_columns_are_made_from_rows_and_rows_are_freed():
    quantizer = CurrentScalingQuantizerRef(torch.float8_e4m3fn, columnwise=False)
    tensor = quantizer.quantize(sample(8, 12))
    values = tensor.dequantize(dtype=torch.float32)
    tensor.update_usage(rowwise_usage=False, columnwise_usage=True)
    assert (tensor.data, tensor.data_t.shape) == (None, (12, 8))
    assert torch.equal(tensor.dequantize(dtype=torch.float32), values)
    with pytest.raises(ValueError, match="no row direction"):
        tensor.update_usage(rowwise_usage=True)


@pytest.mark.parametrize("bad", [{"dtype": torch.float16}, {"pow_2_scales": True}, {"eps": 1.0}])
def test_other_settings_are_refused(bad):
    with pytest.raises(ValueError, match="CurrentScalingQuantizerRef"):
        CurrentScalingQuantizerRef(**({"dtype": torch.float8_e5m2} | bad))


@pytest.mark.rule("TEL-11")
def test_products_are_sums_of_what_codes_mean():
    generator = np.random.default_rng(1)
    a, b = (torch.tensor(generator.integers(-3, 4, shape), dtype=torch.float32) for shape in ((5, 16), (3, 16)))
    quantizer = CurrentScalingQuantizerRef(torch.float8_e4m3fn)
    qa, qb = quantizer.quantize(a), quantizer.quantize(b)
    bias, before = torch.ones(3), torch.full((5, 3), 2.0)
    found = quantizer.qgemm(qa.data, qb.data, None, torch.float32, qa.scale, qb.scale, bias, before, True)
    exact = (qa.data.double() @ qb.data.double().t()).float() * (qa.scale * qb.scale) + 3  # the sums are integers
    assert torch.equal(found, exact)
    with pytest.raises(ValueError, match="16 and 5 elements"):
        quantizer.qgemm(qa.data, qa.data_t.contiguous(), None, torch.float32, qa.scale, qb.scale)


@pytest.mark.rule("TEL-56")
def test_a_layer_trains_by_the_reference_as_by_the_recipe():
    found = []
    custom = te.recipe.CustomRecipe(qfactory=current_scaling_ref_factory)
    for recipe in (te.recipe.Float8CurrentScaling(), custom):
        torch.manual_seed(0)
        layer, x = te.Linear(48, 32, params_dtype=torch.bfloat16), sample(64, 48).requires_grad_()
        with te.autocast(recipe=recipe):
            y = layer(x)
        y.float().square().sum().backward()
        found.append((y, x.grad, layer.weight.grad, layer.bias.grad))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert current_scaling_ref_factory(SimpleNamespace(tensor_type="grad_output")).dtype is torch.float8_e5m2
