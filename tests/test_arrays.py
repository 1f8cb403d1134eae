"""Arrays of other libraries in, results of the same kind out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import fp4ref
from fp4ref.layout import STANDARD_LAYOUTS


class OnlyDLPack:
    """An array of a library that offers DLPack, a dtype and a shape, and nothing else."""

    def __init__(self, array: np.ndarray) -> None:
        self._array, self.dtype, self.shape = array, array.dtype, array.shape

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


class OnAnotherDevice(OnlyDLPack):
    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.mark.rule("NUM-3")
def test_dlpack() -> None:
    x = np.float32(np.random.default_rng(1).standard_normal((8, 32)))
    assert bytes(fp4ref.quantize(OnlyDLPack(x), "nvfp4").row.data) == bytes(fp4ref.quantize(x, "nvfp4").row.data)


class NothingElse:
    """An object with the two methods of DLPack, and no dtype and no shape."""

    def __init__(self, array: object) -> None:
        self._array = array

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()


@pytest.mark.rule("NUM-3")
def test_an_object_that_has_only_the_methods_of_dlpack() -> None:
    x = np.float32(np.random.default_rng(1).standard_normal((8, 32)))
    expected = fp4ref.quantize(x, "nvfp4")
    assert fp4ref.quantize(NothingElse(x), "nvfp4") == expected
    assert fp4ref.quantize_grouped(NothingElse(x), [8], "nvfp4")[0] == expected
    torch = pytest.importorskip("torch", reason="needs the extra [torch]")
    t = torch.from_numpy(x).bfloat16()  # a type that NumPy does not take
    got = fp4ref.quantize(NothingElse(t), "nvfp4")
    assert bytes(got.row.data.numpy()) == bytes(fp4ref.quantize(t, "nvfp4").row.data.numpy())


@pytest.mark.rule("CNF-5")
def test_an_array_on_another_device_is_never_copied_silently() -> None:
    with pytest.raises(fp4ref.BackendError, match="cuda"):
        fp4ref.quantize(OnAnotherDevice(np.zeros((2, 16), np.float32)), "nvfp4", backend="numpy")


@pytest.mark.rule("NUM-3", "DEQ-3")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_tensors(dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra [torch]")
    x = np.random.default_rng(1).standard_normal((2, 32, 48)).astype(np.float32)
    t = torch.from_numpy(x).to(getattr(torch, dtype)).requires_grad_()
    a = x.astype(getattr(ml_dtypes, dtype, dtype))
    for layout in (form.name for form in STANDARD_LAYOUTS):
        q = fp4ref.quantize(t, "nvfp4", "both", layout, backend="numpy")
        expected = fp4ref.quantize(a, "nvfp4", "both", layout, backend="numpy")
        assert (q.dtype, q.shape) == (dtype, (2, 32, 48))
        for got, want in zip((*q.row, *q.column), (*expected.row, *expected.column), strict=True):
            assert isinstance(got, torch.Tensor)
            assert bytes(got.numpy().tobytes()) == want.tobytes()
        y = fp4ref.dequantize(q, getattr(torch, dtype), backend="numpy")
        assert y.dtype is getattr(torch, dtype)
        again = fp4ref.dequantize(expected, dtype, backend="numpy")
        assert y.view(torch.uint8).numpy().tobytes() == again.tobytes()
        back = fp4ref.to_layout(q, "linear")
        assert isinstance(back.row.scales, torch.Tensor)
    strided = t.detach().transpose(1, 2)
    same = fp4ref.quantize(strided, "nvfp4").row.data.numpy()
    assert same.tobytes() == fp4ref.quantize(strided.contiguous(), "nvfp4").row.data.numpy().tobytes()
    amax = fp4ref.quantize(t, "nvfp4", amax=torch.tensor([3.0])).row.amax
    assert amax.tolist() == [3.0]
    with pytest.raises(fp4ref.DTypeError, match="float64"):
        fp4ref.quantize(t.double(), "nvfp4")


@pytest.mark.parametrize("backend", ["numpy", "cpu"])
def test_the_memory_of_an_input_stays_resizable(backend: str) -> None:
    torch = pytest.importorskip("torch", reason="needs the extra [torch]")
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.zeros(32, 32, dtype=dtype)
        fp4ref.quantize(x, "nvfp4", backend=backend)
        assert x.untyped_storage().resizable()
