from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.errors import Fp4Error  # noqa: E402
from te_samples import sample  # noqa: E402

BF16 = torch.bfloat16


@pytest.mark.rule("TEL-53", "TEL-85")
@pytest.mark.parametrize("make", [te.MXFP8Quantizer, te.NVFP4Quantizer, te.Float8CurrentScalingQuantizer])
def test_members_are_views_of_one_buffer(make):
    quantizer = make()
    x = sample(96, 64)
    group = te.group_quantize(x, quantizer, 2, torch.tensor([32, 64]))
    alone = [quantizer(x[:32]), quantizer(x[32:])]
    assert group.tensor_offsets.tolist() == [0, 2048, 6144]
    for name, members in (
        ("rowwise_data", ("_rowwise_data", "_data")),
        ("columnwise_data", ("_columnwise_data",)),
        ("scale_inv", ("_rowwise_scale_inv", "_scale_inv")),
        ("columnwise_scale_inv", ("_columnwise_scale_inv",)),
        ("amax", ("_amax_rowwise",)),
        ("columnwise_amax", ("_amax_columnwise",)),
    ):
        kept = [buffer for part in alone for each in members if (buffer := getattr(part, each, None)) is not None]
        packed = getattr(group, name)
        if not kept:
            assert packed is None
            continue
        assert torch.equal(packed, torch.cat([buffer.reshape(-1) for buffer in kept]))
    codes = group.rowwise_data
    codes[-1] ^= 1
    changed = group.split_into_quantized_tensors()[1]
    mine = changed._data if hasattr(changed, "_data") else changed._rowwise_data
    assert mine.reshape(-1)[-1] == codes[-1]


@pytest.mark.rule("TEL-53")
def test_sizes_of_ordinary_members():
    group = te.GroupedTensor.make_grouped_tensor(2, torch.tensor([2, 1]), None, 4, 3, None, "cpu", BF16)
    group.rowwise_data.copy_(torch.arange(12))
    first, second = group.split_into_quantized_tensors()
    assert first.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert second.tolist() == [[6, 7, 8]]
    for first_dims, last_dims, shapes in (
        (None, None, [(2, 3), (2, 3)]),
        (None, torch.tensor([1, 2]), [(4, 1), (4, 2)]),
        (torch.tensor([1, 3]), torch.tensor([3, 2]), [(1, 3), (3, 2)]),
    ):
        made = te.GroupedTensor.make_grouped_tensor(2, first_dims, last_dims, 4, 3)
        assert [tuple(member.shape) for member in made.quantized_tensors] == shapes
    packed = te.GroupedTensor.make_grouped_tensor(2, None, None, 64, 64, te.MXFP8Quantizer(), "cpu", BF16)
    assert packed.rowwise_data.shape == (4096,)
    for first_dims, rows in ((torch.tensor([3, 2]), 4), (None, 5)):
        with pytest.raises(Fp4Error, match="TEL-53"):
            te.GroupedTensor.make_grouped_tensor(2, first_dims, None, rows, 3)


def ordinary(shapes, values):
    """A group of bfloat16 members."""
    first = torch.tensor([shape[0] for shape in shapes])
    width = shapes[0][1]
    made = te.GroupedTensor.make_grouped_tensor(len(shapes), first, None, int(first.sum()), width, None, "cpu", BF16)
    made.rowwise_data.copy_(torch.cat([value.reshape(-1) for value in values]))
    return made


@pytest.mark.rule("TEL-80")
@pytest.mark.parametrize(
    ("product", "bias", "factor", "expected"),
    [(1 + 2**-8, 2**-9, None, 1.0), (1.0, 1.0, 3.0, 4.0), (1.0, 1.0, 1 + 2**-7 + 2**-12, 2 + 2**-6)],
)
def test_a_bias_is_added_to_the_rounded_product(product, bias, factor, expected):
    weight = ordinary([(1, 2)], [torch.ones(1, 2)])
    x = ordinary([(1, 2)], [torch.tensor([1.0, product - 1])])
    out = ordinary([(1, 1)], [torch.zeros(1, 1)])
    scale = None if factor is None else torch.tensor([factor])
    te.general_grouped_gemm_for_grouped_tensor(
        weight, x, out, bias=ordinary([(1, 1)], [torch.tensor([[bias]])]), bias_scale=scale
    )
    assert out.rowwise_data.tolist() == [expected]


