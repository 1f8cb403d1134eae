"""Products of the CUDA backend with a library of the test's own, which reads descriptions and memory like cuBLASLt."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import itertools
import math
import warnings
import weakref

import numpy as np
import pytest

import fp4ref
from fp4ref.errors import BackendError, DTypeError, ShapeError
from fp4ref.registry import Call
from fp4ref.stored import Stored

torch = pytest.importorskip("torch", exc_type=ImportError)
buffers = pytest.importorskip("fp4ref_cuda.buffers")

from fp4ref_cuda import cublas, launch, maxima, per_tensor, programs, recording, words  # noqa: E402
from fp4ref_cuda import multiply as module  # noqa: E402
from fp4ref_cuda.multiply import multiply  # noqa: E402
from tests.test_cuda_programs import Imagined  # noqa: E402


class ImaginedCublas:
    """The functions that the backend calls, on matrices of bfloat16 that lie column after column."""

    def __init__(self):
        self.made, self.destroyed, self.status, self.products = {}, [], 0, []

    def __getattr__(self, name):
        if name.endswith("Create"):
            return lambda made, *arguments: self._create(made._obj, arguments)
        if name.endswith("SetAttribute"):
            return self._set
        if name.endswith("Destroy"):
            return lambda of: self.destroyed.append(self.made.pop(of.value)) or 0
        raise AttributeError(name)

    def _create(self, made, arguments):
        made.value = 1 + len(self.made) + len(self.destroyed)
        self.made[made.value] = {"arguments": [getattr(each, "value", each) for each in arguments]}
        return 0

    def _set(self, of, attribute, value, size):
        assert size.value == ctypes.sizeof(value._obj)
        self.made[of.value][attribute] = value._obj.value
        return 0

    def cublasLtMatmulAlgoGetHeuristic(self, handle, wanted, a, b, c, d, limits, asked, found, count):  # noqa: N802
        if self.status:
            return self.status
        found._obj.workspace, count._obj.value = 64, 1
        return 0

    class Multiply:
        """A function with argument types."""

        argtypes = ()

        def __init__(self, of):
            self.of = of

        def __call__(self, *arguments):
            assert len(arguments) == len(self.argtypes) == 16
            return self.of.multiplied(*arguments)

    @property
    def cublasLtMatmul(self):  # noqa: N802
        return self.Multiply(self)

    def _matrix(self, address, layout):
        kind, rows, columns, step = self.made[layout.value]["arguments"]
        assert (kind, step) == (14, rows)
        numbers = (ctypes.c_int16 * (rows * columns)).from_address(address)
        return torch.frombuffer(numbers, dtype=torch.bfloat16).view(columns, rows).t()

    def multiplied(self, handle, wanted, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, *rest):
        about = self.made[wanted.value]
        assert about["arguments"] == [68, 0]
        assert (c, of_c.value) == (d, of_d.value)
        assert beta == alpha + 4
        by, nothing = (ctypes.c_float * 2).from_address(alpha)
        assert nothing == 0
        left, right = self._matrix(a, of_a), self._matrix(b, of_b)
        left, right = left.t() if about[3] else left, right.t() if about[4] else right
        sums = left.float() @ right.float() * by
        if about.get(7) == 4:
            bias = (ctypes.c_int16 * len(sums)).from_address(about[8])
            sums += torch.frombuffer(bias, dtype=torch.bfloat16).float()[:, None]
        self._matrix(d, of_d).copy_(sums.bfloat16())
        self.products.append((about[2], *rest[1:]))
        return 0


@dataclasses.dataclass(frozen=True)
class HostLibrary(Imagined):
    """Memory of the CPU in place of a device's."""

    def current(self):
        return warnings.catch_warnings()


@pytest.fixture
def library(monkeypatch):
    imagined = ImaginedCublas()
    monkeypatch.setattr(cublas, "_library", lambda: imagined)
    for each in (cublas, launch, programs):
        monkeypatch.setattr(each, "enter", lambda library: None)
    monkeypatch.setattr(cublas, "capability", lambda ordinal: (9, 0))
    monkeypatch.setattr(programs, "current_library", HostLibrary)
    monkeypatch.setattr(programs, "_programs", {})
    monkeypatch.setattr(buffers, "adopt", lambda operation, x: (x, HostLibrary(ordinal=getattr(x, "ordinal", -1))))
    monkeypatch.setattr(module, "launch", multiplied_factors)
    cublas.product.cache_clear()
    cublas._handle.cache_clear()
    yield imagined
    cublas.product.cache_clear()
    cublas._handle.cache_clear()


