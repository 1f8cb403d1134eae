from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow  # every case starts processes that import torch

CASES = (
    "parts_quantize_as_the_whole",
    "other_cuts_raise",
    "quantizers_reduce_their_amax",
    "gathered_bytes_are_those_of_the_whole",
    "what_cannot_be_gathered",
    "an_empty_part_takes_part",
    "column_and_row_parallel_linear",
    "sequence_parallel_amax_is_reduced",
    "reference_quantizers_agree_with_ours",
    "codes_are_kept_by_parts",
    "hooks_of_sharded_parameters",
    "sharded_training",
    "sharded_master_weights",
    "maxima_of_delayed_scaling_are_shared",
    "block_scaled_parts_are_gathered",
    "a_split_vocabulary_has_one_cross_entropy",
    "examples_of_parts",
    "examples_of_kept_parts",
    "examples_of_gathering",
    "examples_of_maxima",
    "examples_of_cuts",
)


@pytest.mark.rule(
    "TEM-7", "TEM-8", "TEM-9", "TEM-10", "TEM-11", "TEM-12", "TEM-23", "TEM-24", "TEM-25", "TEM-26", "TEM-27"
)
@pytest.mark.rule("TEM-28", "TEM-29", "TEM-51", "TEL-10", "TEL-15", "TEL-70")
@pytest.mark.example("TEM-7", "TEM-9", "TEM-11", "TEM-12", "TEM-26", "TEM-27", "TEM-28", "TEM-29")
@pytest.mark.example("TEL-10", "TEL-70", "TEM-10", "TEM-23", "TEM-24", "TEM-25", "TEM-51")
@pytest.mark.parametrize("processes", [2, pytest.param(4, marks=pytest.mark.release)])
def test_processes_agree(processes: int, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FP4REF_NUM_THREADS": "1"}
    command = [sys.executable, __file__, str(processes), str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(processes):
        done = json.loads((tmp_path / f"{rank}.json").read_text())
        assert done == [*CASES]


def parts_quantize_as_the_whole(rank: int, size: int) -> None:
    """Every spec, both directions, equal and unequal cuts, one part empty: bytes of the whole, from every process."""
    import torch

    import fp4ref
    from fp4ref.quantized import Directions
    from fp4ref.te.sharded import gather_shards, quantize_shard

    specs = [spec for name, spec in fp4ref.profiles.items() if "." not in name]
    assert len(specs) >= 14
    last = 32 if size == 2 else 0
    for counts in ([32] * size, [64, *[32] * (size - 2), last], [0, *[96] * (size - 1)]):
        total = sum(counts)
        generator = torch.Generator().manual_seed(total)
        whole = torch.randn(total, 64, generator=generator) * torch.rand(total, 1, generator=generator).mul(9).exp2()
        whole = whole.bfloat16()
        start = sum(counts[:rank])
        for spec in specs:
            seed = 7 if spec.stochastic else None
            bits = None
            if seed is not None:
                made = [
                    fp4ref.random_bits((total, 64), name, seed, stream=3, device="cpu") for name in ("row", "column")
                ]
                bits = Directions(*made)
            for directions in ("row", "column", "both"):
                own = None if bits is None else bits
                if bits is not None and directions != "both":
                    own = Directions(**{directions: getattr(bits, directions)})
                expected = fp4ref.quantize(whole, spec, directions, random_bits=own)
                part = quantize_shard(whole[start : start + counts[rank]], spec, directions, seed=seed, stream=3)
                got = gather_shards(part)
                for name in ("row", "column"):
                    ours, theirs = getattr(got, name), getattr(expected, name)
                    assert (ours is None) == (theirs is None)
                    if ours is None:
                        continue
                    for field, a, b in zip(ours._fields, ours, theirs, strict=True):
                        assert (a is None) == (b is None)
                        assert a is None or torch.equal(a, b), (spec.name, directions, name, field, counts)


def other_cuts_raise(rank: int, size: int) -> None:
    """A cut inside a block is named, in the direction that it cuts only."""
    import torch

    import fp4ref
    from fp4ref.errors import Fp4Error
    from fp4ref.te.sharded import gather_shards, quantize_shard

    x = torch.randn(24 if rank == 0 else 40, 64)
    assert quantize_shard(x, "nvfp4", "row").row is not None
    for spec, directions in (("nvfp4", "column"), ("nvfp4", "both"), ("nvfp4-2d", "row"), ("mxfp8-2d", "row")):
        with pytest.raises(Fp4Error, match="process 0 ends at row 24"):
            quantize_shard(x, spec, directions)
    with pytest.raises(Fp4Error, match="columns"):
        quantize_shard(torch.randn(32, 64 if rank == 0 else 32), "nvfp4")
    with pytest.raises(Fp4Error, match="seed"):
        quantize_shard(x, "nvfp4", seed=1)
    with pytest.raises(Fp4Error, match="tiled_128x4"):
        gather_shards(fp4ref.to_layout(quantize_shard(x, "nvfp4"), "tiled_128x4"))


def whole_and_part(rank: int, size: int, rows: int = 64) -> tuple[Any, Any]:
    """A matrix whose parts have very different magnitudes, and this process's rows of it."""
    import torch

    generator = torch.Generator().manual_seed(3)
    whole = torch.randn(rows * size, 64, generator=generator)
    whole *= torch.arange(size).repeat_interleave(rows).exp2()[:, None]
    return whole.bfloat16(), whole.bfloat16()[rows * rank : rows * (rank + 1)]


def quantizers(reduced: bool) -> list[Any]:
    """Every kind that can be gathered; reduced: over the processes."""
    from fp4ref import te

    options: dict[str, Any] = {"with_amax_reduction": reduced}
    return [
        te.NVFP4Quantizer(**options),
        te.NVFP4Quantizer(with_2d_quantization=True, **options),
        te.NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, **options),
        te.NVFP4Quantizer(nvfp4_use_4over6=True, nvfp4_e4m3_max=256, **options),
        te.MXFP8Quantizer(),
        te.MXFP8Quantizer(te.DType.kFloat8E5M2, with_2d_quantization=True),
        te.Float8CurrentScalingQuantizer(**options),
    ]


def quantizers_reduce_their_amax(rank: int, size: int) -> None:
    """A part quantized with a reduced amax has the amax of the whole."""
    import torch

    whole, part = whole_and_part(rank, size)
    for alone, together in zip(quantizers(reduced=False)[:4], quantizers(reduced=True)[:4], strict=True):
        expected, got = alone(whole), together(part)
        assert torch.equal(got._amax_rowwise, expected._amax_rowwise)
        assert torch.equal(got._amax_columnwise, expected._amax_columnwise)
        assert torch.equal(got._rowwise_data, expected._rowwise_data[64 * rank : 64 * (rank + 1)])


def gathered_bytes_are_those_of_the_whole(rank: int, size: int) -> None:
    """All-gather of compact scales, each direction; parts of 48 rows leave padding in between to be cut."""
    import torch

    from fp4ref.te.distributed import gather_along_first_dim

    for rows in (64, 96):
        whole, part = whole_and_part(rank, size, rows)
        for alone, together in zip(quantizers(reduced=False), quantizers(reduced=True), strict=True):
            for row, column in ((True, True), (True, False), (False, True)):
                alone.set_usage(rowwise=row, columnwise=column)
                together.set_usage(rowwise=row, columnwise=column)
                if getattr(alone, "nvfp4_use_4over6", False) and not row:
                    continue
                expected = alone(whole)
                got, _ = gather_along_first_dim(part, quantizer=together)
                assert got.shape == whole.shape
                for name, ours in ((name, getattr(got, name)) for name in got.BUFFERS):
                    theirs = getattr(expected, name)
                    assert (ours is None) == (theirs is None), name
                    if ours is None:
                        continue
                    used = [used_scales(got, name, scales) for scales in (ours, theirs)]
                    assert torch.equal(*used), (type(alone).__name__, rows, name)
                assert got.directions() == expected.directions()


def used_scales(tensor: Any, name: str, scales: Any) -> Any:
    """Scales without the padding, whose bytes nobody defines; another buffer as it is."""
    if "scale_inv" not in name or scales.dim() != 2:
        return scales
    rows, columns = tensor.shape[0], tensor.shape[-1]
    if "NVFP4" in type(tensor).__name__:
        return scales[:columns, : rows // 16] if "column" in name else scales[:rows, : columns // 16]
    return scales[: rows // 32, :columns] if "column" in name else scales[:rows, : columns // 32]


def what_cannot_be_gathered(rank: int, size: int) -> None:
    """Tiled scales, parts of different amax, row-scaled tensors; odd parts go in high precision, with a warning."""
    import torch

    from fp4ref import te
    from fp4ref.errors import Fp4Error
    from fp4ref.te.distributed import gather_along_first_dim, reduce_scatter_along_first_dim

    x = torch.randn(128, 128) * (rank + 1)
    tiled = te.MXFP8Quantizer()
    tiled.optimize_for_gemm = True
    with pytest.raises(Fp4Error, match="compact"):
        gather_along_first_dim(x, quantizer=tiled)
    with pytest.raises(Fp4Error, match="different amax"):
        gather_along_first_dim(x, quantizer=te.NVFP4Quantizer())
    row_scaled = te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)
    with pytest.raises(Fp4Error, match="row-scaled"):
        gather_along_first_dim(row_scaled(x), quantizer=row_scaled)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got, _ = gather_along_first_dim(x[:8], quantizer=te.NVFP4Quantizer(columnwise=False))
    assert any("high precision" in str(warning.message) for warning in caught)
    assert got.shape == (8 * size, 128)
    with pytest.raises(Fp4Error, match="async_op"):
        gather_along_first_dim(x, async_op=True)
    total, _ = reduce_scatter_along_first_dim(torch.ones(4 * size, 2))
    assert torch.equal(total, torch.full((4, 2), float(size)))
    with pytest.raises(Fp4Error, match="multiple of"):
        reduce_scatter_along_first_dim(torch.ones(4 * size + 1, 2))


def an_empty_part_takes_part(rank: int, size: int) -> None:
    """No rows on process 0: the others must not wait for it for ever."""
    import torch

    from fp4ref import te

    x = torch.randn(0 if rank == 0 else 32, 64, generator=torch.Generator().manual_seed(rank))
    for quantizer in (
        te.NVFP4Quantizer(with_amax_reduction=True),
        te.Float8CurrentScalingQuantizer(with_amax_reduction=True),
    ):
        made = quantizer(x)
        assert made.shape == x.shape
        if rank and isinstance(quantizer, te.NVFP4Quantizer):
            expected = max(
                torch.randn(32, 64, generator=torch.Generator().manual_seed(other)).abs().max()
                for other in range(1, size)
            )
            assert made._amax_rowwise.item() == expected


def integers(*shape: int, seed: int) -> Any:
    """Values that every format of the recipes holds exactly, and whose sums float32 holds too."""
    import torch

    return torch.randint(-2, 3, shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def column_and_row_parallel_linear(rank: int, size: int) -> None:
    """Exact operands: the parts compute what one process computes, with and without sequence parallelism."""
    import torch
    import torch.distributed as dist

    from fp4ref import te

    recipe, tokens, inputs, outputs = te.recipe.MXFP8BlockScaling(), 128, 128, 128
    x, weight = integers(tokens, inputs, seed=0), integers(outputs, inputs, seed=1)
    grad = integers(tokens, outputs, seed=2)
    rows = slice(tokens // size * rank, tokens // size * (rank + 1))
    part = slice(128 // size * rank, 128 // size * (rank + 1))

    def run(module: Any, x: Any, weight: Any, grad: Any, recipe: Any) -> tuple[Any, Any, Any]:
        module.weight.data = weight.contiguous()
        x = x.clone().requires_grad_()
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            y = module(x)
        y.backward(grad.contiguous())
        return y.detach(), x.grad, module.weight.grad

    options: dict[str, Any] = {"bias": False, "params_dtype": torch.bfloat16}
    for quantized in (recipe, None):
        y, dx, dw = run(te.Linear(inputs, outputs, **options), x, weight, grad, quantized)
        for sequence_parallel in (False, True):
            parallel = {"tp_group": dist.group.WORLD, "sequence_parallel": sequence_parallel, **options}
            mine = rows if sequence_parallel else slice(None)
            column = te.Linear(inputs, outputs, parallel_mode="column", **parallel)
            got = run(column, x[mine], weight[part], grad[:, part], quantized)
            for ours, theirs in zip(got, (y[:, part], dx[mine], dw[part]), strict=True):
                assert torch.equal(ours, theirs)
            row = te.Linear(inputs, outputs, parallel_mode="row", **parallel)
            got = run(row, x[:, part], weight[:, part], grad[mine], quantized)
            for ours, theirs in zip(got, (y[mine], dx[:, part], dw[:, part]), strict=True):
                assert torch.equal(ours, theirs)
    row = te.Linear(128, 64, parallel_mode="row", tp_group=dist.group.WORLD, sequence_parallel=True)
    assert (row.weight.partition_dim, row.bias.sequence_parallel) == (1, True)
    local = torch.randn(32, 64, generator=torch.Generator().manual_seed(rank)).requires_grad_()
    split = {"parallel_mode": "column", "sequence_parallel": True, "tp_group": dist.group.WORLD}
    wide = te.LayerNormLinear(
        64, 64 * size, return_layernorm_output=True, return_layernorm_output_gathered=True, **split
    )
    assert (wide.weight.partition_dim, wide.bias.partition_dim) == (0, 0)
    _, normed = wide(local)
    normed[32 * rank :].sum().backward()
    assert normed.shape == (32 * size, 64)
    alone = local.detach().clone().requires_grad_()  # its rows count once per process up to this one
    torch.nn.functional.layer_norm(alone, (64,)).mul(rank + 1).sum().backward()
    assert torch.allclose(local.grad, alone.grad, atol=1e-5)
    mlp = te.LayerNormMLP(
        64, 128 * size, tp_group=dist.group.WORLD, set_parallel_mode=True, params_dtype=torch.bfloat16
    )
    assert mlp.fc1_weight.shape == (128, 64)
    assert mlp.fc2_weight.shape == (64, 128)
    with te.autocast(recipe=recipe):
        mlp(x[:, :64]).sum().backward()


def sequence_parallel_amax_is_reduced(rank: int, size: int) -> None:
    """NVFP4 of a split input: operands of all three products are those of the whole."""
    import torch
    import torch.distributed as dist

    from fp4ref import te

    recipe = te.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True)
    whole, part = whole_and_part(rank, size)
    generator = torch.Generator().manual_seed(9)
    weight = torch.randn(128, 64, generator=generator).bfloat16()
    grad = torch.randn(whole.shape[0], 128, generator=generator).bfloat16()
    grad *= torch.arange(size).repeat_interleave(64).exp2()[:, None]

    def run(module: Any, x: Any, grad: Any) -> tuple[Any, Any, Any]:
        module.weight.data = weight.clone()
        x = x.clone().requires_grad_()
        with te.autocast(recipe=recipe):
            y = module(x)
        y.backward(grad.contiguous())
        return y.detach(), x.grad, module.weight.grad

    options: dict[str, Any] = {"bias": False, "params_dtype": torch.bfloat16}
    y, dx, dw = run(te.Linear(64, 128, **options), whole, grad)
    parallel = {"tp_group": dist.group.WORLD, "sequence_parallel": True, **options}
    column = te.Linear(64, 128 * size, parallel_mode="column", **parallel)  # the same weight everywhere
    got = run(column, part, grad)
    assert torch.equal(got[0], y)
    assert torch.equal(got[2], dw)
    assert torch.allclose(got[1].float(), dx[64 * rank : 64 * (rank + 1)].float() * size, rtol=2**-6, atol=1e-2)
    row = te.Linear(64 * size, 128, parallel_mode="row", **parallel)
    got = run(row, whole, grad[64 * rank : 64 * (rank + 1)])
    assert torch.equal(got[1], dx)
    assert torch.equal(got[2], dw)


def reference_quantizers_agree_with_ours(rank: int, size: int) -> None:
    """A recipe of reference quantizers gathers values, ours bytes; every result is the same, bit for bit."""
    import torch
    import torch.distributed as dist

    from fp4ref.te import Linear, autocast
    from fp4ref.te.recipe import CustomRecipe, NVFP4BlockScaling
    from fp4ref.te.reference import nvfp4_ref_rht_2d_factory

    recipes = (NVFP4BlockScaling(disable_stochastic_rounding=True), CustomRecipe(qfactory=nvfp4_ref_rht_2d_factory))
    generator = torch.Generator().manual_seed(rank)
    for mode in ("column", "row"):
        weight = torch.randn(128 if mode == "row" else 128 // size, 128 // size if mode == "row" else 128)
        rows = (64, 64 * size) if mode == "column" else (64 * size, 64)
        x = torch.randn(rows[0], weight.shape[1], generator=generator).bfloat16()
        grad = torch.randn(rows[1], weight.shape[0], generator=generator).bfloat16()
        results = []
        for recipe in recipes:
            options = {"parallel_mode": mode, "sequence_parallel": True, "tp_group": dist.group.WORLD, "tp_size": size}
            module = Linear(128, 128, bias=False, params_dtype=torch.bfloat16, **options)
            with torch.no_grad():
                module.weight.copy_(weight)
            leaf = x.clone().requires_grad_()
            with autocast(recipe=recipe), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that values are gathered
                y = module(leaf)
                y.backward(grad)
            results.append((y, leaf.grad, module.weight.grad))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True)), mode


def codes_are_kept_by_parts(rank: int, size: int) -> None:
    """A group of equal weights: the same gradients, from a part of the bytes."""
    import torch
    import torch.distributed as dist

    from fp4ref import te

    recipes = (
        te.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
        te.recipe.MXFP8BlockScaling(),
        te.recipe.Float8CurrentScaling(backward_override="dequantized"),
    )
    for recipe in recipes:
        results, kept = [], []
        for group in (None, dist.group.WORLD):
            torch.manual_seed(0)
            module = te.Linear(128, 256, params_dtype=torch.bfloat16, fsdp_group=group)
            x = torch.randn(64, 128, generator=torch.Generator().manual_seed(rank)).bfloat16().requires_grad_()
            saved: list[int] = []
            hooks = torch.autograd.graph.saved_tensors_hooks(
                lambda tensor, saved=saved: (saved.append(tensor.nbytes), tensor)[1], lambda tensor: tensor
            )
            with hooks, te.autocast(recipe=recipe):
                y = module(x)
            y.sum().backward()
            results.append((y.detach(), x.grad, module.weight.grad))
            kept.append(sum(saved))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
        codes = 128 * 256 // (2 if recipe.nvfp4() else 1)
        assert kept[0] - kept[1] == codes - codes // size


def hooks_of_sharded_parameters(rank: int, size: int) -> None:
    """What a sharding wrapper calls before and after it gathers the buffers of a packed parameter."""
    import torch
    import torch.distributed as dist

    from fp4ref import te
    from fp4ref.errors import Fp4Error

    whole, part = whole_and_part(rank, size)
    for alone, together in (
        (
            te.NVFP4Quantizer(with_2d_quantization=True),
            te.NVFP4Quantizer(with_2d_quantization=True, with_amax_reduction=True),
        ),
        (te.NVFP4Quantizer(columnwise=False), te.NVFP4Quantizer(columnwise=False, with_amax_reduction=True)),
        (te.MXFP8Quantizer(), te.MXFP8Quantizer()),
    ):
        expected, shard = alone(whole), together(part)
        sent, metadata = shard.fsdp_pre_all_gather(None, whole.shape, whole.stride(), None, None)
        received = []
        for buffer in sent:
            into = buffer.new_empty(size * buffer.shape[0], *buffer.shape[1:])
            dist.all_gather(list(into.chunk(size)), buffer.contiguous())
            received.append(into)
        result, kept = shard.fsdp_post_all_gather(tuple(received), metadata, torch.bfloat16)
        assert len(kept) == len(received)
        assert torch.equal(result.dequantize(), expected.dequantize())
        assert result.directions() == expected.directions()
        for name in result.BUFFERS:
            ours, theirs = getattr(result, name), getattr(expected, name)
            if ours is not None:
                assert torch.equal(used_scales(result, name, ours), used_scales(result, name, theirs)), name
        addresses = [buffer.data_ptr() for buffer in result.buffers()]
        shard.fsdp_post_all_gather(tuple(received), metadata, torch.bfloat16, out=result)
        assert [buffer.data_ptr() for buffer in result.buffers()] == addresses
        assert torch.equal(result.dequantize(), expected.dequantize())
    with pytest.raises(Fp4Error, match="2D"):
        te.NVFP4Quantizer(with_amax_reduction=True)(part).fsdp_pre_all_gather(None, None, None, None, None)
    tiled = te.MXFP8Quantizer()
    tiled.optimize_for_gemm = True
    with pytest.raises(Fp4Error, match="compact"):
        tiled(part).fsdp_pre_all_gather(None, None, None, None, None)


def sharded_training(rank: int, size: int) -> None:
    """Packed parameters under fully_shard, with an optimizer: every step's output is that of one process."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    from fp4ref import te

    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    plain = te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)
    for recipe in (plain, te.recipe.MXFP8BlockScaling()):
        outputs = []
        for shard in (False, True):
            torch.manual_seed(0)
            with te.quantized_model_init(recipe=recipe):
                layers = [
                    te.Linear(*sizes, params_dtype=torch.bfloat16, bias=False) for sizes in ((128, 256), (256, 128))
                ]
            model = torch.nn.Sequential(*layers)
            if shard:
                mesh = init_device_mesh("cpu", (size,))
                for module in (*layers, model):
                    fully_shard(module, mesh=mesh)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
            for _ in range(3):
                with te.autocast(recipe=recipe):
                    y = model(x)
                optimizer.zero_grad()
                y.float().square().mean().backward()
                optimizer.step()
                outputs.append(y.detach())
        whole, sharded = outputs[:3], outputs[3:]
        assert torch.equal(whole[0], sharded[0])
        if size == 2:  # the sum of more equal gradients is rounded in bfloat16
            assert all(torch.equal(a, b) for a, b in zip(whole, sharded, strict=True))


def sharded_master_weights(rank: int, size: int) -> None:
    """Flat parts of float32 values, cut anywhere: each process writes its own codes, the union is the whole's."""
    import torch
    import torch.distributed as dist

    from fp4ref import te
    from fp4ref.te.master_weights import post_all_gather_processing, quantize_master_weights

    torch.manual_seed(4)
    weights = [torch.randn(64, 96), torch.randn(32, 32) * 100]
    cuts = [[round(weight.numel() * (i / size) ** 2) for i in range(size + 1)] for weight in weights]
    cuts[1][1:-1] = [0] * (size - 1)  # the last process has all of it
    masters, starts = [], []
    for weight, cut in zip(weights, cuts, strict=True):
        own = weight.flatten()[cut[rank] : cut[rank + 1]]
        masters.append(own if own.numel() else None)
        starts.append(cut[rank] if own.numel() else None)
    current = te.Float8CurrentScalingQuantizer()
    squares = te.Float8BlockQuantizer(te.DType.kFloat8E4M3, rowwise=True, columnwise=True, block_scaling_dim=2)
    for quantizer in (te.NVFP4Quantizer(with_2d_quantization=True), te.MXFP8Quantizer(), current, squares):
        for dtype in (torch.float32, torch.bfloat16):
            expected = [quantizer(weight.to(dtype)) for weight in weights]
            models = [quantizer(torch.zeros_like(weight, dtype=dtype)) for weight in weights]
            for model in models:
                for data in model.get_data_tensors():
                    if data is not None:
                        data.zero_()
            quantize_master_weights(models, masters, starts, dist.group.WORLD)
            for model in models:
                for data in model.get_data_tensors():
                    if data is not None:
                        codes = data.to(torch.int32)
                        dist.all_reduce(codes)  # nobody wrote a code of another
                        data.copy_(codes.to(torch.uint8))
            post_all_gather_processing(models)
            for model, whole in zip(models, expected, strict=True):
                for name in model.BUFFERS:
                    ours, theirs = getattr(model, name), getattr(whole, name)
                    assert torch.equal(used_scales(model, name, ours), used_scales(model, name, theirs)), name


def maxima_of_delayed_scaling_are_shared(rank: int, size: int) -> None:
    """Scales of all processes come from the largest maximum, unless the recipe says otherwise."""
    import torch

    from fp4ref import te
    from fp4ref.te.recipe import DelayedScaling

    for reduced in (True, False):
        te.quantization.FP8GlobalStateManager.reset()
        recipe = DelayedScaling(amax_history_len=4, reduce_amax=reduced)
        module = te.Linear(32, 32, device="cpu")
        x = torch.full((16, 32), float(1 + rank))
        with te.autocast(recipe=recipe, amax_reduction_group=torch.distributed.group.WORLD):
            y = module(x)
        y.backward(torch.full_like(y, float(1 + rank)))
        for key, largest in (("scaling_fwd", 448), ("scaling_bwd", 57344)):
            amax = size if reduced else 1 + rank
            assert module.fp8_meta[key].scale[0].item() == torch.tensor(float(largest)).div(amax).item()


def block_scaled_parts_are_gathered(rank: int, size: int) -> None:
    """Parts of whole blocks have the bytes of the whole, in both directions, with 1x128 blocks and with tiles."""
    import torch

    from fp4ref import te

    whole = torch.randn(128 * size, 384, generator=torch.Generator().manual_seed(3))
    part = whole[128 * rank : 128 * rank + 128]
    for dim in (1, 2):
        quantizer = te.Float8BlockQuantizer(block_scaling_dim=dim)
        gathered, _ = te.gather_along_first_dim(part, None, quantizer=quantizer)
        expected = quantizer(whole)
        for name in expected.BUFFERS:
            assert torch.equal(getattr(gathered, name), getattr(expected, name)), (dim, name)
        assert gathered.shape == whole.shape


def a_split_vocabulary_has_one_cross_entropy(rank: int, size: int) -> None:
    """Loss and gradient are those of the whole vocabulary, up to the order of sums."""
    import torch

    from fp4ref import te

    generator = torch.Generator().manual_seed(4)
    logits, target = (
        torch.randn(3, 5, 8 * size, generator=generator),
        torch.randint(8 * size, (3, 5), generator=generator),
    )
    target[0, 0] = -100
    whole = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(whole.flatten(0, 1), target.flatten()).backward()
    part = logits[..., 8 * rank : 8 * rank + 8].clone().requires_grad_()
    loss = te.parallel_cross_entropy(part, target, reduce_loss=True, dist_process_group=torch.distributed.group.WORLD)
    loss.backward()
    torch.testing.assert_close(part.grad, whole.grad[..., 8 * rank : 8 * rank + 8])
    torch.testing.assert_close(loss, torch.nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten()))
    if size > 1:
        with pytest.raises(ValueError, match="label_smoothing"):
            te.parallel_cross_entropy(part, target, 0.1, dist_process_group=torch.distributed.group.WORLD)


def rows_of(rule: str) -> list[list[str]]:
    """The rows of a rule's example, whose numbers are those of two processes."""
    from fp4ref import rules
    from fp4ref.standard.tables import tables

    (table,) = tables(rules.defined()[rule].text)
    return table[1:]


def unquoted(cell: str) -> bytes:
    return bytes.fromhex(cell.strip("`"))


def examples_of_parts(rank: int, size: int) -> None:
    """TEM-7, TEM-9 and TEM-26: scale bytes, random bytes and master weights of two processes."""
    import torch
    import torch.distributed as dist

    import fp4ref
    from fp4ref import rules, te
    from fp4ref.te.master_weights import quantize_master_weights
    from fp4ref.te.sharded import _random_bits, quantize_shard

    if size != 2:
        return
    process, element, byte = rows_of("TEM-7")[rank]
    assert int(process) == rank
    x = torch.full((16, 16), float(element))
    part = quantize_shard(x, "nvfp4")
    assert {*bytes(part.row.scales.flatten().tolist())} == {*unquoted(byte)}
    alone, own = re.search(
        r"Rows of ([\d.]+) without .* have the scale byte (`..`)", rules.defined()["TEM-7"].text
    ).groups()
    if alone == element:
        assert {*bytes(fp4ref.quantize(x, "nvfp4").row.scales.flatten().tolist())} == {*unquoted(own)}
    process, row, drawn = rows_of("TEM-9")[rank]
    assert int(process) == rank
    bits = _random_bits(7, 3, ["row"], int(row), 32, x).row
    assert bytes(bits[0, :4].tolist()) == unquoted(drawn)
    spec = fp4ref.profiles["nvfp4-sr"]
    values = torch.linspace(-3, 3, 16).repeat(16, 1)
    got = quantize_shard(values, spec, seed=7, stream=3)
    amax = torch.tensor([3.0])
    expected = fp4ref.quantize(values, spec, amax=amax, random_bits=fp4ref.quantized.Directions(bits, None))
    assert torch.equal(got.row.data, expected.row.data)
    process, master, data, scale = rows_of("TEM-26")[rank]
    assert int(process) == rank
    value = float(master.rpartition(": ")[2])
    quantizer = te.NVFP4Quantizer(with_2d_quantization=True)
    model = quantizer(torch.zeros(32, 16))
    model._rowwise_data.zero_()
    quantize_master_weights([model], [torch.full((256,), value)], [256 * rank], dist.group.WORLD)
    own_rows, others = slice(16 * rank, 16 * rank + 16), slice(16 - 16 * rank, 32 - 16 * rank)
    assert {*model._rowwise_data[own_rows].flatten().tolist()} == {*unquoted(data)}
    assert not model._rowwise_data[others].any()  # codes of another process stay as they are
    assert {*model._rowwise_scale_inv[own_rows, 0].tolist()} == {*unquoted(scale)}


def examples_of_kept_parts(rank: int, size: int) -> None:
    """TEM-12 and TEM-27: bytes of two processes, and a step that does not change."""
    import torch
    import torch.distributed as dist

    from fp4ref import te
    from fp4ref.te.module.saved_shards import scatter_codes

    if size != 2:
        return
    quantized = te.NVFP4Quantizer(columnwise=False)(torch.ones(256, 128))
    codes, scales = ([int(cell.split()[0].replace(",", "")) for cell in row[1:]] for row in rows_of("TEM-12"))
    found = [[quantized._rowwise_data.numel()], [quantized._rowwise_scale_inv.numel()]]
    scatter_codes(quantized, dist.group.WORLD)
    found[0].append(quantized._rowwise_data.numel())
    found[1].append(quantized._rowwise_scale_inv.numel())
    assert found == [codes, scales]
    for cell, result, dgrad in rows_of("TEM-27"):
        layer = te.Linear(16, 16, bias=False, fsdp_group=None if cell == "none" else dist.group.WORLD)
        layer.weight.data = torch.full((16, 16), 5.0)
        layer.weight.data[:, 0] = 6
        x = torch.ones(16, 16, requires_grad=True)
        with te.autocast(recipe=te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)):
            y = layer(x)
        y.backward(torch.ones_like(y))
        assert {*y.flatten().tolist()} == {float(result)}
        assert x.grad[:, :3].unique(dim=0).tolist() == [[float(n) for n in dgrad.split()]]


def examples_of_gathering(rank: int, size: int) -> None:
    """TEM-11, TEM-28 and TEM-29: bytes that are sent, parts that are refused, and those that are not quantized."""
    import torch
    import torch.distributed as dist

    from fp4ref import te
    from fp4ref.errors import Fp4Error
    from fp4ref.te.distributed import gather_along_first_dim

    if size != 2:
        return
    sent: list[tuple[int, ...]] = []
    plain = dist.all_gather
    x = torch.full((48, 64), 6.0)
    try:
        dist.all_gather = lambda whole, part, **named: (sent.append(tuple(part.shape)), plain(whole, part, **named))[1]
        whole, _ = gather_along_first_dim(x, quantizer=te.NVFP4Quantizer(columnwise=False))
    finally:
        dist.all_gather = plain
    for name, cell, gathered in rows_of("TEM-11"):
        buffer = {"codes": whole._rowwise_data, "scales": whole._rowwise_scale_inv}[name]
        numbers = [int(number) for number in re.findall(r"\d+", gathered)]
        assert tuple(map(int, re.findall(r"\d+", cell))) in sent
        assert [*buffer.shape] == numbers[:2]
        if len(numbers) > 2:
            first, last, byte = numbers[2:]
            assert last + 1 == len(buffer)
            assert (buffer[first:] == byte).all()
            assert (buffer[:first] != byte).all()
    for cell, outcome in rows_of("TEM-28"):
        amaxes = [float(number) for number in re.findall(r"\b\d\b", cell)] if cell.startswith("amax") else [6.0]
        quantizer: Any = te.NVFP4Quantizer(columnwise=False, row_scaled_nvfp4="row scaling" in cell)
        if "GEMM layout" in cell:
            quantizer = te.MXFP8Quantizer()
            quantizer.optimize_for_gemm = True
        part = quantizer(torch.full((128, 128), amaxes[rank if len(amaxes) > 1 else 0]))
        if outcome == "gathered":
            assert gather_along_first_dim(part, quantizer=quantizer)[0].shape == (256, 128)
        else:
            assert outcome == "refused"
            with pytest.raises(Fp4Error):
                gather_along_first_dim(part, quantizer=quantizer)
    for cell, outcome in rows_of("TEM-29"):
        rows, columns = map(int, re.findall(r"\d+", cell)) if "×" in cell else (16, 128)
        value: Any = torch.ones(rows, columns)
        quantizer = te.NVFP4Quantizer(columnwise=False)
        if "columns are wanted" in cell:
            value = quantizer(value)
            quantizer = te.NVFP4Quantizer()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            got, _ = gather_along_first_dim(value, quantizer=quantizer)
        said = any("in high precision" in str(warning.message) for warning in caught)
        assert said is ("with a warning" in outcome)
        assert got.shape == (2 * rows, columns)


def examples_of_maxima(rank: int, size: int) -> None:
    """TEL-10, TEL-70 and TEM-23: what two processes of a table have, and the largest of it."""
    import torch
    import torch.distributed as dist

    from fp4ref import te
    from fp4ref.te.sharded import quantize_shard

    if size != 2:
        return

    def part_of(cell: str) -> torch.Tensor:
        return torch.full((32, 64), float(cell)) if cell.isdigit() else torch.zeros(0, 64)

    for cell, used in rows_of("TEL-10"):
        own = re.split(", and | and ", cell)[rank]
        for options in ({}, {"with_rht": True, "with_post_rht_amax": True}):
            quantizer = te.NVFP4Quantizer(with_amax_reduction=True, amax_reduction_group=dist.group.WORLD, **options)
            made = quantizer(part_of(own).bfloat16())
            assert made._amax_rowwise.item() == float(used)
            assert options or made._amax_columnwise.item() == float(used)
    for cell, amax in rows_of("TEL-70"):
        te.quantization.FP8GlobalStateManager.reset()
        module = te.Linear(32, 32, device="cpu")
        with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=4), amax_reduction_group=dist.group.WORLD):
            module(torch.full((16, 32), float(cell.split(", ")[rank])))
        assert module.fp8_meta["scaling_fwd"].amax_history[-1, 0].item() == float(amax)
    for cell, used in rows_of("TEM-23"):
        parts = cell.split(", ")
        for pair in (parts[:2], parts[:0:-1], parts[1:]):  # each has the largest
            part = part_of(pair[rank])
            assert quantize_shard(part, "nvfp4", "both").row.amax.item() == float(used)
            made = quantize_shard(part, "nvfp4-row-scaled", "both")
            assert made.column.amax.tolist() == [float(used)] * 64
            assert made.row.amax.tolist() == [float(pair[rank])] * 32 if len(part) else not made.row.amax.numel()


