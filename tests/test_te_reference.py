from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref.te import NVFP4Quantizer, general_gemm  # noqa: E402
from fp4ref.te.reference import Fp4Formats, GEMMType, NVFP4QuantizerRef  # noqa: E402
from te_samples import sample  # noqa: E402

SETTINGS = [
    ({}, {}),
    ({"quant_tile_shape": (16, 16)}, {"with_2d_quantization": True}),
    ({"with_rht": True}, {"with_rht": True, "with_post_rht_amax": True}),
    (
        {"with_rht": True, "with_random_sign_mask": False},
        {"with_rht": True, "with_post_rht_amax": True, "with_random_sign_mask": False},
    ),
    ({"row_scaled_nvfp4": True}, {"row_scaled_nvfp4": True}),
    ({"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256}, {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256}),
]


@pytest.mark.rule("TEL-3", "PRO-3")
@pytest.mark.parametrize("reference, native", SETTINGS)
def test_reference_and_quantizer_agree_on_ordinary_data(reference, native):
    x = sample(96, 160)
    want, got = NVFP4QuantizerRef(dtype=Fp4Formats.E2M1, **reference).quantize(x), NVFP4Quantizer(**native)(x)
    assert torch.equal(got._rowwise_data, want.data)
    assert torch.equal(got._columnwise_data, want.data_t)
    assert torch.equal(got._rowwise_scale_inv[:96, :10], want.scale.view(torch.uint8))
    assert torch.equal(got._columnwise_scale_inv[:160, :6], want.scale_t.view(torch.uint8))
    assert torch.equal(got._amax_rowwise, want.global_amax_row)
    assert torch.equal(got._amax_columnwise, want.global_amax_col)
    assert torch.equal(got.dequantize(dtype=torch.float32), want.dequantize(dtype=torch.float32))


@pytest.mark.rule("PRO-3")
def test_reference_is_its_profile_on_special_values():
    x = sample(32, 32)
    x[0, :3] = torch.tensor([-0.0, float("nan"), 0.0])
    want = fp4ref.quantize(x, "te.python_reference", "both", backend="numpy")
    got = NVFP4QuantizerRef().quantize(x)
    assert torch.equal(got.data, want.row.data)
    assert torch.equal(got.data_t, want.column.data)


def test_transform_is_the_models():
    x = sample(64, 96)
    quantizer = NVFP4QuantizerRef(with_rht=True)
    amax = quantizer._apply_rht(x.t().contiguous()).abs().max().float().view(1)
    assert torch.equal(amax, NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)(x)._amax_columnwise)
    assert NVFP4QuantizerRef()._apply_rht(x) is x


@pytest.mark.rule("TEL-11", "TEL-12")
@pytest.mark.parametrize("layout, kind", [("TN", GEMMType.FPROP), ("NN", GEMMType.DGRAD), ("NT", GEMMType.WGRAD)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reference_products_are_the_native_ones(layout, kind, dtype):
    shapes = {"TN": ((96, 128), (64, 128)), "NN": ((96, 128), (64, 96)), "NT": ((64, 128), (64, 96))}[layout]
    a, b = (sample(*shape, seed=seed) for seed, shape in enumerate(shapes))
    native, reference = NVFP4Quantizer(), NVFP4QuantizerRef()
    want = general_gemm(native(a), native(b), out_dtype=dtype, layout=layout)[0]
    assert torch.equal(general_gemm(reference(a), reference(b), out_dtype=dtype, layout=layout)[0], want)
    qa, qb = reference(a), reference(b)
    x = (qb.data, qb.scale) if layout[1] == "N" else (qb.data_t, qb.scale_t)
    w = (qa.data, qa.scale) if layout[0] == "T" else (qa.data_t, qa.scale_t)
    got = reference.qgemm(
        qx=x[0], qw=w[0], m_params=None, out_dtype=dtype, sx=x[1], sw=w[1], gemm_type=kind, qresult_x=qb, qresult_w=qa
    )
    assert torch.equal(got, want)
    out = sample(*want.shape, seed=5, dtype=dtype)
    added = reference.qgemm(
        x[0], w[0], None, torch.float32, x[1], w[1], None, out, True, kind, qresult_x=qb, qresult_w=qa
    )
    full = general_gemm(native(a), native(b), out_dtype=torch.float32, layout=layout)[0]
    assert torch.equal(added, full + out.float())


@pytest.mark.parametrize(
    "settings, said",
    [
        ({"pow_2_scales": True}, "pow_2_scales"),
        ({"eps": 0.5}, "eps 0.5"),
        ({"quant_tile_shape": (1, 32)}, "32"),
        ({"nvfp4_4over6_err_mode": "max"}, "'max'"),
        ({"row_scaled_nvfp4": True, "rowwise": False}, "without rowwise"),
    ],
)
def test_refused_settings(settings, said):
    with pytest.raises(ValueError, match=said):
        NVFP4QuantizerRef(**settings)
