"""Every CUDA kernel once or a few times on small inputs, against the golden model: what compute-sanitizer runs.

Each buffer is an allocation of its own, so that an access outside one is seen.
"""

from __future__ import annotations

import os
import sys
from itertools import product
from pathlib import Path

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import ml_dtypes
import numpy as np
import torch

import fp4ref
from fp4ref import te
from fp4ref.layout import TILED_128X4
from fp4ref.quantized import Directions
from fp4ref.registry import Call
from fp4ref.te.rng import RngState
from fp4ref_cuda import compile as compiler
from fp4ref_cuda import launch, operations

BOTH = "both"
CALLS = (  # spec, shape, dtype, directions, layout
    ("nvfp4", (192, 256), "bfloat16", BOTH, "tiled_128x4"),
    ("nvfp4-rht", (192, 256), "bfloat16", BOTH, "tiled_128x4"),
    ("nvfp4-rht", (48, 40), "bfloat16", BOTH, "linear"),
    ("nvfp4", (130, 1032), "bfloat16", "row", "tiled_128x4"),
    ("nvfp4", (130, 72), "bfloat16", "row", "linear_padded"),
    ("nvfp4", (130, 70), "float32", BOTH, "tiled_128x4"),
    ("nvfp4-2d", (65, 129), "float16", BOTH, "tiled_8x4"),
    ("nvfp4-row-scaled", (130, 70), "bfloat16", BOTH, "linear"),
    ("nvfp4-4over6", (33, 48), "bfloat16", "column", "tiled_128x4"),
    ("mxfp8-e4m3", (144, 208), "bfloat16", BOTH, "tiled_128x4"),
    ("mxfp8-e5m2", (130, 70), "float32", BOTH, "linear_padded"),
    ("mxfp4", (130, 70), "bfloat16", "column", "tiled_128x4"),
    ("vllm.nvfp4_kernel", (33, 48), "bfloat16", BOTH, "linear"),
    ("nvfp4", (130, 64), "bfloat16", "row", "triton.blackwell_scale"),
    ("nvfp4-4over6", (130, 512), "bfloat16", "row", "tiled_128x4"),
    ("mxfp8-e4m3", (130, 512), "bfloat16", "row", "linear"),
    ("mxfp6-e3m2", (130, 512), "bfloat16", "row", "linear"),
)
CHECKS = {"self_check", "reciprocal_check"}  # which run where a device has what they check, and once for a cache
RECIPES = (
    te.recipe.NVFP4BlockScaling,
    te.recipe.MXFP8BlockScaling,
    te.recipe.Float8CurrentScaling,
    te.recipe.Float8BlockScaling,
    te.recipe.DelayedScaling,
)
GROUPS = (("nvfp4-rht", (128, 0, 256)), ("nvfp4", (128, 0, 256)), ("nvfp4", (33, 0, 100)), ("mxfp8-e4m3", (48, 80)))
DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32}


