"""Products that a backend computes at once: what it is given, and what is left to torch; the backend is the test's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fp4ref import registry, te  # noqa: E402
from fp4ref.te import device_product as module  # noqa: E402
from fp4ref.te.device_product import device_product  # noqa: E402


class ElsewhereTensor(torch.Tensor):
    """A tensor that may keep its elements in another place."""


@pytest.fixture
def filled(monkeypatch):
    """Serve products by torch; returns the list of what they were told to fill."""
    noted = []

    def multiply(call, left, right, factors, bias, out):
        noted.append(out)
        matrices = [(matrix.t() if x.transposed else matrix).float() for x in (left, right) for matrix in [values(x)]]
        sums = matrices[0] @ matrices[1].t()
        result = (sums if bias is None else sums + bias.float()).bfloat16()
        return result if out is None else out.copy_(result)

    monkeypatch.setattr(module, "server", lambda *call, **kinds: (call, multiply))
    return noted


def values(x):
    """Return the matrix of an operand as it is stored."""
    if x.decode is None:
        return x.arrays[0]
    assert x.decode.operation == "block_values"
    return registry.choose(x.decode, None)(x.decode, *x.arrays, x.squares)


def sample(*shape):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(1)).bfloat16()


def product(a, b, out=None, bias=None):
    return device_product(a, "row", b, "row", (), bias, out, torch.device("cpu"))


@pytest.mark.rule("TEL-11", "TEL-32")
def test_out_is_filled_and_counts_as_changed(filled):
    a, b, out = sample(8, 16), sample(4, 16), torch.zeros(2, 2, 8, dtype=torch.bfloat16)
    version = out._version
    result = product(a, b, out)
    assert result.data_ptr() == out.data_ptr()
    assert torch.equal(out.view(4, 8), (b.float() @ a.float().t()).bfloat16())
    assert filled[0].shape == (4, 8)
    assert out._version > version + 1  # that of the imagined backend is one


@pytest.mark.rule("TEL-11", "TEL-32")
@pytest.mark.parametrize("case", ["operand", "part of an operand", "bias", "gradient", "type", "gaps", "subclass"])
def test_results_that_cannot_be_written_at_once_are_new(filled, case):
    x, bias = sample(16, 16), sample(16)
    store = torch.zeros(16 * 32, dtype=torch.bfloat16)
    if case == "part of an operand":
        x = store[:256].view(16, 16).copy_(x)
    if case == "bias":
        bias = store[64:80].copy_(bias)
    out = {
        "operand": x,
        "part of an operand": store[255:511].view(16, 16),
        "bias": store[:256].view(16, 16),
        "gradient": torch.zeros(16, 16, dtype=torch.bfloat16, requires_grad=True),
        "type": torch.zeros(16, 16),
        "gaps": store.view(16, 32)[:, :16],
        "subclass": store[:256].view(16, 16).as_subclass(ElsewhereTensor),
    }[case]
    expected = (x.float() @ x.float().t() + bias.float()).bfloat16()
    assert torch.equal(product(x, x, out, bias), expected)
    assert filled == [None]
    store = torch.zeros(512, dtype=torch.bfloat16)
    assert product(store[:256].view(16, 16), x, store[256:].view(16, 16)) is not None  # neighbours
    assert filled[1] is not None


@pytest.mark.rule("TEL-31")
@pytest.mark.parametrize("change", [lambda x: x.as_subclass(ElsewhereTensor), torch._neg_view, lambda x: x.float()])
def test_other_tensors_are_left_to_torch(filled, change):
    x, bias = sample(16, 16), sample(16)
    assert product(change(x), x) is None
    assert product(x, change(x)) is None
    assert product(x, x, bias=change(bias)) is None
    assert not filled
    assert product(torch.nn.Parameter(x), x, bias=torch.nn.Parameter(bias)) is not None


def blockwise(x, side):
    return te.Float8BlockQuantizer(te.DType.kFloat8E4M3, block_scaling_dim=side)(x)


@pytest.mark.rule("TEL-31", "TEL-49")
@pytest.mark.parametrize("side", [1, 2])
def test_block_scaled_operands_are_given_as_they_are_stored(filled, side):
    a, b = sample(130, 272), sample(48, 272) * 8
    for wide in (a, b):
        wide[:, 128:] *= 64  # other scales
    expected = b.float() @ a.float().t()
    assert torch.equal(product(blockwise(a, side), blockwise(b, 1)), expected.bfloat16())
    assert torch.equal(product(a, blockwise(b, side)), expected.bfloat16())
    turned = device_product(
        blockwise(a.t().contiguous(), side), "column", b, "row", (), None, None, torch.device("cpu")
    )
    assert torch.equal(turned, expected.bfloat16())
    assert len(filled) == 3
    other = blockwise(a, side)
    other._rowwise_scale_inv = other._rowwise_scale_inv[:, ::2].repeat_interleave(2, 1).t().contiguous().t()
    assert product(other, b) is None  # scales with gaps are left to torch


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.rule("TEL-31", "TEL-32", "TEL-49", "TEL-75")
@pytest.mark.parametrize("sides", [(1, 1), (2, 1), (1, 2), (2, 2)], ids=str)
@pytest.mark.parametrize("shape", [(256, 128, 384), (136, 40, 72), (131, 130, 129)], ids=str)
def test_block_scaled_products_on_a_device_are_those_of_a_cpu(sides, shape):
    rows, columns, depth = shape
    for layout in ("TN", "NN", "NT"):
        a = sample(*((columns, depth) if layout[0] == "T" else (depth, columns)))
        b = sample(*((rows, depth) if layout[1] == "N" else (depth, rows))) * 8
        a[: a.shape[0] // 2] *= 64
        bias = sample(columns)
        made = [
            [
                te.general_gemm(
                    blockwise(a.to(device), sides[0]),
                    blockwise(b.to(device), sides[1]),
                    torch.bfloat16,
                    layout=layout,
                    bias=added,
                )[0].cpu()
                for _ in range(3)
                for added in (None, bias.to(device))
            ]
            for device in ("cpu", "cuda")
        ]
        for on_cpu, on_device in zip(*made, strict=True):
            assert torch.equal(on_cpu.view(torch.int16), on_device.view(torch.int16)), layout