@pytest.mark.rule("TEL-80")
def test_factors_of_a_bias_belong_to_rows_of_the_whole_group():
    weights, x = (ordinary([(1, 2), (1, 2)], [torch.ones(1, 2)] * 2) for _ in range(2))
    out = ordinary([(1, 1), (1, 1)], [torch.zeros(1, 1)] * 2)
    bias = ordinary([(1, 1), (1, 1)], [torch.ones(1, 1), torch.full((1, 1), 2.0)])
    te.general_grouped_gemm_for_grouped_tensor(weights, x, out, bias=bias, bias_scale=torch.tensor([3.0, 5.0]))
    assert out.rowwise_data.tolist() == [2 + 3, 2 + 2 * 5]


@pytest.mark.rule("TEL-54")
@pytest.mark.parametrize("layout", ["TN", "NN", "NT"])
@pytest.mark.parametrize("accumulate", [False, True])
def test_products_of_groups_are_those_of_the_members(layout, accumulate):
    rows, sizes = [(32, 64), (64, 64)], torch.tensor([32, 64])
    x = sample(96, 64)
    weights, grads = sample(128, 64, seed=1), sample(96, 64, seed=2)
    quantizer = te.MXFP8Quantizer()
    split = torch.tensor([64, 64])
    a = te.group_quantize(x if layout == "NT" else weights, quantizer, 2, sizes if layout == "NT" else split)
    b = te.group_quantize(grads if layout == "NT" else x, quantizer, 2, sizes)
    shapes = [(64, 64)] * 2 if layout == "NT" else rows
    start = [sample(*shape, seed=3) for shape in shapes]
    out = ordinary(shapes, start)
    te.general_grouped_gemm_for_grouped_tensor(a, b, out, layout=layout, accumulate=accumulate)
    listed = [value.clone() for value in start]
    te.general_grouped_gemm_for_grouped_tensor(a, b, listed, layout=layout, accumulate=accumulate)
    for i, (mine, theirs) in enumerate(zip(out.quantized_tensors, listed, strict=True)):
        left = a.quantized_tensors[i].dequantize(dtype=torch.float32).double()
        right = b.quantized_tensors[i].dequantize(dtype=torch.float32).double()
        exact = {"TN": lambda a, b: b @ a.T, "NN": lambda a, b: b @ a, "NT": lambda a, b: b.T @ a}[layout](left, right)
        near = (exact + accumulate * start[i].double()).to(BF16)
        assert torch.equal(mine, theirs)
        if layout == "TN":  # others read the columns, which this does not dequantize
            torch.testing.assert_close(mine, near, rtol=2**-7, atol=1e-3)


@pytest.mark.rule("TEL-54")
def test_groups_that_are_refused():
    one = ordinary([(1, 2)], [torch.ones(1, 2)])
    out = ordinary([(1, 1)], [torch.ones(1, 1)])
    product = te.general_grouped_gemm_for_grouped_tensor
    for arguments, options in (
        (([one.quantized_tensors[0]], one, [torch.ones(1, 1)]), {}),
        ((one, one, [torch.ones(1, 1)]), {"bias": out}),
        ((one, one, out), {"bias_scale": torch.ones(1)}),
        ((one, one, out), {"grad": True}),
        ((one, one, out), {"beta": torch.ones(1)}),
        (([], one, out), {}),
    ):
        with pytest.raises(Fp4Error, match="TEL-54"):
            product(*arguments, **options)
