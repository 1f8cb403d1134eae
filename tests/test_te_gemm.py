from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref.te import (  # noqa: E402
    DType,
    MXFP8Quantizer,
    NVFP4Quantizer,
    debug,
    general_gemm,
    general_grouped_gemm,
    generic_gemm,
)
from fp4ref.te import Float8CurrentScalingQuantizer as Float8Quantizer  # noqa: E402
from te_samples import sample  # noqa: E402

M, N, K = 64, 96, 128
# layout: shapes of A and B, the directions that lie along the contraction, and how B and A multiply
LAYOUTS = {
    "TN": ((N, K), (M, K), ("row", "row")),
    "NN": ((N, K), (M, N), ("column", "row")),
    "NT": ((M, K), (M, N), ("column", "column")),
}


def operand(x, spec, direction):
    """Codes times block scales as float64 [rows, contraction], by the model; and the amax."""
    q = fp4ref.quantize(x, spec, direction, backend="numpy")
    part = q.row if direction == "row" else q.column
    bare = spec.replace(global_scale="none", hadamard=None) if part.amax is not None else spec
    record = fp4ref.Quantized(bare, q.direction(direction)[1], "float32", "linear", row=part._replace(amax=None))
    amax = None if part.amax is None else part.amax.numpy()
    return fp4ref.dequantize(record, "float32", backend="numpy").double().numpy(), amax


def exact_product(a, b, spec, directions):
    """The sum of products in float64, in which it is exact here, and both amaxes."""
    (left, amax_b), (right, amax_a) = operand(b, spec, directions[1]), operand(a, spec, directions[0])
    return left @ right.T, amax_a, amax_b


def factor(a=448, b=448):
    return np.float32(1 / (36 * a * b))


def whole_numbers(shape, seed):
    """Integers up to 6 with a 6 in every block of either direction, so that every block scale is 448."""
    x = torch.randint(-6, 7, shape, generator=torch.Generator().manual_seed(seed))
    x[::16, :], x[:, ::16] = 6, 6
    return x.to(torch.bfloat16)


@pytest.mark.rule("TEL-11", "TEL-12", "TEL-31")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("swizzled", [False, True])
def test_nvfp4_product_of_whole_numbers_is_exact(layout, swizzled):
    a_shape, b_shape, directions = LAYOUTS[layout]
    a, b = whole_numbers(a_shape, 0), whole_numbers(b_shape, 1)
    quantizer = NVFP4Quantizer()
    quantizer.optimize_for_gemm = swizzled
    total, amax_a, amax_b = exact_product(a, b, fp4ref.NVFP4, directions)
    unit = 448 * 448 / 4  # of every partial sum, which float32 therefore holds in any order of additions
    assert not (total % unit).any()
    assert np.abs(total).max() / unit < 2**24
    alpha = np.float32(amax_a * amax_b) * factor()
    want = torch.from_numpy(total.astype(np.float32) * alpha)
    got = general_gemm(quantizer(a), quantizer(b), out_dtype=torch.float32, layout=layout)[0]
    assert torch.equal(got, want)


@pytest.mark.rule("TEL-11", "TEL-77")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("spec", [fp4ref.NVFP4, fp4ref.NVFP4_2D, fp4ref.NVFP4_RHT], ids=lambda spec: spec.name)
def test_nvfp4_product_is_within_the_bound_of_any_order(layout, spec):
    a_shape, b_shape, directions = LAYOUTS[layout]
    a, b = sample(*a_shape), sample(*b_shape, seed=1)
    rht = spec.hadamard is not None
    quantizer = NVFP4Quantizer(with_rht=rht, with_post_rht_amax=rht, with_2d_quantization=spec.block.rows == 16)
    got = general_gemm(quantizer(a), quantizer(b), out_dtype=torch.float32, layout=layout)[0].double().numpy()
    total, amax_a, amax_b = exact_product(a, b, spec, directions)
    (left, _), (right, _) = operand(b, spec, directions[1]), operand(a, spec, directions[0])
    alpha = (amax_a * amax_b).astype(np.float32)[0] * factor()
    bound = (left.shape[1] + 2) * 2.0**-23 * (np.abs(left) @ np.abs(right).T) * alpha
    assert (np.abs(got - total * alpha) <= bound).all()


