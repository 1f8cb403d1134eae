from __future__ import annotations

import io
import pickle
import zipfile

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.conformance.vectors.sources.four_over_six import sums_by_order  # noqa: E402
from fp4ref.te import (  # noqa: E402  # noqa: E402
    DType,
    MXFP8Quantizer,
    NVFP4Quantizer,
    NVFP4TensorStorage,
    dequantize,
    prepare_for_saving,
    restore_from_saved,
)
from fp4ref.te import Float8CurrentScalingQuantizer as Float8Quantizer  # noqa: E402
from fp4ref.te.master_weights import quantize_master_weights, replace_raw_data  # noqa: E402
from te_samples import sample  # noqa: E402

KINDS = [NVFP4Quantizer, MXFP8Quantizer, Float8Quantizer]
WIDE = [torch.float32, torch.bfloat16, torch.float16]


def same(a, b):
    return len(a.buffers()) == len(b.buffers()) and all(
        torch.equal(x, y) for x, y in zip(a.buffers(), b.buffers(), strict=True)
    )


@pytest.mark.rule("TEL-8")
@pytest.mark.parametrize("swizzled", [False, True])
@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize(
    "quantizer, spec",
    [
        (NVFP4Quantizer(), fp4ref.NVFP4),
        (NVFP4Quantizer(with_2d_quantization=True), fp4ref.NVFP4_2D),
        (NVFP4Quantizer(row_scaled_nvfp4=True), fp4ref.NVFP4_ROW_SCALED),
        (NVFP4Quantizer(nvfp4_use_4over6=True), fp4ref.NVFP4_4OVER6),
        (MXFP8Quantizer(), fp4ref.MXFP8_E4M3),
        (MXFP8Quantizer(DType.kFloat8E5M2), fp4ref.MXFP8_E5M2),
    ],
    ids=["nvfp4", "tiles", "row-scaled", "4over6", "mxfp8", "mxfp8 e5m2"],
)
def test_dequantize_is_the_models(quantizer, spec, dtype, swizzled):
    quantizer = quantizer.copy()
    quantizer.optimize_for_gemm = swizzled
    x = sample(96, 160)
    tensor = quantizer(x)
    want = fp4ref.dequantize(fp4ref.quantize(x, spec, backend="numpy"), dtype, backend="numpy")
    assert torch.equal(tensor.dequantize(dtype=dtype), want)
    assert torch.equal(dequantize(tensor, dtype), want)


@pytest.mark.rule("TEL-8")
def test_values_under_one_scale_are_compiled_without_a_break():
    tensor = te.Float8CurrentScalingQuantizer()(sample(32, 64))
    compiled = torch.compile(lambda t: t.dequantize() + 1, fullgraph=True, backend="eager")
    assert torch.equal(compiled(tensor), tensor.dequantize() + 1)


@pytest.mark.rule("TEL-8")
@pytest.mark.parametrize("swizzled", [False, True])
def test_mxfp8_columns_dequantize_untransposed(swizzled):
    quantizer = MXFP8Quantizer(rowwise=False)
    quantizer.optimize_for_gemm = swizzled
    x = sample(96, 160)
    q = fp4ref.quantize(x, fp4ref.MXFP8_E4M3, "column", backend="numpy")
    want = fp4ref.dequantize(q, "bfloat16", "column", backend="numpy").t()
    assert torch.equal(quantizer(x).dequantize(), want)


@pytest.mark.rule("TEL-8")
def test_nvfp4_columns_alone_are_not_dequantized():
    tensor = NVFP4Quantizer(rowwise=False)(sample(32, 32))
    with pytest.raises(NotImplementedError, match="columnwise"):
        tensor.dequantize()


@pytest.mark.rule("TEL-25")
def test_columns_of_tiles_are_derived():
    quantizer = NVFP4Quantizer(with_2d_quantization=True)
    x = sample(96, 160)
    whole = quantizer(x)
    quantizer.set_usage(columnwise=False)
    rows = quantizer(x)
    rows.update_usage(columnwise_usage=True)
    assert torch.equal(rows._columnwise_data, whole._columnwise_data)
    assert torch.equal(rows._columnwise_scale_inv[:160, :6], whole._columnwise_scale_inv[:160, :6])
    assert torch.equal(rows._amax_columnwise, whole._amax_columnwise)


