from __future__ import annotations

import os

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402

from fp4ref import te  # noqa: E402
from fp4ref.te import (  # noqa: E402
    Float8CurrentScalingQuantizer,
    MXFP8Quantizer,
    NVFP4Quantizer,
    debug,
    group_quantize,
    split_quantize,
)
from te_samples import of_two_processes  # noqa: E402

RHT = {"with_rht": True, "with_post_rht_amax": True}


def sample(rows, columns=96):
    generator = torch.Generator().manual_seed(3)
    spread = torch.exp2(torch.arange(rows) % 7 - 3).unsqueeze(1)
    return (torch.randn(rows, columns, generator=generator) * spread).to(torch.bfloat16)


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True))


@pytest.mark.rule("TEL-79")
@pytest.mark.parametrize("kind", [lambda: NVFP4Quantizer(**RHT), NVFP4Quantizer, MXFP8Quantizer])
@pytest.mark.parametrize("sections", [[64, 64], [0, 96, 32], [32, 0, 96], [128, 0], [0, 0, 128, 0]])
def test_split_is_each_piece_alone(kind, sections):
    x = sample(128)
    got = split_quantize(x.view(2, 64, 96), sections, [kind() for _ in sections])
    assert [tensor.shape[0] for tensor in got] == sections
    for tensor, piece in zip(got, x.split(sections), strict=True):
        if len(piece):
            assert same(tensor, kind()(piece))


@pytest.mark.rule("TEL-42")
@pytest.mark.parametrize(
    "sections, columns, settings, expected",
    [
        ([128, 0, 256], 128, RHT, True),
        ([64, 192], 128, RHT, False),
        ([128, 48], 128, RHT, False),
        ([128, 128], 144, RHT, False),
        ([128, 128], 128, {}, False),
    ],
)
def test_a_group_has_one_layout_of_scales(sections, columns, settings, expected):
    quantizers = [NVFP4Quantizer(**settings) for _ in sections]
    for quantizer in quantizers:
        quantizer.optimize_for_gemm = True
    x = sample(sum(sections), columns)
    debug.reset_operation_counts()
    made = split_quantize(x, sections, quantizers)
    counts = debug.operation_counts()
    assert [tensor._with_gemm_swizzled_scales for tensor in made] == [expected] * len(sections)
    assert bool(counts["swizzle_in_quantize"]) is expected
    assert not counts["swizzle_standalone"]
    assert all(quantizer.optimize_for_gemm for quantizer in quantizers)
    alone = split_quantize(x, sections, quantizers, disable_bulk_allocation=True)
    assert all(tensor._with_gemm_swizzled_scales for tensor in alone)


@pytest.mark.rule("TEL-41")
@pytest.mark.parametrize("setting", ["with_2d_quantization", "with_amax_reduction"])
def test_settings_that_the_kernel_of_a_group_lacks(setting):
    quantizers = [NVFP4Quantizer(**{setting: True})] * 2
    with pytest.raises(ValueError, match=f"{setting}=True with K 128.*TEL-41"):
        split_quantize(sample(64, 128), [32, 32], quantizers)
    if setting == "with_2d_quantization":
        assert len(split_quantize(sample(64, 96), [32, 32], quantizers)) == 2
        assert len(split_quantize(sample(64, 128), [32, 32], quantizers, disable_bulk_allocation=True)) == 2


@pytest.mark.rule("TEL-13")
@pytest.mark.parametrize("swizzled", [False, True])
def test_group_of_mxfp8_in_tiles(swizzled):
    quantizer = MXFP8Quantizer(with_2d_quantization=True)
    quantizer.optimize_for_gemm = swizzled
    x = sample(512, 128)
    pieces = group_quantize(x, quantizer, 2, torch.tensor([128, 384])).split_into_quantized_tensors()
    assert all(same(tensor, quantizer(part)) for tensor, part in zip(pieces, x.split([128, 384]), strict=True))


@pytest.mark.rule("TEL-13")
@pytest.mark.parametrize("swizzled", [False, True])
def test_group_leaves_rows_past_the_last_range(swizzled):
    quantizer = NVFP4Quantizer(**RHT)
    quantizer.optimize_for_gemm = swizzled
    x = sample(512, 128)
    grouped = group_quantize(x, quantizer, 3, torch.tensor([128, 0, 128]))
    assert grouped.num_tensors == 3
    for tensor, piece in zip(grouped.split_into_quantized_tensors(), x[:256].split([128, 0, 128]), strict=True):
        assert tensor.shape == piece.shape
        if len(piece):
            assert same(tensor, quantizer(piece))
    equal = group_quantize(x, quantizer, 4)
    assert [tensor.shape[0] for tensor in equal.quantized_tensors] == [128] * 4