@pytest.mark.rule("TEL-12")
@pytest.mark.parametrize("pair, bits", [((448, 448), 0x34949B93), ((256, 256), 0x35638E39), ((448, 256), 0x35020821)])
def test_global_scale_of_a_product(pair, bits):
    operands = []
    for amax, largest in zip((4.0, 0.5), pair, strict=True):
        x = torch.zeros(16, 16)
        x[0, 0] = amax
        search = {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256} if largest == 256 else {}
        operands.append(NVFP4Quantizer(**search)(x))
    got = general_gemm(*operands, out_dtype=torch.float32)[0][0, 0]
    # each operand is 6 times the scale of its maximum, so the product of codes and scales is 36 * e_A * e_B
    codes = np.prod([float(t.record("row").row.scales[0, 0].view(torch.float8_e4m3fn)) * 6 for t in operands])
    assert got.item() == np.float32(codes) * np.uint32(bits).view(np.float32)


@pytest.mark.rule("TEL-11")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", [MXFP8Quantizer, Float8Quantizer])
def test_fp8_products(layout, kind):
    a_shape, b_shape, directions = LAYOUTS[layout]
    a, b = sample(*a_shape), sample(*b_shape, seed=1)
    got = general_gemm(kind()(a), kind()(b), out_dtype=torch.float32, layout=layout)[0].double()
    if kind is MXFP8Quantizer:
        want = torch.from_numpy(exact_product(a, b, fp4ref.MXFP8_E4M3, directions)[0])
        magnitude = 2 * want.abs().max()
    else:
        left, right = kind()(b).dequantize(dtype=torch.float32), kind()(a).dequantize(dtype=torch.float32)
        left = left if directions[1] == "row" else left.t()
        want = left.double() @ (right if directions[0] == "row" else right.t()).double().t()
        magnitude = 2 * want.abs().max()
    assert ((got - want).abs().max() / magnitude) < 128 * 2.0**-23


@pytest.mark.rule("TEL-11")
def test_high_precision_products_and_leading_dimensions():
    w, x, dy = (
        sample(N, K, dtype=torch.float32),
        sample(4, 16, K, dtype=torch.float32),
        sample(4, 16, N, dtype=torch.float32),
    )
    assert torch.equal(general_gemm(w, x)[0], torch.nn.functional.linear(x.view(M, K), w).view(4, 16, N))
    assert general_gemm(w, dy, layout="NN")[0].shape == (4, 16, K)
    assert general_gemm(x, dy, layout="NT")[0].shape == (N, K)
    bias = torch.zeros(N)
    gradient = general_gemm(x, dy, layout="NT", bias=bias, grad=True)[1]
    assert torch.equal(gradient, dy.view(M, N).sum(0))


@pytest.mark.rule("TEL-32")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bias_gelu_and_accumulation(dtype):
    quantizer = NVFP4Quantizer()
    w, x, bias = quantizer(sample(N, K)), quantizer(sample(M, K, seed=1)), sample(N, seed=2)
    product = general_gemm(w, x, out_dtype=torch.float32)[0]
    assert torch.equal(general_gemm(w, x, out_dtype=dtype, bias=bias)[0], (product + bias.float()).to(dtype))
    old = sample(M, N, seed=3, dtype=dtype)
    out = old.clone()
    assert general_gemm(w, x, out_dtype=dtype, out=out, accumulate=True)[0] is out
    assert torch.equal(out, (product + old.float()).to(dtype))
    activated, _, before, _ = general_gemm(w, x, out_dtype=dtype, gelu=True)
    assert torch.equal(before, product.to(dtype))
    assert torch.equal(activated, torch.nn.functional.gelu(product, approximate="tanh").to(dtype))
    quantized = general_gemm(w, x, out_dtype=torch.bfloat16, quantization_params=quantizer)[0]
    assert torch.equal(quantized._rowwise_data, quantizer(product.bfloat16())._rowwise_data)