@pytest.mark.rule("TEL-25", "TEL-40", "BLK-12")
@pytest.mark.parametrize(
    "search, row, column", [({}, 0x7E, 0x7E), ({"nvfp4_use_4over6": True, "nvfp4_e4m3_max": 256}, 0x78, 0x7C)]
)
def test_derived_columns_are_the_transposed_rows(search, row, column):
    x = torch.from_numpy(sums_by_order().astype(np.float32)).bfloat16()
    quantizer = NVFP4Quantizer(with_2d_quantization=True, **search)
    whole = quantizer(x)
    quantizer.set_usage(columnwise=False)
    derived = quantizer(x)
    derived.update_usage(columnwise_usage=True)
    codes = fp4ref.packing.unpack(derived._rowwise_data.numpy(), 16, fp4ref.NVFP4.element.format)
    turned = fp4ref.packing.pack(np.ascontiguousarray(codes.T), fp4ref.NVFP4.element.format)
    assert derived._columnwise_data.numpy().tobytes() == turned.tobytes()
    assert torch.equal(derived._amax_columnwise, derived._amax_rowwise)
    assert derived._columnwise_scale_inv[:16, 0].tolist() == [row] * 16
    assert whole._columnwise_scale_inv[:16, 0].tolist() == [column] * 16


@pytest.mark.rule("TEM-57", "TEM-26")
def test_master_weights_with_4over6_are_refused():
    weight = NVFP4Quantizer(with_2d_quantization=True, nvfp4_use_4over6=True)(sample(32, 32))
    with pytest.raises(NotImplementedError, match="TEM-57"):
        quantize_master_weights([weight], [sample(32, 32).flatten()], [0])


@pytest.mark.rule("TEL-25")
@pytest.mark.parametrize("kind", [NVFP4Quantizer, MXFP8Quantizer])
def test_missing_directions_are_errors(kind):
    tensor = kind(columnwise=False)(sample(32, 32))
    with pytest.raises(RuntimeError, match="2D|column"):
        tensor.update_usage(columnwise_usage=True)
    tensor.update_usage(rowwise_usage=False)
    assert not tensor.buffers()
    with pytest.raises(ValueError, match="no data"):
        tensor.dequantize()


@pytest.mark.rule("TEL-25")
def test_columns_of_swizzled_tiles_are_not_derived():
    quantizer = NVFP4Quantizer(with_2d_quantization=True, columnwise=False)
    quantizer.optimize_for_gemm = True
    with pytest.raises(RuntimeError, match="swizzled"):
        quantizer(sample(128, 128)).update_usage(columnwise_usage=True)


@pytest.mark.parametrize("kind", KINDS)
def test_shows_a_high_precision_tensor(kind):
    x = sample(64, 96)
    tensor = kind()(x)
    assert (tensor.shape, tensor.dtype, tensor.device) == (x.shape, x.dtype, x.device)
    assert tensor.size(-1) == 96
    assert tensor.numel() == x.numel()
    assert tensor.dim() == tensor.ndim == 2
    values = tensor.dequantize()
    assert torch.equal(tensor + 1, values + 1)
    assert torch.equal(tensor.t(), values.t())
    assert torch.equal(torch.cat([tensor, x]), torch.cat([values, x]))
    assert torch.equal(tensor[3:5, 1:], values[3:5, 1:])
    assert "Tensor(shape=(64, 96)" in repr(tensor)


@pytest.mark.rule("TEL-26")
@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_views_keep_bytes(kind):
    tensor = kind()(sample(64, 96))
    copy, alias, view = tensor.clone(), tensor.detach(), tensor.view(2, 32, 96)
    assert same(copy, tensor)
    assert copy.buffers()[0].data_ptr() != tensor.buffers()[0].data_ptr()
    assert alias.buffers()[0].data_ptr() == tensor.buffers()[0].data_ptr()
    assert type(view) is type(tensor)
    assert view.shape == (2, 32, 96)
    assert torch.equal(view.dequantize(), tensor.dequantize().view(2, 32, 96))
    assert torch.equal(view.reshape(-1, 96).dequantize(), tensor.dequantize())
    assert same(tensor.contiguous(), tensor)
    empty = torch.empty_like(tensor)
    assert (type(empty), empty.shape, empty.dtype) == (type(tensor), tensor.shape, tensor.dtype)
    assert [buffer.shape for buffer in empty.buffers()] == [buffer.shape for buffer in tensor.buffers()]
    assert empty.copy_(tensor) is empty
    assert same(empty, tensor)
    assert type(torch.empty_like(tensor, dtype=torch.float32)) is torch.Tensor


