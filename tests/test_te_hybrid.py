"""A quantizer per direction: the parts' bytes, and layers against products of operands that were quantized by hand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.te import quantizer_factories, quantizer_factory_zoo  # noqa: E402
from fp4ref.te.recipe import CustomRecipe  # noqa: E402
from fp4ref.te.roles import DelayedScalingRequest, QuantizerRole  # noqa: E402
from fp4ref.te.swizzle import swizzle_in_place  # noqa: E402

BF16 = torch.bfloat16


def rows_of(quantizer):
    quantizer.set_usage(rowwise=True, columnwise=False)
    return quantizer


def columns_of(quantizer):
    quantizer.set_usage(rowwise=False, columnwise=True)
    return quantizer


@pytest.mark.rule("TEL-56", "TEL-25", "TEL-59")
@pytest.mark.parametrize("source", ["original", "rowwise_dequantized"])
def test_each_direction_has_the_bytes_of_its_quantizer(source):
    x = torch.randn(64, 96, dtype=BF16)
    hybrid = te.HybridQuantizer(
        rowwise_quantizer=te.MXFP8Quantizer(), columnwise_quantizer=te.NVFP4Quantizer(), columnwise_source=source
    )
    made = hybrid(x)
    rows = rows_of(te.MXFP8Quantizer())(x)
    columns = columns_of(te.NVFP4Quantizer())(x if source == "original" else rows.dequantize())
    assert torch.equal(made._rowwise_storage._rowwise_data, rows._rowwise_data)
    assert torch.equal(made._columnwise_storage._columnwise_data, columns._columnwise_data)
    assert torch.equal(made._columnwise_storage._columnwise_scale_inv, columns._columnwise_scale_inv)
    assert made._rowwise_storage._columnwise_data is None
    assert torch.equal(made.dequantize(), rows.dequantize())
    assert (made.shape, made.dtype, made.directions()) == ((64, 96), BF16, ["row", "column"])
    address = made._rowwise_storage._rowwise_data.data_ptr()
    made.quantize_(2 * x)
    assert made._rowwise_storage._rowwise_data.data_ptr() == address
    assert torch.equal(made.dequantize(), 2 * rows.dequantize())
    before = made.dequantize()
    made.quantize_(x, noop_flag=torch.ones(1))
    assert torch.equal(made.dequantize(), before)
    made.update_usage(rowwise_usage=False)
    assert made.directions() == ["column"]
    with pytest.raises(ValueError, match="row"):
        made.update_usage(rowwise_usage=True)
    hybrid.set_usage(rowwise=False, columnwise=True)
    assert torch.equal(hybrid(x)._columnwise_storage._columnwise_data, columns._columnwise_data)


@pytest.mark.rule("TEL-56")
def test_what_is_no_pair_of_quantizers_is_refused():
    one = te.MXFP8Quantizer()
    for given in (DelayedScalingRequest(), None):
        with pytest.raises(TypeError, match="columnwise_quantizer"):
            te.HybridQuantizer(rowwise_quantizer=one, columnwise_quantizer=given)
    with pytest.raises(ValueError, match="distinct"):
        te.HybridQuantizer(rowwise_quantizer=one, columnwise_quantizer=one)
    with pytest.raises(ValueError, match="columnwise_source"):
        te.HybridQuantizer(rowwise_quantizer=one, columnwise_quantizer=te.MXFP8Quantizer(), columnwise_source="columns")
    with pytest.raises(TypeError, match="HybridQuantizer"):
        te.HybridQuantizedTensorStorage(rowwise_storage=None, columnwise_storage=None, quantizer=one)


def step(module, x, recipe, *rest):
    leaf = x.clone().requires_grad_()
    with te.autocast(enabled=recipe is not None, recipe=recipe):
        y = module(leaf, *rest)
    y.backward(torch.ones_like(y) + y.detach())
    return [y.detach(), leaf.grad, *(p.grad.clone() for p in module.parameters())]


@pytest.mark.rule("TEL-60")
@pytest.mark.parametrize("kind", ["Linear", "LayerNormLinear", "LayerNormMLP", "GroupedLinear"])
def test_high_precision_operands_are_those_of_no_recipe(kind):
    torch.manual_seed(0)
    if kind == "GroupedLinear":
        module, rest = te.GroupedLinear(2, 64, 96, params_dtype=BF16), ([32, 64],)
    else:
        module, rest = getattr(te, kind)(64, 96, params_dtype=BF16), ()
    x = torch.randn(96, 64, dtype=BF16)
    plain = step(module, x, None, *rest)
    module.zero_grad()
    for a, b in zip(
        plain, step(module, x, CustomRecipe(qfactory=quantizer_factories.high_precision_factory), *rest), strict=True
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.rule("TEL-57", "TEL-88", "TEM-3")
@pytest.mark.parametrize("cached", [False, True])
def test_mxfp8_forward_and_nvfp4_backward(cached):
    torch.manual_seed(0)
    module = te.Linear(64, 96, bias=False, params_dtype=BF16)
    x = torch.randn(32, 64, dtype=BF16)
    plain = {"with_rht": True, "with_post_rht_amax": True}

    def factory(role):
        if role is not None and role.tensor_type == "grad_output":
            return te.NVFP4Quantizer(**plain)  # without random bits
        return quantizer_factory_zoo.mxfp8_fwd_nvfp4_bwd_factory(role)

    recipe = CustomRecipe(qfactory=factory)
    rest = (True,) if cached else ()
    y, dx, dw = step(module, x, recipe, *rest)
    if cached:
        module.zero_grad()
        again = step(module, x, recipe, False)
        assert all(torch.equal(a, b) for a, b in zip((y, dx, dw), again, strict=True))
    weight = module.weight.detach()
    rows = [rows_of(te.MXFP8Quantizer())(part) for part in (weight, x)]
    assert torch.equal(y, te.general_gemm(*rows, out_dtype=BF16)[0])
    gradient = te.NVFP4Quantizer(**plain)(1 + y)
    turned = columns_of(te.NVFP4Quantizer())(rows[0].dequantize())
    assert torch.equal(dx, te.general_gemm(turned, gradient, out_dtype=BF16, layout="NN", grad=True)[0])
    inputs = columns_of(te.NVFP4Quantizer(**plain))(x)
    assert torch.equal(dw, te.general_gemm(inputs, gradient, out_dtype=BF16, layout="NT", grad=True)[0])


@pytest.mark.rule("TEL-57")
@pytest.mark.parametrize(
    "name", [name for name in vars(quantizer_factory_zoo) if name.endswith("_bwd_factory") or "1d" in name]
)
@pytest.mark.parametrize("kind", ["LayerNormMLP", "GroupedLinear"])
def test_every_factory_trains(name, kind):
    torch.manual_seed(0)
    grouped = kind == "GroupedLinear"
    module = te.GroupedLinear(2, 64, 64, params_dtype=BF16) if grouped else te.LayerNormMLP(64, 128, params_dtype=BF16)
    recipe = CustomRecipe(qfactory=getattr(quantizer_factory_zoo, name))
    x, rest = torch.randn(96, 64, dtype=BF16), ([32, 64],) if grouped else ()
    plain = step(module, x, None, *rest)
    module.zero_grad()
    for a, b in zip(step(module, x, recipe, *rest), plain, strict=True):
        assert (a.float() - b.float()).norm() < 0.6 * b.float().norm()
        assert a.isfinite().all()


@pytest.mark.rule("TEL-57")
def test_the_tables_of_the_factories():
    zoo = quantizer_factory_zoo

    def made(name, tensor, module="linear"):
        return getattr(zoo, name)(QuantizerRole(module, tensor))

    row_scaled = made("nvfp4_row_scaled_fwd_high_precision_bwd_factory", "input")
    assert row_scaled.rowwise_quantizer.row_scaled_nvfp4
    assert isinstance(row_scaled.columnwise_quantizer, te.IdentityQuantizer)
    assert row_scaled.columnwise_source == "rowwise_dequantized"
    assert not made("nvfp4_row_scaled_fwd_high_precision_bwd_factory", "weight").rowwise_quantizer.row_scaled_nvfp4
    assert made("mxfp8_fwd_nvfp4_bwd_factory", "input").columnwise_source == "original"
    assert made("mxfp8_fwd_nvfp4_bwd_factory", "input").columnwise_quantizer.with_rht
    assert not made("mxfp8_fwd_nvfp4_bwd_factory", "weight").columnwise_quantizer.with_rht
    assert made("mxfp8_fwd_nvfp4_bwd_factory", "grad_output").stochastic_rounding
    grouped = made("nvfp4_row_scaled_fwd_mxfp8_bwd_factory", "input", "grouped_linear")
    assert isinstance(grouped.columnwise_quantizer, te.MXFP8Quantizer)
    assert isinstance(made("nvfp4_row_scaled_fwd_mxfp8_bwd_factory", "input"), te.MXFP8Quantizer)
    assert isinstance(zoo.high_precision_fwd_mxfp8_bwd_factory(None).rowwise_quantizer, te.IdentityQuantizer)


BLOCKS = te.DType.kFloat8E4M3
PARTS = {
    "mxfp8": te.MXFP8Quantizer,
    "current": te.Float8CurrentScalingQuantizer,
    "squares": lambda: te.Float8BlockQuantizer(BLOCKS, rowwise=True, columnwise=True, block_scaling_dim=2),
    "exact": te.IdentityQuantizer,
}


def hybrid_of(rows, columns):
    return te.HybridQuantizer(rowwise_quantizer=PARTS[rows](), columnwise_quantizer=PARTS[columns]())


def pairs():
    return pytest.mark.parametrize("rows, columns", [(a, b) for a in PARTS for b in PARTS])


@pairs()
@pytest.mark.rule("TEL-56", "TEL-27")
def test_a_hybrid_tensor_is_a_tensor_whose_views_and_copies_are_those_of_both_parts(rows, columns):
    x = torch.randn(256, 128, dtype=BF16)
    made = hybrid_of(rows, columns)(x)
    assert isinstance(made, te.HybridQuantizedTensor)
    assert made.shape == x.shape
    both = [part.dequantize() for part in (made.rowwise_sub_storage, made.columnwise_sub_storage)]
    pieces = torch.split(made, 128)
    for number, part in enumerate(both):
        name = ("rowwise_sub_storage", "columnwise_sub_storage")[number]
        assert torch.equal(torch.cat([getattr(piece, name).dequantize() for piece in pieces]), part)
        for other in (made.clone(), made.detach(), made.view(256, 128), made.to("cpu"), made.contiguous()):
            assert isinstance(other, te.HybridQuantizedTensor)
            assert torch.equal(getattr(other, name).dequantize(), part)
    zeros = made.new_zeros(made.shape)
    assert not zeros.dequantize().any()
    zeros.copy_(made)
    assert torch.equal(zeros.dequantize(), both[0])
    made.detach().prepare_for_saving()
    assert torch.equal(made.dequantize(), both[0])  # the copy let go of its own


@pairs()
@pytest.mark.rule("TEL-15", "TEL-38", "TEL-40")
def test_gathered_shards_are_the_bytes_of_the_whole(rows, columns):
    x = torch.randn(384, 192, dtype=BF16)
    x[0, 0], x[128, 0], x[256, 0] = 9, 9, 9  # one largest value in all shards, as the processes agree on it
    whole = hybrid_of(rows, columns)(x)
    shards = [hybrid_of(rows, columns)(part) for part in x.split(128)]
    sent = [shard.fsdp_pre_all_gather(None, x.shape, x.stride(), None, None) for shard in shards]
    gathered = tuple(torch.cat(parts) for parts in zip(*(buffers for buffers, _ in sent), strict=True))
    first, _ = shards[0].fsdp_post_all_gather(gathered, sent[0][1], BF16)
    again, _ = shards[0].fsdp_post_all_gather(gathered, sent[0][1], BF16, out=first)
    assert again is first
    for part, other in zip(first.parts().values(), whole.parts().values(), strict=True):
        assert part.shape == other.shape == x.shape
        for name in other.BUFFERS:
            ours, theirs = getattr(part, name), getattr(other, name)
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, theirs), name


@pytest.mark.rule("TEL-38")
def test_shards_of_broken_squares_and_of_rows_of_blocks_are_refused():
    squares = PARTS["squares"]()(torch.randn(192, 128))
    with pytest.raises(ValueError, match="192 rows"):
        squares.fsdp_pre_all_gather(None, squares.shape, squares.stride(), None, None)
    lines = te.Float8BlockQuantizer(BLOCKS, rowwise=True, columnwise=True, block_scaling_dim=1)(torch.randn(128, 128))
    with pytest.raises(NotImplementedError, match="1D"):
        lines.fsdp_extract_buffers()
    packed = te.HybridQuantizer(rowwise_quantizer=te.NVFP4Quantizer(), columnwise_quantizer=te.MXFP8Quantizer())
    with pytest.raises(NotImplementedError, match="NVFP4Tensor"):
        packed(torch.randn(128, 128)).fsdp_extract_buffers()


@pytest.mark.rule("TEM-10", "TEM-26", "TEM-52")
def test_both_parts_are_written_from_all_master_values():
    from fp4ref.te.master_weights import quantize_master_weights

    quantizer, x = hybrid_of("current", "exact"), torch.randn(64, 96)
    model = quantizer(torch.zeros_like(x).bfloat16())
    quantize_master_weights([model], [x.flatten()], [0])
    expected = quantizer(x.bfloat16())
    for part, other in zip(model.parts().values(), expected.parts().values(), strict=True):
        for name in other.BUFFERS:
            assert torch.equal(getattr(part, name), getattr(other, name)), name
    for refused, master, words in (
        (model, x.flatten()[:96], "partial master shard"),
        (hybrid_of("mxfp8", "current")(x), x.flatten(), "MXFP8Quantizer rowwise"),
    ):
        with pytest.raises((ValueError, NotImplementedError), match=words):
            quantize_master_weights([refused], [master], [0])


@pytest.mark.rule("TEL-56")
@pytest.mark.parametrize("rows, columns", [("mxfp8", "exact"), ("current", "mxfp8"), ("exact", "exact")])
def test_hybrid_parameters_train_and_are_loaded_safely(tmp_path, rows, columns):
    recipe = CustomRecipe(qfactory=lambda role: hybrid_of(rows, columns))
    with te.quantized_model_init(recipe=recipe):
        layer = te.Linear(64, 64)
    assert isinstance(layer.weight, te.HybridQuantizedTensor)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    read = torch.load(tmp_path / "layer.pt", weights_only=True)["weight"]
    assert isinstance(read, te.HybridQuantizedTensor)
    for direction in ("row", "column"):
        pair = (tensor.read_in(direction).dequantize() for tensor in (read, layer.weight))
        assert torch.equal(*pair)
    optimizer, x = te.optimizers.FusedAdam(layer.parameters(), lr=0.01, master_weights=True), torch.randn(64, 64)
    losses = []
    for _ in range(4):
        with te.autocast(recipe=recipe):
            loss = (layer(x) - x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert isinstance(layer.weight, te.HybridQuantizedTensor)


@pytest.mark.rule("TEM-42")
@pytest.mark.parametrize("kind", ["Linear", "GroupedLinear"])
def test_columns_of_stochastic_rows_are_those_of_fprop(kind):
    def factory(role):
        tensor = getattr(role, "tensor_type", "")
        if tensor == "grad_output":
            return te.IdentityQuantizer()
        if tensor == "weight":
            return te.HybridQuantizer(
                rowwise_quantizer=te.NVFP4Quantizer(), columnwise_quantizer=te.IdentityQuantizer()
            )
        drawn = te.NVFP4Quantizer(stochastic_rounding=True)
        return te.HybridQuantizer(
            rowwise_quantizer=drawn,
            columnwise_quantizer=te.IdentityQuantizer(),
            columnwise_source="rowwise_dequantized",
        )

    found, x = [], torch.randn(128, 64, dtype=BF16)
    for original in (False, True):
        torch.manual_seed(3)
        rest = ()
        if kind == "GroupedLinear":
            layer, rest = te.GroupedLinear(2, 64, 64, params_dtype=BF16, save_original_input=original), ([64, 64],)
        else:
            layer = te.Linear(64, 64, params_dtype=BF16, save_original_input=original)
        torch.manual_seed(4)
        given = x.clone().requires_grad_()
        with te.autocast(recipe=CustomRecipe(qfactory=factory)):
            if original:
                with pytest.warns(UserWarning, match="save_original_input"):
                    y = layer(given, *rest)
            else:
                y = layer(given, *rest)
        y.sum().backward()
        found.append([y, given.grad, *(each.grad for each in layer.parameters())])
    assert all(map(torch.equal, *found))
    quantizer = te.MXFP8Quantizer()
    assert quantizer.reconstructs_from_original()
    assert te.HybridQuantizer(
        rowwise_quantizer=te.NVFP4Quantizer(stochastic_rounding=True), columnwise_quantizer=quantizer
    ).reconstructs_from_original()


@pytest.mark.rule("TEL-5", "TEL-29")
def test_storage_of_other_names_gets_its_scales_swizzled():
    class Renamed(te.MXFP8TensorStorage):
        BUFFERS = ("_rowwise_data", "_columnwise_data", "_of_rows", "_of_columns")

        def scales_buffer(self, direction):
            return self._of_rows if direction == "row" else self._of_columns

        def record(self, direction):
            plain = te.MXFP8TensorStorage(
                **{name: getattr(self, f"_{name}") for name in ("rowwise_data", "columnwise_data", "fp8_dtype")},
                rowwise_scale_inv=self._of_rows,
                columnwise_scale_inv=self._of_columns,
            )
            return plain.record(direction)

    quantizer = te.MXFP8Quantizer()
    quantizer.internal = True
    made = quantizer(torch.randn(128, 128))
    other = Renamed(
        rowwise_data=made._rowwise_data,
        columnwise_data=made._columnwise_data,
        of_rows=made._rowwise_scale_inv.clone(),
        of_columns=made._columnwise_scale_inv.clone(),
        fp8_dtype=made._fp8_dtype,
    )
    swizzle_in_place(made, "input", new=True)
    swizzle_in_place(other, "input", new=True)
    assert torch.equal(other._of_rows, made._rowwise_scale_inv)
    assert torch.equal(other._of_columns, made._columnwise_scale_inv)