@pytest.mark.rule("TEL-32")
def test_gradient_of_gelu():
    quantizer = NVFP4Quantizer()
    w, dy, before = quantizer(sample(N, K)), quantizer(sample(M, N, seed=1)), sample(M, K, seed=2)
    gradient = general_gemm(w, dy, out_dtype=torch.float32, layout="NN")[0]
    got = general_gemm(w, dy, out_dtype=torch.float32, layout="NN", gelu=True, gelu_in=before, grad=True)[0]
    x = before.float().requires_grad_()
    torch.nn.functional.gelu(x, approximate="tanh").backward(gradient)
    assert torch.equal(got, x.grad)
    with pytest.raises(ValueError, match="gelu_in"):
        general_gemm(w, dy, layout="NN", gelu=True, grad=True)


@pytest.mark.rule("TEL-11", "TEL-30")
def test_generic_gemm_transposes_both():
    quantizer = NVFP4Quantizer()
    w, x = whole_numbers((N, K), 0), whole_numbers((K, M), 1)
    arguments = (None, None, DType.kFloat32, None, DType.kBFloat16, False, None, False, None, 0, False, False)
    got = generic_gemm(quantizer(w), True, quantizer(x), True, *arguments)[0]
    want = general_gemm(quantizer(w), quantizer(x.t().contiguous()), out_dtype=torch.float32)[0]
    assert torch.equal(got, want)


@pytest.mark.rule("TEL-30")
def test_generic_gemm_takes_the_compiled_arguments():
    quantizer = NVFP4Quantizer()
    w, x = quantizer(sample(N, K)), quantizer(sample(M, K, seed=1))
    workspace = torch.empty(4, dtype=torch.uint8)
    args = (None, None, DType.kBFloat16, None, DType.kBFloat16, False, None, False, workspace, 4, False, False)
    got = generic_gemm(w, True, x, False, *args)
    assert len(got) == 4
    assert torch.equal(got[0], general_gemm(w, x, out_dtype=torch.bfloat16)[0])


@pytest.mark.rule("TEL-33", "TEL-78")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_scaled_product_is_one_product_per_row(dtype):
    w, x, bias = (
        sample(N, K),
        sample(M, K, seed=1) * torch.exp2(torch.arange(M) % 9 - 4).unsqueeze(1),
        sample(N, seed=2),
    )
    x = x.to(torch.bfloat16)
    weight = NVFP4Quantizer()(w)
    rows = NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x)
    got = general_gemm(weight, rows, out_dtype=dtype, bias=bias)[0]
    left, amax_rows = operand(x, fp4ref.NVFP4_ROW_SCALED, "row")
    right, amax_w = operand(w, fp4ref.NVFP4, "row")
    sums = (torch.from_numpy(left).float() @ torch.from_numpy(right).float().t()) * factor().item()
    scaled = sums * torch.from_numpy(amax_rows * amax_w).unsqueeze(1) + bias.float()
    assert torch.equal(got, scaled.to(dtype))
    out = sample(M, N, seed=3, dtype=dtype)
    want = out + general_gemm(weight, rows, out_dtype=dtype)[0]
    assert torch.equal(general_gemm(weight, rows, out_dtype=dtype, out=out, accumulate=True)[0], want)


@pytest.mark.rule("TEL-33")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_row_scaled_on_both_sides(layout):
    a_shape, b_shape, directions = LAYOUTS[layout]
    a, b = sample(*a_shape), sample(*b_shape, seed=1)
    quantizer = NVFP4Quantizer(row_scaled_nvfp4=True)
    got = general_gemm(quantizer(a), quantizer(b), out_dtype=torch.float32, layout=layout)[0]
    left, amax_b = operand(b, fp4ref.NVFP4_ROW_SCALED, directions[1])
    right, amax_a = operand(a, fp4ref.NVFP4_ROW_SCALED, directions[0])
    sums = (torch.from_numpy(left).float() @ torch.from_numpy(right).float().t()) * factor().item()
    want = sums * torch.from_numpy(amax_b).unsqueeze(1) * torch.from_numpy(amax_a).unsqueeze(0)
    assert torch.equal(got, want)