@pytest.mark.rule("TEL-26")
def test_views_that_change_the_last_dimension():
    tensor = NVFP4Quantizer()(sample(64, 96))
    assert torch.equal(tensor.view(96, 64), tensor.dequantize().view(96, 64))
    storage = NVFP4TensorStorage(**tensor.get_metadata())
    assert storage.view((4, 16, 96)).size() == (4, 16, 96)
    with pytest.raises(RuntimeError, match="last dimension"):
        storage.view((96, 64))


@pytest.mark.rule("TEL-27")
@pytest.mark.parametrize("kind", KINDS)
def test_split_keeps_whole_blocks(kind):
    tensor = kind()(sample(128, 96))
    values = tensor.dequantize()
    pieces = tensor.split([64, 32, 32])
    assert [type(piece) for piece in pieces] == [type(tensor)] * 3
    for piece, part in zip(pieces, values.split([64, 32, 32]), strict=True):
        assert torch.equal(piece.dequantize(), part)


@pytest.mark.rule("TEL-27")
def test_split_of_columns_reads_the_same_codes():
    tensor = NVFP4Quantizer()(sample(128, 96))
    low, high = tensor.split(64)
    codes = torch.cat([low._columnwise_data, high._columnwise_data], dim=1)
    scales = torch.cat([low._columnwise_scale_inv[:96, :4], high._columnwise_scale_inv[:96, :4]], dim=1)
    assert torch.equal(codes, tensor._columnwise_data)
    assert torch.equal(scales, tensor._columnwise_scale_inv[:96, :8])


@pytest.mark.rule("TEL-9")
def test_row_scaled_tensors_are_refused_by_name():
    tensor = NVFP4Quantizer(row_scaled_nvfp4=True)(sample(64, 96))
    assert tensor._row_scaled_nvfp4
    assert tensor._amax_rowwise.shape == (64,)
    assert tensor._amax_columnwise.shape == (96,)
    assert torch.equal(tensor.split(32)[1], tensor.dequantize()[32:])
    tensor._columnwise_data = None
    tensor._quantizer.with_2d_quantization = True
    with pytest.raises(NotImplementedError, match="row-scaled"):
        tensor.update_usage(columnwise_usage=True)


def test_operations_in_place_quantize_again():
    tensor = NVFP4Quantizer()(sample(64, 96))
    address = tensor._rowwise_data.data_ptr()
    want = NVFP4Quantizer()(tensor.dequantize() + 1)
    tensor.add_(1)
    assert same(tensor, want)
    assert tensor._rowwise_data.data_ptr() == address


def test_every_tensor_that_is_written_is_quantized_again():
    first, second = NVFP4Quantizer()(sample(64, 96)), NVFP4Quantizer()(sample(64, 96, seed=1))
    want = [NVFP4Quantizer()(tensor.dequantize() * 2) for tensor in (first, second)]
    torch._foreach_mul_([first, second], 2.0)
    assert same(first, want[0])
    assert same(second, want[1])
    assert torch.add(first, first, out=second) is second
    assert same(second, NVFP4Quantizer()(first.dequantize() * 2))
    optimizer = torch.optim.SGD([torch.nn.Parameter(first)], lr=0.5, momentum=0.9)
    parameter = optimizer.param_groups[0]["params"][0]
    before = parameter.dequantize().detach()
    parameter.grad = torch.ones(64, 96, dtype=torch.bfloat16)
    optimizer.step()
    assert same(parameter, NVFP4Quantizer()(before - 0.5))


def test_text_of_tensors():
    columns = NVFP4Quantizer(rowwise=False)(sample(32, 32))
    assert "columnwise data only" in repr(columns)
    assert "tensor(" in repr(NVFP4TensorStorage(**NVFP4Quantizer()(sample(32, 32)).get_metadata()))