def examples_of_cuts(rank: int, size: int) -> None:
    """TEM-10, TEM-24, TEM-25 and TEM-51: parts that make a whole, and those that do not."""
    import torch
    import torch.distributed as dist

    import fp4ref
    from fp4ref import te
    from fp4ref.errors import Fp4Error
    from fp4ref.te.master_weights import quantize_master_weights
    from fp4ref.te.sharded import gather_shards, quantize_shard

    if size != 2:
        return
    ((cell, gathered),) = rows_of("TEM-24")
    shape, spec, first, second = re.fullmatch(
        r"parts of (.*), `(.*)` \| (.*), (.*)", f"{head_of('TEM-24')} | {cell}"
    ).groups()
    height, width = map(int, re.findall(r"\d+", shape))
    start, end = map(int, re.findall(r"\d+", (first, second)[rank]))
    x = torch.randn(height, width, generator=torch.Generator().manual_seed(8))
    assert gathered == f"the bytes of quantizing {shape}"
    made, whole = gather_shards(quantize_shard(x[start : end + 1], spec, "both")), fp4ref.quantize(x, spec, "both")
    for ours, theirs in ((made.row, whole.row), (made.column, whole.column)):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for layout, outcome in rows_of("TEM-51"):
        part = fp4ref.to_layout(quantize_shard(x[start : end + 1], spec), layout.strip("`"))
        if outcome == "gathered":
            assert torch.equal(gather_shards(part).row.data, whole.row.data)
            continue
        assert outcome == "refused"
        with pytest.raises(Fp4Error, match="TEM-51"):
            gather_shards(part)
    ((cell, error),) = rows_of("TEM-25")
    rows = int(re.search(r"\d+", cell)[0])
    spec, direction = re.match(r"cut of (\S+), (\w+) direction", head_of("TEM-25")).groups()
    with pytest.raises(Fp4Error, match=error):
        quantize_shard(x[:rows] if rank == 0 else x[:32], spec, direction)
    (cell, _), (beyond, refused) = rows_of("TEM-10")
    height, width = map(int, re.findall(r"\d+", head_of("TEM-10")))
    first, last = map(int, re.findall(r"\d+", cell))
    values = torch.randn(height * width, generator=torch.Generator().manual_seed(5))
    quantizer = te.NVFP4Quantizer(with_2d_quantization=True)
    whole, model = quantizer(values.view(height, width)), quantizer(torch.zeros(height, width))
    model._rowwise_data.fill_(0xFF)  # which no code of these values is
    own = (first, last + 1) if rank == 0 else (last + 1, height * width)
    quantize_master_weights([model], [values[slice(*own)]], [own[0]], dist.group.WORLD)
    codes, others = model._rowwise_data.flatten(), torch.ones(height * width // 2, dtype=torch.bool)
    others[own[0] // 2 : own[1] // 2] = False
    assert torch.equal(codes[~others], whole._rowwise_data.flatten()[~others])
    assert (codes[others] == 0xFF).all()
    assert torch.equal(model._rowwise_scale_inv[:height, :2], whole._rowwise_scale_inv[:height, :2])
    assert torch.equal(model._amax_rowwise, whole._amax_rowwise)
    first, last = map(int, re.findall(r"\d+", beyond)[:2])
    assert refused == "refused"
    with pytest.raises(Fp4Error, match="TEM-10"):
        quantize_master_weights([model], [torch.zeros(last + 1 - first)], [first], None)


def head_of(rule: str) -> str:
    """The first head of a rule's table."""
    from fp4ref import rules
    from fp4ref.standard.tables import tables

    return tables(rules.defined()[rule].text)[0][0][0]


def main(size: int, folder: Path) -> None:
    """Run a group of processes, forked when all that they import is imported: that takes longer than most cases."""
    import torch.distributed.device_mesh
    import torch.distributed.fsdp  # noqa: F401

    from fp4ref import rules  # noqa: F401

    ranks = []
    for rank in range(size):
        process = os.fork()
        if not process:
            try:
                member(size, folder, rank)  # which ends the process if all is well
            finally:
                traceback.print_exc()
                os._exit(1)
        ranks.append(process)
    statuses = [os.waitpid(process, 0)[1] for process in ranks]
    sys.exit(any(statuses))


def member(size: int, folder: Path, rank: int) -> None:
    """Run every case as one process of a group; the file says which came to their end."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    done = []
    for case in CASES:
        globals()[case](rank, size)
        dist.barrier()
        done.append(case)
        (folder / f"{rank}.json").write_text(json.dumps(done))
    dist.destroy_process_group()
    # Sharded modules keep their groups alive in cycles, and gloo's threads may abort an interpreter that ends then:
    # leave without its end, since every case has passed.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