@pytest.mark.rule("TEL-9", "TEL-30", "TEL-35")
def test_row_scaled_restrictions():
    quantizer, rows = NVFP4Quantizer(), NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)
    w, x = quantizer(sample(N, K)), rows(sample(M, K))
    for options, said in (
        ({"gelu": True}, "gelu"),
        ({"quantization_params": quantizer}, "quantized output"),
        ({"bias": torch.zeros(N), "grad": True}, "bias gradient"),
    ):
        with pytest.raises(AssertionError, match=said):
            general_gemm(w, x, **options)
    with pytest.raises(AssertionError, match="not NVFP4"):
        general_gemm(sample(N, K), x)
    with pytest.raises(NotImplementedError, match="row-scaled"):
        generic_gemm(w, True, x, False, *(None,) * 5, False, None, False, None, 0, False, False)


@pytest.mark.rule("TEL-30")
def test_refused_arguments():
    quantizer = NVFP4Quantizer()
    w, x = quantizer(sample(N, K)), quantizer(sample(M, K))
    for call, said in (
        (lambda: general_gemm(w, x, layout="TT"), "TT"),
        (lambda: general_gemm(w, quantizer(sample(M, 64))), "128 and 64"),
        (lambda: general_gemm(w, sample(M, K)), "NVFP4"),
        (lambda: general_gemm(w, x, accumulate=True), "without out"),
        (lambda: general_gemm(w, x, ub=object()), "ub="),
        (lambda: general_gemm(w, NVFP4Quantizer(rowwise=False)(sample(M, K))), "row direction"),
    ):
        with pytest.raises(ValueError, match=said):
            call()
    with pytest.raises(TypeError, match="colour"):
        general_gemm(w, x, colour=1)


@pytest.mark.rule("TEL-7")
def test_products_count_the_scales_they_move():
    weight, quantizer = NVFP4Quantizer(), NVFP4Quantizer()
    weight.role, quantizer.role = "weight", "input"
    quantizer.optimize_for_gemm = True
    w, x = weight(sample(N, K)), quantizer(sample(M, K))
    debug.reset_operation_counts()
    for _ in range(3):
        general_gemm(w, x)
        general_gemm(w, quantizer(sample(M, N)), layout="NN")
    assert debug.operation_counts()["swizzle_standalone"]["weight"] == 6
    assert w._with_gemm_swizzled_scales is False


@pytest.mark.rule("TEL-13")
@pytest.mark.parametrize("single", [False, True])
def test_grouped_product_is_one_product_per_member(single):
    quantizer = NVFP4Quantizer()
    sizes = [32, 0, 64]
    weights = [quantizer(sample(N, K, seed=i)) for i in range(3)]
    inputs = [quantizer(sample(size, K, seed=10 + i)) for i, size in enumerate(sizes)]
    biases = [sample(N, seed=20 + i) for i in range(3)]
    want = [
        general_gemm(w, x, out_dtype=torch.bfloat16, bias=b)[0] for w, x, b in zip(weights, inputs, biases, strict=True)
    ]
    out = (
        [torch.empty(96, N, dtype=torch.bfloat16)]
        if single
        else [torch.empty(s, N, dtype=torch.bfloat16) for s in sizes]
    )
    options = {"m_splits": sizes, "bias": biases, "use_bias": True, "single_output": single}
    got, _, _ = general_grouped_gemm(weights, inputs, out, [None] * 3, torch.bfloat16, **options)
    for part, expected in zip(got.split(sizes) if single else got, want, strict=True):
        assert torch.equal(part, expected)


@pytest.mark.rule("TEL-13")
def test_grouped_lists_of_different_lengths():
    with pytest.raises(ValueError, match="2 A, 1 B"):
        general_grouped_gemm([sample(N, K)] * 2, [sample(M, K)], [torch.empty(M, N)] * 2)