def multiplied_factors(library, name, prelude, grid, arguments, block):
    """Launch the kernel of a product's factor, on the host."""
    assert (name, grid, block) == ("product_factor", (1,), 1)
    words = prelude.replace("=", " ").replace(";", " ").split()
    values = {key: int(words[words.index(key) + 1]) for key in ("FACTORS", "READ")}

    def start(stream, at):
        words = (ctypes.c_uint64 * len(arguments)).from_address(at + 48)
        factor = np.float32(1)
        for i in range(values["FACTORS"]):
            read = values["READ"] >> i & 1
            by = ctypes.c_float.from_address(words[i]) if read else ctypes.c_float.from_buffer(words, 8 * i)
            with np.errstate(over="ignore", invalid="ignore"):
                factor *= np.float32(by.value)
        (ctypes.c_float * 2).from_address(words[4])[:] = float(factor), 0.0

    launch.run(library, start, arguments)


def asked(rows, columns):
    return Call("multiply", source="bfloat16", to="bfloat16", device="cuda", shape=(rows, columns))


def sample(*shape, seed=1):
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


@pytest.mark.rule("TEL-11", "TEL-12", "TEL-31", "TEL-32")
@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("factors", [(), (0.5,), (3.0, [0.25], [2.0], -1.5)], ids=len)
@pytest.mark.parametrize("bias", [False, True])
def test_matrices_are_described_as_they_lie(library, turned, factors, bias):
    call = asked(24, 40)
    for seed in range(3):  # the later ones repeat what the first one started
        a, b, added = sample(24, 56, seed=seed), sample(40, 56, seed=seed + 9), sample(40, seed=seed) if bias else None
        stored = [
            Stored(((x.t() if turn else x).contiguous(),), None, turn) for x, turn in zip((a, b), turned, strict=True)
        ]
        out = torch.full((24, 40), torch.nan, dtype=torch.bfloat16) if seed == 2 else None
        numbers = tuple(each if isinstance(each, float) else torch.tensor(each) for each in factors)
        got = multiply(call, *stored, numbers, added, out)
        expected = a.float() @ b.float().t() * float(np.prod([np.float32(each).reshape(()) for each in factors]))
        assert torch.equal(got, (expected if added is None else expected + added.float()).bfloat16()), seed
        assert out is None or got is out
        assert library.products[seed] == (int(bool(factors)), library.products[seed][1], 64, 7)
    assert len(programs._programs) == 2  # with and without out


@pytest.mark.rule("TEL-12")
def test_numbers_are_told_apart_by_their_bits(library):
    a, call = Stored((torch.ones(8, 8, dtype=torch.bfloat16),)), asked(8, 8)
    nan, infinity = float("nan"), float("inf")
    for number, expected in ((0.0, "0"), (-0.0, "-0"), (0.0, "0"), (nan, "nan"), (-nan, "nan"), (1e300, "inf")):
        got = multiply(call, a, a, (number,), None)
        assert {f"{each:g}".removeprefix("-" * math.isnan(each)) for each in got.flatten().tolist()} == {expected}
    assert multiply(call, a, a, (float("nan"),), None).isnan().all()
    assert multiply(call, a, a, (infinity,), None).isinf().all()
    assert len(programs._programs) == 6


@pytest.mark.rule("TEL-30")
def test_arrays_are_required_before_anything_reads_them(library):
    x = sample(8, 8)
    far = sample(8, 8).as_subclass(type("FarTensor", (torch.Tensor,), {"ordinal": 1}))
    call, plain = asked(8, 8), Stored((x,))
    for left, right, rest, error in (
        (plain, Stored((far,)), ((), None), BackendError),
        (plain, plain, ((), None, far), BackendError),
        (plain, plain, ((), far[0]), BackendError),
        (plain, plain, ((), None, torch._neg_view(x)), BackendError),
        (plain, plain, ((), None, x.float()), DTypeError),
        (plain, Stored((x.float(),)), ((), None), DTypeError),
        (plain, Stored((x[:, :4],)), ((), None), ShapeError),
        (Stored((sample(16, 8)[::2],)), plain, ((), None), BackendError),
    ):
        with pytest.raises(error):
            multiply(call, left, right, *rest)
    assert not library.products


@pytest.mark.rule("TEL-30")
def test_codes_have_the_sizes_that_the_kernel_reads(library):
    from fp4ref import plans, registry
    from fp4ref.layout import LINEAR_PADDED
    from fp4ref.te import specifications

    spec = specifications.NVFP4_OPERAND
    found = plans.to_dequantize(
        spec, "float32", (16, 32), "row", LINEAR_PADDED, "cpu", None, "bfloat16", False, False, registry.registered()
    )
    codes, x = torch.zeros(16, 16, dtype=torch.uint8), Stored((sample(16, 32),))
    short = torch.zeros(16, 2, dtype=torch.uint8)
    with pytest.raises(ShapeError, match="scales"):
        multiply(asked(16, 16), x, Stored((codes, short, None), found[0]), (), None)


@pytest.mark.rule("TEL-32")
@pytest.mark.parametrize("sizes", [(8, 8, 4), (8, 12, 8), (1, 8, 8)], ids=str)
def test_rows_that_begin_elsewhere_are_left_to_torch(library, sizes):
    rows, columns, depth = sizes
    a, b = Stored((sample(rows, depth),)), Stored((sample(columns, depth),))
    assert multiply(asked(rows, columns), a, b, (0.5,), None) is None
    assert not library.products