@pytest.mark.rule("TEL-13")
@pytest.mark.parametrize(
    "change, said",
    [
        (lambda q: setattr(q, "optimize_for_gemm", True), "optimize_for_gemm=True at index 1"),
        (lambda q: setattr(q, "with_rht", True), "with_rht=True at index 1"),
        (lambda q: q.set_usage(columnwise=False), "columnwise_usage=False at index 1"),
    ],
)
def test_members_must_agree(change, said):
    quantizers = [NVFP4Quantizer() for _ in range(3)]
    change(quantizers[1])
    with pytest.raises(RuntimeError, match=said):
        split_quantize(sample(96), [32, 32, 32], quantizers)


@pytest.mark.rule("TEL-13", "TEL-36")
def test_groups_that_do_not_fit():
    quantizer = NVFP4Quantizer()
    for call, said in (
        (lambda: split_quantize(sample(96), [32, 32], [quantizer] * 2), "64 rows"),
        (lambda: split_quantize(sample(96), [96], [quantizer] * 2), "1 sections and 2"),
        (lambda: split_quantize(sample(96), [48, 48], [quantizer, MXFP8Quantizer()]), "MXFP8Quantizer at index 1"),
        (lambda: group_quantize(sample(96), quantizer, 2, torch.tensor([64, 64])), "128 rows"),
        (lambda: group_quantize(sample(64), quantizer, 3), "64 rows"),
        (lambda: group_quantize(sample(96), NVFP4Quantizer(with_2d_quantization=True), 2), "with_2d_quantization"),
        (lambda: group_quantize(sample(96), NVFP4Quantizer(nvfp4_use_4over6=True), 2), "nvfp4_use_4over6"),
        (
            lambda: group_quantize(sample(96), NVFP4Quantizer(row_scaled_nvfp4=True), 2),
            "row_scaled_nvfp4 with columnwise",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            call()


# settings, rows of each process; the last process of the third case has none
CASES = [({}, [64, 64]), (RHT, [32, 96]), (RHT, [128, 0]), ({"with_2d_quantization": True}, [48, 80])]


def _member(rank, address, results):
    dist.init_process_group("gloo", init_method=f"file://{address}", rank=rank, world_size=2)
    try:
        for number, (settings, sizes) in enumerate(CASES):
            piece = sample(128).split(sizes)[rank]
            quantizer = NVFP4Quantizer(with_amax_reduction=True, amax_reduction_group=dist.group.WORLD, **settings)
            tensor = quantizer(piece)
            results[number, rank] = [buffer.clone() for buffer in tensor.buffers()]
            results["float8", number, rank] = Float8CurrentScalingQuantizer(
                with_amax_reduction=True, amax_reduction_group=dist.group.WORLD
            )(piece)._scale_inv.clone()
    finally:
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads may abort an interpreter that ends while a module keeps its group


@pytest.mark.heavy  # starts two processes
@pytest.mark.slow
@pytest.mark.rule("TEL-10")
def test_shards_with_a_reduced_amax_are_the_whole(tmp_path):
    gathered = of_two_processes(_member, tmp_path)
    for number, (settings, sizes) in enumerate(CASES):
        x = sample(128)
        whole = NVFP4Quantizer(**settings)(x)
        start = 0
        for rank, size in enumerate(sizes):
            data, data_t, scales, scales_t, amax, amax_t = gathered[number, rank]
            assert torch.equal(amax, whole._amax_rowwise)
            assert torch.equal(amax_t, whole._amax_columnwise)
            assert torch.equal(data, whole._rowwise_data[start : start + size])
            assert torch.equal(scales[:size, :6], whole._rowwise_scale_inv[start : start + size, :6])
            assert torch.equal(data_t, whole._columnwise_data[:, start // 2 : (start + size) // 2])
            blocks = slice(start // 16, (start + size) // 16)
            assert torch.equal(scales_t[:96, : size // 16], whole._columnwise_scale_inv[:96, blocks])
            start += size
            assert torch.equal(gathered["float8", number, rank], Float8CurrentScalingQuantizer()(x)._scale_inv)


@pytest.mark.rule("TEL-13")
@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_grouped_layer_reads_the_values_of_a_quantized_input(dtype, enabled):
    module = te.GroupedLinear(2, 96, 64, params_dtype=dtype)
    x = MXFP8Quantizer(te.DType.kFloat8E4M3)(sample(64).to(dtype))
    with te.autocast(enabled=enabled, recipe=te.recipe.NVFP4BlockScaling(disable_rht=True)):
        assert torch.equal(module(x, [32, 32]), module(x.dequantize(), [32, 32]))