def large_whole_numbers(rows, columns, seed):
    """Integers up to 8 of either sign, so that float32 adds their products exactly in any order."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (rows, columns), generator=generator).to(torch.bfloat16)


@pytest.mark.rule("TEL-31", "TEL-32", "TEL-12", "TEL-77")
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("alpha", [1.0, 0.3331298828125])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_product_is_rounded_once(layout, alpha, with_bias):
    m, n, k = 160, 192, 256
    shapes = {"TN": ((n, k), (m, k)), "NN": ((k, n), (m, k)), "NT": ((k, n), (k, m))}[layout]
    a, b = (large_whole_numbers(*shape, seed) for seed, shape in enumerate(shapes))
    bias = sample(n, seed=3) if with_bias else None
    got, *_ = general_gemm(a, b, layout=layout, alpha=alpha, bias=bias, out_dtype=torch.bfloat16)
    left = b.double().T if layout[1] == "T" else b.double()
    right = a.double() if layout[0] == "T" else a.double().T
    sums = (left @ right.T).float() * torch.tensor(alpha, dtype=torch.float32)
    wanted = sums if bias is None else sums + bias.float()
    assert torch.equal(got, wanted.to(torch.bfloat16))


@pytest.mark.rule("TEL-31")
def test_subnormal_operands_of_a_large_product_count():
    small, large = torch.full((160, 256), 2.0**-130), torch.eye(256)[:192] * 2.0**100
    got, *_ = general_gemm(large.bfloat16(), small.bfloat16(), out_dtype=torch.bfloat16)
    assert torch.equal(got, torch.full((160, 192), 2.0**-30, dtype=torch.bfloat16))
    quantizer = MXFP8Quantizer(columnwise=False)
    got, *_ = general_gemm(quantizer(large.bfloat16()), quantizer(small.bfloat16()), out_dtype=torch.bfloat16)
    assert torch.equal(got, torch.full((160, 192), 2.0**-30, dtype=torch.bfloat16))


@pytest.mark.rule("TEL-31")
def test_which_numbers_are_subnormal():
    from fp4ref.te.processor import _has_subnormals

    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    expected = (every.float().abs() < 2.0**-126) & (every != 0)
    assert [_has_subnormals(value) for value in every.view(-1, 1)] == expected.tolist()
    for value in (2.0**-126, 2.0**-127, -(2.0**-149), 0.0, -0.0, float("nan"), -float("inf"), 1.0):
        assert _has_subnormals(torch.tensor([value, 1.0])) == (0 < abs(value) < 2.0**-126)


@pytest.mark.rule("TEL-3")
def test_columns_of_storage_are_those_of_a_tensor():
    x = sample(96, 160, dtype=torch.float32)
    for swizzled in (False, True):
        quantizer = MXFP8Quantizer()
        quantizer.optimize_for_gemm = swizzled
        tensor = quantizer(x)
        quantizer.internal = True
        storage = quantizer(x.view(3, 32, 160))
        assert tensor._columnwise_data.is_contiguous()
        assert storage._columnwise_data.shape == (3, 32, 160)
        assert torch.equal(storage._columnwise_data.reshape(96, 160), tensor._columnwise_data)
        assert torch.equal(storage._columnwise_scale_inv, tensor._columnwise_scale_inv)


@pytest.mark.rule("TEL-30", "TEL-8")
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("alpha", [1.0, 0.25])
def test_operands_of_two_kinds_keep_their_scales(out_dtype, alpha):
    kinds = {"high precision": lambda x: x, "float8": Float8Quantizer(), "mxfp8": MXFP8Quantizer()}
    x, w = sample(64, 128, seed=1) * 3, sample(32, 128, seed=2) / 7
    for a, b in itertools.permutations(kinds, 2):
        left, right = kinds[b](x), kinds[a](w)
        values = [
            each.dequantize(dtype=torch.float32) if hasattr(each, "get_metadata") else each for each in (left, right)
        ]
        expected = alpha * (values[0].double() @ values[1].double().t())
        got = general_gemm(right, left, out_dtype=out_dtype, alpha=alpha)[0]
        assert (got.double() - expected).abs().max() <= 2.0**-8 * expected.abs().max(), (a, b)