@pytest.mark.rule("TEL-32")
def test_devices_that_were_not_tried_are_left_to_torch(library, monkeypatch):
    monkeypatch.setattr(cublas, "capability", lambda ordinal: (8, 0))
    x = Stored((sample(8, 8),))
    assert multiply(asked(8, 8), x, x, (0.5,), None) is None
    assert not library.products


@pytest.mark.rule("CNF-5")
def test_descriptions_end_with_their_products(library):
    x = Stored((sample(8, 8),))
    multiply(asked(8, 8), x, x, (), sample(8))
    assert len(library.made) == 1 + 4  # the handle; the product and three matrices
    programs._programs.clear()
    cublas.product.cache_clear()
    gc.collect()
    assert len(library.made) == 1
    library.status = 15
    assert multiply(asked(8, 8), x, x, (), None) is None
    assert len(library.made) == 1
    library.status = 7
    with pytest.raises(BackendError, match="status 7"):
        multiply(asked(8, 8), x, x, (0.5,), None)


@pytest.mark.rule("CNF-5")
def test_nothing_is_multiplied_in_a_rehearsal(library, monkeypatch):
    monkeypatch.setattr(launch.recording.this, "rehearsal", {}, raising=False)
    monkeypatch.setattr(programs, "current_library", lambda: None)
    x = Stored((sample(8, 8),))
    assert multiply(asked(8, 8), x, x, (), None) is not None
    assert not library.products


@pytest.mark.rule("CNF-5")
def test_a_started_kernel_keeps_its_code_and_gives_the_driver_its_words(monkeypatch):
    pytest.importorskip("cuda.bindings.driver", exc_type=ImportError)
    seen = []

    class Driver:
        def cuLaunchKernelEx(self, config, function, parameters, extra):  # noqa: N802
            sizes = list((ctypes.c_uint32 * 7).from_address(config))
            end, words, size_at, size, last = list((ctypes.c_uint64 * 5).from_address(extra))
            assert (end, size_at, last, parameters) == (1, 2, 0, None)
            count = ctypes.c_uint64.from_address(size).value
            seen.append((function, sizes, list((ctypes.c_uint64 * (count // 8)).from_address(words))))
            return 0

    class Code:
        """Machine code that a kernel belongs to."""

    monkeypatch.setattr(launch, "driver_library", Driver)
    monkeypatch.setattr(launch, "enter", lambda library: None)
    code = Code()
    alive = weakref.ref(code)
    kernel = recording.Launch(
        "imagined", recording.LoadedKernel(code, 5), recording.Shape((3, 2), 64, 16, early=False), (0, 0)
    )
    start = launch.starter(Imagined(), kernel)
    del code, kernel
    gc.collect()
    assert alive() is not None
    for arguments in ((1, -1), (1 << 40, 7)):
        words.start_once(start, 0, arguments)
    assert seen == [
        (5, [3, 2, 1, 64, 1, 1, 16], [1, (1 << 64) - 1]),
        (5, [3, 2, 1, 64, 1, 1, 16], [1 << 40, 7]),
    ]


@pytest.mark.rule("TEL-21")
def test_a_tensor_is_quantized_by_its_own_scale_in_one_program(library, monkeypatch):
    started = []

    def noted(library, name, prelude, grid, arguments, block=256):
        launch.run(library, lambda stream, at: started.append((name, words.arguments_at(at))), arguments)

    for each in (maxima, per_tensor):
        monkeypatch.setattr(each, "launch", noted)
    monkeypatch.setattr(maxima, "multiprocessors", lambda ordinal: 4)
    monkeypatch.setattr(buffers, "on_device", lambda operation, value, library, dtype: value)
    call = Call("tensor_quantize", fp4ref.MXFP8_E4M3, "bfloat16", device="cuda", shape=(24, 40))
    for turn in range(3):  # the later ones repeat what the first one started
        x = sample(24, 40, seed=turn)
        codes, inverse = per_tensor.tensor_quantize(call, x, 0.25, power_of_two=True)
        (first, search), (second, finish), (third, scale), (last, encode) = started
        assert (first, second, third, last) == ("amax", "amax_finish", "tensor_scale", "tensor_codes")
        assert (search[0], encode[0]) == (x.data_ptr(), x.data_ptr())
        assert finish[0] == search[4]
        assert (scale[0], scale[1], scale[4]) == (finish[3], 0x3E800000, inverse.data_ptr())
        assert encode[1:] == [24 * 40, scale[3], codes.data_ptr()]
        assert scale[3] != scale[4]
        assert (codes.shape, codes.dtype, inverse.shape) == ((24, 40), torch.uint8, (1,))
        started.clear()
    assert len(programs._programs) == 1
    per_tensor.tensor_quantize(call, x, 0.5, power_of_two=True)
    assert len(programs._programs) == 2
