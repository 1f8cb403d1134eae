"""Two devices in one process: each call runs where its arrays are, whatever the current device is."""

from __future__ import annotations

import itertools

import pytest

import fp4ref

torch = pytest.importorskip("torch", exc_type=ImportError)

from fp4ref import te  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.device_count() < 2, reason="no two CUDA devices"),
]

DEVICES = [torch.device("cuda", index) for index in range(2)]
SPECS = ["nvfp4", "nvfp4-rht", "nvfp4-4over6", "mxfp8-e4m3", "mxfp6-e3m2"]


def same(a, b):
    return torch.equal(a.cpu().contiguous().view(torch.uint8), b.cpu().contiguous().view(torch.uint8))


def parts(q):
    return [part for data in (q.row, q.column) for part in data or () if part is not None]


@pytest.mark.rule("CNF-5")
@pytest.mark.parametrize("layout", ["linear", "tiled_128x4"])
@pytest.mark.parametrize("spec", SPECS)
def test_calls_run_where_their_arrays_are(spec, layout):
    """Each device is asked five times, first as the current one and then not, or the other way round."""
    generator = torch.Generator().manual_seed(3)
    for turn, device, current in itertools.product(range(5), DEVICES, DEVICES):
        x = torch.randn(256, 192, generator=generator).bfloat16() * 2.0**turn
        want = fp4ref.quantize(x, spec, "both", layout, backend="numpy")
        with torch.cuda.device(current):
            q = fp4ref.quantize(x.to(device), spec, "both", layout, backend="cuda")
            assert all(part.device == device for part in parts(q))
            assert all(itertools.starmap(same, zip(parts(q), parts(want), strict=True)))
            values = fp4ref.dequantize(q, "bfloat16", backend="cuda")
            moved = fp4ref.to_layout(q, "linear", backend="cuda")
            assert values.device == moved.row.data.device == device
            assert same(values, fp4ref.dequantize(want, "bfloat16", backend="numpy"))
            filled = fp4ref.quantize(x.to(device), spec, "both", layout, backend="cuda", out=q)
            assert all(itertools.starmap(same, zip(parts(filled), parts(want), strict=True)))


@pytest.mark.rule("CNF-5")
def test_arrays_of_two_devices_are_refused():
    x = torch.ones(64, 64, device=DEVICES[0]).bfloat16()
    for _ in range(4):
        with pytest.raises(fp4ref.BackendError):
            fp4ref.quantize(x, "nvfp4", backend="cuda", amax=torch.ones(1, device=DEVICES[1]))
        fp4ref.quantize(x, "nvfp4", backend="cuda", amax=torch.ones(1, device=DEVICES[0]))


@pytest.mark.rule("SR-7")
def test_random_bytes_are_made_on_the_device_that_is_named():
    for device, current in itertools.product((*DEVICES, "cuda:0", "cuda:1"), DEVICES):
        with torch.cuda.device(current):
            made = fp4ref.random_bits((64, 32), "row", 5, 7, device=device, backend="cuda")
        assert made.device == torch.device(device)
        assert same(made, torch.from_numpy(fp4ref.random_bits((64, 32), "row", 5, 7)))


@pytest.mark.rule("TEM-1", "TEL-6")
@pytest.mark.parametrize("recipe", [None, te.recipe.NVFP4BlockScaling(), te.recipe.MXFP8BlockScaling()], ids=str)
def test_layers_on_two_devices_have_equal_bits(recipe):
    steps = {}
    for device in DEVICES:
        with torch.cuda.device(device):
            torch.manual_seed(0)
            module = te.Linear(256, 128, params_dtype=torch.bfloat16, device=device)
            for turn in range(5):  # the later ones repeat what the second one did
                x = torch.linspace(-3, 3 + turn, 128 * 256, device=device).view(128, 256).bfloat16().requires_grad_()
                module.zero_grad(set_to_none=True)
                with te.autocast(enabled=recipe is not None, recipe=recipe):
                    y = module(x)
                y.square().sum().backward()
                steps[device, turn] = [y.detach(), x.grad, *(p.grad for p in module.parameters())]
    for turn in range(5):
        first, second = (steps[device, turn] for device in DEVICES)
        assert all(itertools.starmap(same, zip(first, second, strict=True)))