def values(shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Normal numbers, with a few that no threshold covers."""
    rng = np.random.default_rng(shape)
    x = rng.standard_normal(shape)
    x[rng.integers(0, 97, shape) == 0] = np.nan
    return x.astype(DTYPES[dtype])


def cuda(x: np.ndarray) -> torch.Tensor:
    if x.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16).cuda()
    return torch.from_numpy(x).cuda()


def same(got: fp4ref.Quantized, expected: fp4ref.Quantized) -> None:
    for mine, theirs in zip((got.row, got.column), (expected.row, expected.column), strict=True):
        if theirs is None:
            continue
        assert np.array_equal(mine.data.cpu().numpy(), theirs.data)
        if got.scale_layout != "linear_padded":
            assert np.array_equal(mine.scales.cpu().numpy(), theirs.scales)


def note_kernels() -> set[str]:
    """Return the names of the kernels that are loaded from here on."""
    names, cubin = set(), launch.cubin

    def noting(name: str, prelude: str, target: str) -> bytes:
        names.add(name)
        return cubin(name, prelude, target)

    launch.cubin = noting
    return names


def train(recipe: te.recipe.Recipe) -> None:
    """Three steps of a module, the third by the launches that the second one recorded."""
    module = te.Linear(256, 128, params_dtype=torch.bfloat16, device="cuda")
    x = torch.randn(128, 256, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    for _ in range(3):
        with te.autocast(enabled=True, recipe=recipe):
            module(x).backward(torch.ones(128, 128, dtype=torch.bfloat16, device="cuda"))


def update(*quantizers: te.Quantizer) -> None:
    """Update tensors, and keep what they hold, by the calls of a kind that decide and by those that do not."""
    xs = [cuda(values((160, 96), "bfloat16")) * factor for factor in (1.0, 2.0)]
    flags = [torch.tensor([word], device="cuda") for word in (0.0, 1.0)]
    for quantizer in quantizers:
        tensor = quantizer(xs[0])
        for x in xs * 3:
            wanted = quantizer(x).buffers()
            quantizer.update_quantized(x, tensor, noop_flag=flags[0])
            quantizer.update_quantized(xs[0] * 3, tensor, noop_flag=flags[1])
            assert all(map(torch.equal, tensor.buffers(), wanted))


def columns_alone() -> None:
    """Decode columns of MXFP8, compact and as products read them, to the values that both directions of one x have."""
    x = values((96, 160), "bfloat16")
    for swizzled in (False, True):
        quantizer = te.MXFP8Quantizer(rowwise=False)
        quantizer.optimize_for_gemm = swizzled
        q = fp4ref.quantize(x, "mxfp8-e4m3", "column", backend="numpy")
        expected = fp4ref.dequantize(q, "bfloat16", "column", backend="numpy").T
        for _ in range(3):
            made = quantizer(cuda(x)).dequantize()
            assert made.cpu().view(torch.int16).numpy().tobytes() == np.ascontiguousarray(expected).tobytes()


def numbers_and_draws() -> None:
    """Quantize by maxima that are numbers, of matrices that lie across, and by draws of a state: as others do."""
    x = values((128, 192), "bfloat16")
    for amax in (3.0, 7.5, 3.0, 3.0, 3.0):
        for given in (cuda(x), cuda(np.ascontiguousarray(x.T)).T):
            same(
                fp4ref.quantize(given, "nvfp4", BOTH, "tiled_128x4", amax=amax, backend="cuda"),
                fp4ref.quantize(x, "nvfp4", BOTH, "tiled_128x4", amax=amax, backend="numpy"),
            )
    quantizer = te.NVFP4Quantizer(stochastic_rounding=True)
    for seed, offset in ((1, 0), (2**64 - 1, 2**62), (1, 1024), (1, 0)):
        quantizer.rng_state = RngState(seed, offset)
        stream = (
            fp4ref.random_bits((128, 192), seed=seed, stream=offset),
            fp4ref.random_bits((128, 192), seed=seed, stream=offset, direction="column"),
        )
        expected = fp4ref.quantize(
            x, "nvfp4-sr", BOTH, "linear_padded", random_bits=Directions(*stream), backend="numpy"
        )
        for made in (quantizer(cuda(x)), quantizer.update_quantized(cuda(x), quantizer(cuda(x) * 3))):
            for name, part in (("row", expected.row), ("column", expected.column)):
                got = getattr(made, f"_{name}wise_data"), getattr(made, f"_{name}wise_scale_inv")
                for mine, theirs in zip(got, part[:2], strict=True):
                    assert mine.cpu().numpy().tobytes() == theirs.tobytes(), (seed, offset, name)


def main() -> None:
    paths, kernels = set(), note_kernels()
    for name, shape, dtype, directions, layout in CALLS:
        x = values(shape, dtype)
        q = fp4ref.quantize(cuda(x), name, directions, layout, backend="cuda")
        paths.add(operations.last_plan().path)
        expected = fp4ref.quantize(x, name, directions, layout, backend="numpy")
        same(q, expected)
        for direction in ("row", "column") if directions == BOTH else (directions,):
            for out in ("bfloat16", "float32"):
                inverse = direction == "column" and q.spec.hadamard is not None
                fp4ref.dequantize(q, out, direction, inverse_hadamard=inverse, backend="cuda")
                paths.add(operations.last_plan().path)
        fp4ref.to_layout(q, "tiled_8x4", backend="cuda")
    for name, splits in GROUPS:
        x = values((sum(splits), 128), "bfloat16")
        ready = [rows for rows in splits if rows % 16 == 0 or "rht" not in name]
        group = fp4ref.quantize_grouped(cuda(x), ready, name, BOTH, "tiled_128x4", backend="cuda")
        paths.add(operations.last_plan().path)
        for q, expected in zip(
            group, fp4ref.quantize_grouped(x, ready, name, BOTH, "tiled_128x4", backend="numpy"), strict=True
        ):
            same(q, expected)
    x = cuda(values((64, 256), "bfloat16"))
    call = Call(
        "quantize_both", fp4ref.NVFP4_RHT, "bfloat16", "both", layout=TILED_128X4, device="cuda", shape=(64, 256)
    )
    operations.quantize_both(call, x, Directions(np.ones(1, np.float32), np.ones(1, np.float32)))
    operations.quantize_both(call, x, path="tiles")
    operations.hadamard(x, fp4ref.NVFP4_RHT)
    fp4ref.random_bits((33, 48), device="cuda", backend="cuda")
    for columns in (64, 39):
        end = Call("finish_product", source="bfloat16", to="bfloat16", device="cuda", shape=(33, columns))
        operations.finish_product(end, torch.ones(33, columns, device="cuda"), (0.5,), None)
    for size in (64, 512):  # few products, and more than one kernel makes
        q = fp4ref.quantize(cuda(values((size, size), "bfloat16")), "nvfp4")
        for mode in ("exact", "blockwise", "fast"):
            fp4ref.gemm(q, q, mode, backend="cuda")
    for layout, name in product(("linear", "linear_padded"), ("nvfp4", "nvfp4-rht", "nvfp4-2d", "nvfp4-sr")):
        x = values((192, 320), "bfloat16")
        bits = Directions(cuda(np.zeros((192, 320), np.uint8)), cuda(np.zeros((320, 192), np.uint8)))
        drawn = {"random_bits": bits} if name == "nvfp4-sr" else {}
        fp4ref.quantize(cuda(x), name, BOTH, layout, backend="cuda", **drawn)
        paths.add(operations.last_plan().path)
    columns_alone(), numbers_and_draws()
    for recipe in RECIPES:
        train(recipe())
    for shape in ((130, 300), (128, 256)):
        x = cuda(values(shape, "bfloat16"))
        te.Float8CurrentScalingQuantizer()(x).dequantize()
        for squares in (1, 2):
            te.Float8BlockQuantizer(block_scaling_dim=squares)(x).dequantize()
    ones = torch.ones(1, device="cuda"), torch.ones(1, device="cuda")
    update(te.MXFP8Quantizer(), te.NVFP4Quantizer(), te.Float8Quantizer(*ones, te.DType.kFloat8E4M3))
    torch.cuda.synchronize()
    every = {path.stem for path in Path(compiler.__file__).with_name("kernels").glob("*.cu")}
    missing = every - kernels - CHECKS
    assert not missing, f"never run: {sorted(missing)}"
    sys.stdout.write("\n".join(sorted(paths)) + "\n")


if __name__ == "__main__":
    main()