def test_copying_into_and_out_of():
    x, y = sample(64, 96), sample(64, 96, seed=1)
    tensor, other = NVFP4Quantizer()(x), NVFP4Quantizer()(y)
    tensor.copy_(y)
    assert same(tensor, other)
    tensor.copy_(NVFP4Quantizer()(x))
    assert same(tensor, NVFP4Quantizer()(x))
    plain = torch.empty(64, 96)
    plain.copy_(tensor)
    assert torch.equal(plain, tensor.dequantize(dtype=torch.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_pass_through(kind):
    x = sample(64, 96, dtype=torch.float32).requires_grad_()
    (kind()(x).dequantize() * 3).sum().backward()
    assert torch.equal(x.grad, torch.full_like(x, 3))
    parameter = torch.nn.Parameter(kind()(x.detach()))
    assert isinstance(parameter, torch.Tensor)
    parameter.dequantize().sum().backward()
    assert torch.equal(parameter.grad, torch.ones(64, 96))


@pytest.mark.parametrize("kind", KINDS)
def test_saving_for_backward(kind):
    tensor, plain = kind()(sample(64, 96)), torch.ones(3)
    copy = tensor.clone()
    saved, objects = prepare_for_saving(tensor, plain, None)
    assert not tensor.buffers()
    back = restore_from_saved(objects, saved)
    assert same(back[0], copy)
    assert back[1] is plain
    assert back[2] is None


@pytest.mark.parametrize("kind", KINDS)
def test_pickle_and_save(kind):
    tensor = kind()(sample(64, 96))
    assert same(pickle.loads(pickle.dumps(tensor)), tensor)
    file = io.BytesIO()
    torch.save({"weight": tensor}, file)
    file.seek(0)
    for trusted in (False, True):
        file.seek(0)
        loaded = torch.load(file, weights_only=not trusted)["weight"]
        assert same(loaded, tensor)
        assert same(loaded._quantizer(sample(32, 32)), tensor._quantizer(sample(32, 32)))


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("delayed", [False, True])
def test_checkpoints_that_name_quantizers_where_they_were(delayed, trusted):
    maker = te.Float8CurrentScalingQuantizer()
    if delayed:
        maker = te.Float8Quantizer(torch.ones(1), torch.zeros(1), te.DType.kFloat8E4M3)
    tensor, file, earlier = maker(sample(64, 96)), io.BytesIO(), io.BytesIO()
    torch.save({"weight": tensor}, file)
    with zipfile.ZipFile(file) as written, zipfile.ZipFile(earlier, "w") as changed:
        for name in written.namelist():
            held = written.read(name)
            if name.endswith("data.pkl"):
                assert b"fp4ref.te.float8_quantizer\n" in held
                held = held.replace(b"fp4ref.te.float8_quantizer\n", b"fp4ref.te.float8_tensor\n")
            changed.writestr(name, held)
    earlier.seek(0)
    loaded = torch.load(earlier, weights_only=not trusted)["weight"]
    assert same(loaded, tensor)
    assert type(loaded._quantizer) is type(maker)


@pytest.mark.rule("TEL-15", "TEL-38", "TEL-99")
@pytest.mark.parametrize("columnwise", [False, True])
def test_gathered_buffers_of_mxfp8_are_the_whole(columnwise):
    whole, quantizer = sample(192, 64), MXFP8Quantizer(columnwise=columnwise)
    sent = [quantizer(part).fsdp_extract_buffers() for part in whole.chunk(2)]
    gathered = tuple(torch.cat(parts) for parts in zip(*(buffers for buffers, _ in sent), strict=True))
    assert [len(buffer) for buffer in gathered] == [192, 192, 192, 6][: len(gathered)]
    target = quantizer(torch.zeros(192, 64))
    target.fsdp_assign_gathered(gathered, sent[0][1])
    assert sent[0][1]["field_names"] == target.fsdp_buffer_fields()
    assert same(target, quantizer(whole))
    quantizer.optimize_for_gemm = True
    with pytest.raises(NotImplementedError, match="fsdp_extract_buffers"):
        quantizer(whole).fsdp_extract_buffers()


@pytest.mark.rule("TEL-15", "TEL-81")
@pytest.mark.parametrize(("width", "codes", "scales"), [(128, [64, 64], [64, 8]), (96, [64, 48], [64, 8])])
def test_padding_columns_of_scales_are_sent_and_padding_rows_are_not(width, codes, scales):
    shard = NVFP4Quantizer(columnwise=False)(sample(64, width))
    sent, _ = shard.fsdp_pre_all_gather(None, shard.shape, None, None, None)
    assert [list(part.shape) for part in sent] == [codes, scales]


def test_storage_without_the_tensor():
    quantizer = NVFP4Quantizer()
    quantizer.internal = True
    storage = quantizer(sample(64, 96))
    assert type(storage) is NVFP4TensorStorage
    assert not isinstance(storage, torch.Tensor)
    assert (storage.shape, storage.dtype, storage.device.type) == ((64, 96), torch.bfloat16, "cpu")
    again = NVFP4TensorStorage(**storage.get_metadata())
    assert torch.equal(again.dequantize(dtype=torch.float32), storage.dequantize(dtype=torch.float32))
    storage.clear()
    assert storage._rowwise_data.numel() == 0


def test_storage_of_other_settings_is_not_copied():
    plain = NVFP4Quantizer()(sample(64, 96))
    quantizer = NVFP4Quantizer()
    quantizer.optimize_for_gemm = True
    with pytest.raises(RuntimeError, match="with_gemm_swizzled_scales"):
        plain.copy_from_storage(quantizer(sample(64, 96)))


def test_arguments_by_position():
    tensor = NVFP4Quantizer()(sample(64, 96))
    whole = tensor.get_metadata()
    names = ["rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv", "amax_rowwise"]
    names += ["amax_columnwise", "fp4_dtype", "quantizer", "with_gemm_swizzled_scales"]
    again = NVFP4TensorStorage(*(whole[name] for name in names))
    assert torch.equal(again.dequantize(dtype=torch.float32), tensor.dequantize(dtype=torch.float32))
    with pytest.raises(ValueError, match="10 arguments"):
        NVFP4TensorStorage(*range(10))


def test_unknown_arguments_are_refused():
    with pytest.raises(ValueError, match="colour"):
        NVFP4TensorStorage(colour=1)


@pytest.mark.parametrize("kind, bits", [(NVFP4Quantizer, 4.5), (MXFP8Quantizer, 8.25)])
def test_memory_is_packed(kind, bits):
    tensor = kind(columnwise=False)(sample(1024, 1024))
    held = sum(buffer.untyped_storage().nbytes() for buffer in tensor.buffers())
    assert held - 4 <= 1024 * 1024 * bits / 8


def parts(tensor, count):
    """What `count` equal shards with the tensor's amax send, gathered as the hooks' caller does."""
    shards = tensor.split(tensor.shape[0] // count)
    sent = [shard.fsdp_pre_all_gather(None, None, None, None, None) for shard in shards]
    gathered = tuple(torch.cat(pieces) for pieces in zip(*(tensors for tensors, _ in sent), strict=True))
    return shards[0], gathered, sent[0][1]


@pytest.mark.rule("TEL-15", "TEL-37")
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize(
    "quantizer", [NVFP4Quantizer(with_2d_quantization=True), NVFP4Quantizer(columnwise=False), MXFP8Quantizer()]
)
def test_gathered_shards_are_the_whole(quantizer, count):
    whole = quantizer(sample(256, 160))
    shard, gathered, metadata = parts(whole, count)
    made, inner = shard.fsdp_post_all_gather(gathered, metadata, torch.bfloat16)
    assert inner is gathered
    assert type(made) is type(whole)
    assert made.shape == (256, 160)
    assert [buffer.shape for buffer in made.buffers()] == [buffer.shape for buffer in whole.buffers()]
    for direction in whole.directions():
        got, want = made.record(direction), whole.record(direction)
        assert torch.equal(got.row.data, want.row.data)
        rows, blocks = got.shape[0], -(-got.shape[1] // got.spec.block.columns)
        assert torch.equal(got.row.scales[:rows, :blocks], want.row.scales[:rows, :blocks])
    addresses = [buffer.data_ptr() for buffer in made.buffers()]
    again, _ = shard.fsdp_post_all_gather(tuple(map(torch.clone, gathered)), metadata, torch.bfloat16, out=made)
    assert again is made
    assert [buffer.data_ptr() for buffer in made.buffers()] == addresses


@pytest.mark.rule("TEL-9", "TEL-37", "TEL-38")
def test_shards_that_cannot_be_gathered():
    swizzled, mx = NVFP4Quantizer(with_2d_quantization=True), MXFP8Quantizer()
    swizzled.optimize_for_gemm = mx.optimize_for_gemm = True
    for quantizer, said in (
        (swizzled, "GEMM-swizzled"),
        (mx, "GEMM-swizzled"),
        (NVFP4Quantizer(), "2D"),
        (NVFP4Quantizer(row_scaled_nvfp4=True), "row-scaled"),
    ):
        with pytest.raises(NotImplementedError, match=said):
            quantizer(sample(128, 128)).fsdp_pre_all_gather(None, None, None, None, None)


def test_views_of_everything_keep_bytes():
    tensor = NVFP4Quantizer()(sample(64, 96))
    aten = torch.ops.aten
    for view in (
        aten.as_strided.default(tensor, [64, 96], [96, 1], 0),
        aten.slice.Tensor(tensor, 0, 0, 64),
        tensor.expand(64, 96),
    ):
        assert type(view) is type(tensor)
        assert same(view, tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_other_types_and_devices(kind):
    tensor = kind()(sample(64, 96))
    assert torch.equal(tensor.to(torch.float64), tensor.dequantize().double())
    assert torch.equal(tensor.float(), tensor.dequantize(dtype=torch.float32))
    assert tensor.to(torch.bfloat16) is tensor
    assert same(tensor.cpu(), tensor)
    assert type(tensor.to("cpu", copy=True)) is type(tensor)


@pytest.mark.parametrize("kind", KINDS)
def test_assigning_data(kind):
    tensor, other = kind()(sample(64, 96)), kind()(sample(32, 64, seed=1))
    tensor.data = other
    assert tensor.shape == (32, 64)
    assert same(tensor, other)
    assert tensor.buffers()[0] is other.buffers()[0]
    plain = sample(96, 64, seed=2, dtype=torch.float16)
    tensor.data = plain
    assert (tensor.shape, tensor.dtype) == ((96, 64), torch.float16)
    assert same(tensor, kind()(plain))


@pytest.mark.parametrize(
    "operation", [torch.clone, torch.Tensor.contiguous, lambda x: x.view(96, 64), lambda x: x.reshape(2, 48, 64)]
)
@pytest.mark.parametrize("kind", KINDS)
def test_identities_have_gradients(kind, operation):
    tensor = kind()(sample(96, 64)).requires_grad_()
    result = operation(tensor)
    result.backward(torch.ones(result.shape, dtype=torch.bfloat16))
    assert torch.equal(tensor.grad, torch.ones(96, 64, dtype=torch.bfloat16))


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_have_gradients(kind):
    tensor = kind()(sample(128, 64)).requires_grad_()
    _, second = torch.chunk(tensor, 2)
    assert type(second) is type(tensor)
    (second * 3).sum().backward()
    want = torch.zeros(128, 64, dtype=torch.bfloat16)
    want[64:] = 3
    assert torch.equal(tensor.grad, want)


@pytest.mark.rule("TEL-27")
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_per_tensor_fp8_is_split_along_any_dimension(dim):
    tensor = Float8Quantizer()(torch.randn(6, 4))
    for piece, expected in zip(tensor.chunk(2, dim=dim), tensor.dequantize().chunk(2, dim=dim), strict=True):
        assert isinstance(piece, te.Float8Tensor)
        assert torch.equal(piece.dequantize(), expected)


def test_per_tensor_fp8_of_one_number():
    quantizer = te.Float8Quantizer(torch.full([1], 3.5), torch.zeros(1), te.DType.kFloat8E4M3)
    values = quantizer(torch.tensor(2.0)).dequantize()
    assert values.shape == ()
    assert values.item() == 2.0


@pytest.mark.parametrize("kind", KINDS)
def test_codes_may_be_moved_into_other_memory(kind):
    tensor = kind()(sample(128, 128))
    name = "_data" if kind is Float8Quantizer else "_rowwise_data"
    before, memory = tensor.dequantize(), torch.empty_like(getattr(tensor, name))
    replace_raw_data(tensor, memory)
    assert getattr(tensor, name).data_ptr() == memory.data_ptr()
    assert torch.equal(tensor.dequantize(), before)
    with pytest.raises(ValueError, match="replace_raw_data"):
        replace_raw_data(tensor, memory[:1])
