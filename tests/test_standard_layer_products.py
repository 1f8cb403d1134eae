"""Examples of the chapter on recipes and caching, acted out: products, groups, shards and the alias."""

from __future__ import annotations

import importlib
import re
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.standard import formulas  # noqa: E402
from fp4ref.te import general_gemm, general_grouped_gemm, generic_gemm  # noqa: E402
from fp4ref.te.errors import NotEmulatedError  # noqa: E402
from fp4ref.te.product import wide_dtype  # noqa: E402
from standard_rules import integers, rows_of, text_of  # noqa: E402
from te_samples import sample  # noqa: E402

BF16 = torch.bfloat16
RHT = {"with_rht": True, "with_post_rht_amax": True}
TILES = {"with_2d_quantization": True}
COMPILED = (None, None, None, None, None, False, None, False, None, 0, False, False)  # after A, B and their letters
KINDS = {
    "NVFP4": te.NVFP4Quantizer,
    "MXFP8": te.MXFP8Quantizer,
    "per-tensor FP8": te.Float8CurrentScalingQuantizer,
    "block-scaled FP8": te.Float8BlockQuantizer,
    "in high precision": lambda: lambda x: x,
    "a tensor in high precision": lambda: lambda x: x,
}


def number(cell):
    return float(formulas.value(cell.strip("` ")))


def words(cell):
    return re.findall("`(.*?)`", cell)


@pytest.mark.rule("TEL-11")
@pytest.mark.example("TEL-11")
def test_letters_of_layouts():
    sizes = {"M": 64, "N": 96, "K": 128}
    quantizer = te.MXFP8Quantizer()
    meaning = {"rows": ("row", "T", "N"), "columns": ("column", "N", "T")}
    for layout, *operands, result in rows_of("TEL-11"):
        formula, shape = re.fullmatch(r"(.*), (\[.*\])", result).groups()
        given, kinds = [], []
        for place, cell in enumerate(operands):
            direction = meaning[cell.split()[0]]
            assert layout[place] == direction[1 + place]
            size = [sizes[name] for name in re.search(r"\[(\w), (\w)\]", cell).groups()]
            given.append(torch.randint(-2, 3, size, generator=torch.Generator().manual_seed(place)).float())
            kinds.append(direction[0])
        made = [quantizer(x) for x in given]
        for tensor, direction in zip(made, kinds, strict=True):  # the other direction is not read
            tensor.update_usage(rowwise_usage=direction == "row", columnwise_usage=direction == "column")
        letters = (letter == "T" for letter in layout)
        got = generic_gemm(made[0], next(letters), made[1], next(letters), *COMPILED)[0]
        assert layout == "TT" or torch.equal(general_gemm(*made, layout=layout)[0], got)
        a, b = given
        terms = [{"A": a, "A^T": a.T, "B": b, "B^T": b.T}[word] for word in formula.split()]
        assert torch.equal(got, terms[0] @ terms[1])
        assert [*got.shape] == [sizes[name] for name in re.findall(r"\w", shape)]


@pytest.mark.rule("TEL-30")
@pytest.mark.example("TEL-30")
def test_layouts_of_entry_points():
    (name, layouts), (other, booleans) = rows_of("TEL-30")
    assert words(other) == ["generic_gemm", "transa", "transb"][:1]
    assert words(booleans) == ["transa", "transb"]
    x = {letters: sample(32, 32, seed=number) for number, letters in enumerate("AB")}
    taken = [word.strip('"') for word in words(layouts)]
    products = {
        "general_gemm": lambda layout: general_gemm(x["A"], x["B"], layout=layout)[0],
        "general_grouped_gemm": lambda layout: general_grouped_gemm(
            [x["A"]], [x["B"]], [torch.empty(32, 32, dtype=BF16)], layout=layout
        )[0][0],
    }
    assert words(name) == [*products]
    for product in products.values():
        for layout in ("TN", "NN", "NT", "TT", "tn", "T"):
            if layout in taken:
                assert product(layout).shape == (32, 32)
                continue
            with pytest.raises(ValueError, match=rf"{layout!r}.*TEL-30"):
                product(layout)
    (call, outcome), (compiled, result) = rows_of("TEL-30", 1)
    assert outcome == "refused"
    assert re.search('layout="(.*?)"', call)[1] not in taken
    assert words(compiled) == ["generic_gemm(a, True, b, True, ...)"]
    assert result == "B^T A^T"
    a, b = (torch.randint(-2, 3, (32, 32)).float() for _ in "AB")
    assert torch.equal(generic_gemm(a, True, b, True, *COMPILED)[0], b.T @ a.T)
    assert torch.equal(generic_gemm(a, False, b, True, *COMPILED)[0], b.T @ a)


@pytest.mark.rule("TEL-96", "TEL-97", "TEL-98")
@pytest.mark.example("TEL-96", "TEL-97", "TEL-98")
def test_operands():
    x = sample(128, 128)
    for cell, outcome in rows_of("TEL-96"):
        if outcome == "taken":
            for kind in re.split(", (?=[A-Zpb])", cell):
                made = KINDS[kind]()(x)
                assert general_gemm(made, made)[0].shape == (128, 128)
            continue
        assert outcome == "refused"
        given = {"a list of numbers": [[1.0, 2.0]], "a NumPy array": np.ones((32, 128), "f4"), "None": None}
        assert cell.split(", ") == [*given]
        for other in given.values():
            for pair in ((other, x), (x, other)):
                with pytest.raises(ValueError, match="TEL-96"):
                    general_gemm(*pair)
    hybrid = te.HybridQuantizer(rowwise_quantizer=te.MXFP8Quantizer(), columnwise_quantizer=te.NVFP4Quantizer())(x)
    assert torch.equal(general_gemm(hybrid, x)[0], general_gemm(te.MXFP8Quantizer()(x), x)[0])
    for *cells, outcome in rows_of("TEL-97"):
        a, b = (te.MXFP8Quantizer()(sample(*integers(cell))) for cell in cells)
        if outcome != "refused":
            assert [*general_gemm(a, b)[0].shape] == integers(outcome)
            continue
        with pytest.raises(ValueError, match="TEL-97"):
            general_gemm(a, b)
    for *cells, outcome in rows_of("TEL-98"):
        for order in (cells, cells[::-1]):
            a, b = (KINDS[cell]()(x) for cell in order)
            if outcome == "taken":
                general_gemm(a, b)
                continue
            assert outcome == "refused"
            with pytest.raises(ValueError, match="TEL-98"):
                general_gemm(a, b)


@pytest.mark.rule("TEL-31", "TEL-77")
@pytest.mark.example("TEL-77")
def test_sums_of_products():
    ((cell, said),) = rows_of("TEL-77")
    terms = [number(each) for each in re.split(", | and ", cell)]
    sums = [number(each) for each in re.findall(r"1(?: \+ 2\^-\d+)?", said.partition(", as")[0])]
    assert sums == [terms[0], terms[0] + sum(terms[1:])]
    a = torch.tensor([terms])
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2]):
        got = general_gemm(torch.ones(1, 3), a[:, order], out_dtype=torch.float32)[0]
        assert got.item() in sums
    exact = general_gemm(torch.ones(1, 2), torch.tensor([[1.0, 2.0**-23]]))[0]
    assert exact.item() == 1 + 2.0**-23


@pytest.mark.rule("TEL-31")
@pytest.mark.example("TEL-31")
@pytest.mark.parametrize("size", [32, 256])
def test_types_of_operands(size):
    """Codes times scales of 2^-133 and below are subnormal in bfloat16, and exact in float32."""
    assert [cell for cell, _ in rows_of("TEL-31")] == ["CPU", "others"]
    said = dict(rows_of("TEL-31"))["CPU"]
    assert said.startswith("float32; bfloat16 for a large product of that type")
    assert said.endswith("normal or 0 in it")
    small = torch.full((size, size), 1.75 * 2.0**-126).bfloat16()
    a = te.MXFP8Quantizer(columnwise=False)((torch.eye(size) * 2.0**100).bfloat16())
    b = te.MXFP8Quantizer(columnwise=False)(small)
    for kind in (torch.float32, BF16):
        assert torch.equal(general_gemm(a, b, out_dtype=kind)[0], (small.float() * 2.0**100).to(kind))
    assert dict(rows_of("TEL-31"))["others"] == "bfloat16"
    types = {device: wide_dtype(torch.device(device)) for device in ("cpu", "cuda", "meta")}
    assert types == {"cpu": torch.float32, "cuda": BF16, "meta": BF16}


def product_of(*terms, **options):
    """A product in bfloat16 whose float32 sums are those of some terms."""
    x, weight = torch.tensor([terms]).bfloat16(), torch.ones(1, len(terms), dtype=BF16)
    return general_gemm(weight, x, out_dtype=BF16, **options)[0]


@pytest.mark.rule("TEL-32")
@pytest.mark.example("TEL-32")
def test_steps_behind_a_product():
    for sums, bias, added, said in rows_of("TEL-32"):
        result, formula = said.split(": ")
        out = torch.full((1, 1), number(added), dtype=BF16)
        got = product_of(number(sums), bias=torch.full((1,), number(bias), dtype=BF16), out=out, accumulate=True)
        assert got.item() == number(result) == float(formulas.value(formula))


@pytest.mark.rule("TEL-9", "TEL-35")
@pytest.mark.example("TEL-9", "TEL-35")
def test_operations_on_row_scaled_tensors():
    tensor = te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(sample(32, 64))
    weight = te.NVFP4Quantizer()(sample(48, 64, seed=1))
    assert tensor._row_scaled_nvfp4
    assert not weight._row_scaled_nvfp4
    calls = {
        "dequantize()": tensor.dequantize,
        "general_gemm": lambda: general_gemm(weight, tensor),
        "general_grouped_gemm": lambda: general_grouped_gemm([weight], [tensor], [torch.empty(32, 48, dtype=BF16)]),
        "generic_gemm": lambda: generic_gemm(weight, True, tensor, False, *COMPILED),
        "fsdp_pre_all_gather": lambda: tensor.fsdp_pre_all_gather(None, None, None, None, None),
    }
    seen = []
    for cell, outcome in rows_of("TEL-9"):
        for name in words(cell):
            seen.append(name)
            if outcome == "served":
                calls[name]()
                continue
            assert outcome == "refused"
            with pytest.raises(NotImplementedError, match="row-scaled.*TEL-9"):
                calls[name]()
    assert seen == [*calls]
    (option, outcome), (other, added) = rows_of("TEL-35")
    name, value = words(option)[0].split("=")
    assert (value, outcome) == ("True", "refused")
    bias = sample(48, seed=2)
    for options in ({name: True}, {"quantization_params": te.NVFP4Quantizer()}, {"bias": bias, "grad": True}):
        with pytest.raises(AssertionError, match="TEL-35"):
            general_gemm(weight, tensor, **options)
    assert words(other) == ["bias", "grad"]
    assert added.startswith("added in float32")
    plain = general_gemm(weight, tensor, out_dtype=torch.float32)[0]
    assert torch.equal(general_gemm(weight, tensor, out_dtype=torch.float32, bias=bias)[0], plain + bias.float())


@pytest.mark.rule("TEL-78")
@pytest.mark.example("TEL-78")
def test_what_is_added_to_a_row_scaled_product():
    for cell, added, said in rows_of("TEL-78"):
        sums, bias = map(number, cell.split(", "))
        result, formula = said.split(": ")
        x = torch.zeros(16, 16)
        x[:, 0] = 1
        rows = te.NVFP4Quantizer(row_scaled_nvfp4=True, columnwise=False)(x.bfloat16())
        weight = te.NVFP4Quantizer()(x * sums)
        assert general_gemm(weight, rows, out_dtype=torch.float32)[0].unique().tolist() == [sums]
        out, rest = torch.full((16, 16), number(added), dtype=BF16), torch.full((16,), bias, dtype=BF16)
        got = general_gemm(weight, rows, out_dtype=BF16, bias=rest, out=out, accumulate=True)[0]
        assert got.unique().tolist() == [number(result)]
        assert float(formulas.value(formula)) == number(result)


@pytest.mark.rule("TEL-34", "TEL-87")
@pytest.mark.example("TEL-34", "TEL-87")
def test_settings_beside_row_scaling():
    (first, refused), (second, accepted) = rows_of("TEL-34")
    assert (refused, accepted) == ("refused", "accepted")
    x = sample(32, 64)
    setting = dict.fromkeys(words(first), True)
    for others in (setting, {"row_scaled_nvfp4": True, **RHT}, {"row_scaled_nvfp4": True, **TILES}):
        with pytest.raises(RuntimeError, match="TEL-3"):
            te.NVFP4Quantizer(**others)(x)
    options = {name: name != "columnwise" for name in (word.partition("=")[0] for word in words(second))}
    assert options["columnwise"] is False
    te.NVFP4Quantizer(**options)(x)
    with pytest.raises(RuntimeError, match="TEL-34"):
        te.NVFP4Quantizer(**{**options, "columnwise": True})(x)
    for cell, outcome in rows_of("TEL-87"):
        kind, size = re.fullmatch(r"(\w+) (\[.*\])", cell).groups()
        given = partial(te.NVFP4Quantizer(row_scaled_nvfp4=True), sample(*integers(size), dtype=getattr(torch, kind)))
        if outcome == "accepted":
            given()
            continue
        assert outcome == "refused"
        with pytest.raises(ValueError, match="TEL-87"):
            given()


# Groups


@pytest.mark.rule("TEL-13", "TEL-79")
@pytest.mark.example("TEL-13", "TEL-79")
def test_members_of_groups():
    for cell, outcome in rows_of("TEL-13"):
        quantizers = [KINDS[kind]() for kind in cell.split(", ")]
        rows = [32] * len(quantizers)
        if outcome == "quantized":
            assert len(te.split_quantize(sample(sum(rows), 64), rows, quantizers)) == len(rows)
            continue
        number = re.fullmatch(r"refused: index (\d)", outcome)[1]
        with pytest.raises(RuntimeError, match=f"at index {number}"):
            te.split_quantize(sample(sum(rows), 64), rows, quantizers)
    for cell, said in rows_of("TEL-79"):
        rows = integers(cell)
        made = te.split_quantize(sample(sum(rows), 96), rows, [te.NVFP4Quantizer() for _ in rows])
        assert ", ".join(f"[{tensor.shape[0]}, K]" for tensor in made) == said


@pytest.mark.rule("TEL-42", "TEL-41", "TEL-36")
@pytest.mark.example("TEL-42", "TEL-41", "TEL-36")
def test_kernels_of_groups():
    devices = re.search(r"device is (\d+)\.(\d+) to (\d+)\.(\d+)", text_of("TEL-42"))
    first, last = (tuple(map(int, devices.groups()[at : at + 2])) for at in (0, 2))
    for device in (first, last, (first[0] - 1, 9), (last[0] + 1, 0)):
        for cell, k, layout in rows_of("TEL-42"):
            rows = integers(cell)
            quantizers = [te.NVFP4Quantizer(**RHT) for _ in rows]
            for each in quantizers:
                each.optimize_for_gemm = True
            with te.emulate_device(*device):
                made = te.split_quantize(sample(sum(rows), int(k)), rows, quantizers)
            wanted = layout == "GEMM" and first <= device <= last
            assert {tensor._with_gemm_swizzled_scales for tensor in made} == {wanted}
    tiles = {"16x16 tiles": TILES}
    for cell, k, outcome in rows_of("TEL-41"):
        quantizers = [te.NVFP4Quantizer(**tiles[cell]) for _ in range(2)]
        if outcome == "quantized":
            te.split_quantize(sample(64, int(k)), [32, 32], quantizers)
            continue
        assert outcome == "refused"
        with pytest.raises(ValueError, match="TEL-41"):
            te.split_quantize(sample(64, int(k)), [32, 32], quantizers)
        te.split_quantize(sample(64, int(k)), [32, 32], quantizers, disable_bulk_allocation=True)
    for cell, outcome in rows_of("TEL-36"):
        quantizer = KINDS[cell.removesuffix(" in tiles")](**TILES)
        if outcome == "quantized":
            te.group_quantize(sample(64, 64), quantizer, 2)
            continue
        assert outcome == "refused"
        with pytest.raises(ValueError, match="TEL-36"):
            te.group_quantize(sample(64, 64), quantizer, 2)


@pytest.mark.rule("TEL-53", "TEL-85")
@pytest.mark.example("TEL-53", "TEL-85")
def test_buffers_of_groups():
    for cell, codes, scales in rows_of("TEL-53"):
        shapes = [integers(each) for each in re.findall(r"\[.*?\]", cell)]
        rows, width = [m for m, _ in shapes], shapes[0][1]
        sizes = [each for each in integers(codes) if each > 8]
        high, wide = integers(scales)
        group = te.group_quantize(sample(sum(rows), width), te.MXFP8Quantizer(), len(rows), torch.tensor(rows))
        assert group.tensor_offsets.tolist() == [0, sizes[0], sum(sizes)]
        assert group.rowwise_data.shape == (sum(sizes),)
        assert group.scale_inv.shape == (len(rows) * high * wide,)
        members = group.split_into_quantized_tensors()
        assert [[*member._rowwise_scale_inv.shape] for member in members] == [[high, wide]] * len(rows)
        starts = [member._rowwise_data.data_ptr() - group.rowwise_data.data_ptr() for member in members]
        assert starts == [0, sizes[0]]
    ((cell, codes, scales),) = rows_of("TEL-85")
    shapes, total = [integers(each) for each in re.findall(r"\[.*?\]", cell)], integers(cell)[-1]
    rows, width = torch.tensor([m for m, _ in shapes]), shapes[0][1]
    group = te.GroupedTensor.make_grouped_tensor(len(shapes), rows, None, total, width, None, "cpu", BF16)
    sizes = integers(codes)
    assert group.rowwise_data.shape == (sum(sizes),)
    assert [member.numel() for member in group.quantized_tensors] == sizes[:-1]
    assert sizes[-1] == total * width - sum(sizes[:-1])
    assert (scales, group.scale_inv) == ("none", None)


def ordinary(shapes, values):
    """A group of bfloat16 members."""
    rows = torch.tensor([m for m, _ in shapes])
    made = te.GroupedTensor.make_grouped_tensor(
        len(shapes), rows, None, int(rows.sum()), shapes[0][1], None, "cpu", BF16
    )
    made.rowwise_data.copy_(torch.cat([torch.tensor(value).reshape(-1) for value in values]))
    return made


def two_terms(value):
    """Two numbers of bfloat16 whose sum is a number."""
    whole = float(torch.tensor(value).bfloat16())
    return [whole, value - whole]


@pytest.mark.rule("TEL-54", "TEL-80")
@pytest.mark.example("TEL-54", "TEL-80")
def test_products_of_groups():
    product = te.general_grouped_gemm_for_grouped_tensor
    for cell, said in rows_of("TEL-54"):
        sums = [number(each) for each in cell.split(", ")]
        many = len(sums)
        weights = ordinary([(1, 2)] * many, [[1.0, 1.0]] * many)
        x = ordinary([(1, 2)] * many, [two_terms(each) for each in sums])
        out = ordinary([(1, 1)] * many, [[0.0]] * many)
        product(weights, x, out)
        assert out.rowwise_data.tolist() == [number(each) for each in said.split(", ")]
    for cell, bias, factor, said in rows_of("TEL-80"):
        out = ordinary([(1, 1)], [[0.0]])
        x = ordinary([(1, 2)], [two_terms(number(cell))])
        factors = {} if number(factor) == 1 else {"bias_scale": torch.tensor([number(factor)])}
        product(ordinary([(1, 2)], [[1.0, 1.0]]), x, out, bias=ordinary([(1, 1)], [[number(bias)]]), **factors)
        assert out.rowwise_data.tolist() == [number(said)]


# Shards


def sent_by(shard):
    return shard.fsdp_pre_all_gather(None, shard.shape, shard.stride(), None, None)[0]


def kinds_of_shards():
    """For each row of TEL-15 shards, and the buffers that each sends."""
    pair = te.HybridQuantizer(rowwise_quantizer=te.MXFP8Quantizer(), columnwise_quantizer=te.IdentityQuantizer())
    rows = ["_rowwise_data", "_rowwise_scale_inv"]
    columns = ["_columnwise_data", "_columnwise_scale_inv"]
    return {
        "NVFP4": [(te.NVFP4Quantizer(columnwise=False), rows), (te.NVFP4Quantizer(**TILES), rows)],
        "MXFP8": [(te.MXFP8Quantizer(), rows + columns), (te.MXFP8Quantizer(columnwise=False), rows)],
        "block-scaled FP8 in squares": [
            (te.Float8BlockQuantizer(), rows),
            (te.Float8BlockQuantizer(rowwise=False), columns),
        ],
        "per-tensor FP8": [(te.Float8CurrentScalingQuantizer(columnwise=False), ["_data"])],
        "a tensor in high precision": [(te.IdentityQuantizer(), ["_hp_data"])],
        "a hybrid tensor": [(pair, [])],
    }


@pytest.mark.rule("TEL-15")
@pytest.mark.example("TEL-15")
def test_what_shards_send():
    kinds = kinds_of_shards()
    assert [cell for cell, _ in rows_of("TEL-15")] == [*kinds]
    for cell, said in rows_of("TEL-15"):
        for quantizer, names in kinds[cell]:
            shard = quantizer(sample(256, 128))
            sent = sent_by(shard)
            if cell == "a hybrid tensor":
                assert said == "what its parts send"
                assert len(sent) == sum(len(part.fsdp_extract_buffers()[0]) for part in shard.parts().values())
                continue
            assert len(sent) == len(names), (cell, [each.shape for each in sent])
            for part, name in zip(sent, names, strict=True):
                whole = getattr(shard, name)
                whole = whole.t() if "squares" in cell and "columnwise" in name else whole
                used = whole[tuple(slice(size) for size in part.shape)]
                assert torch.equal(part, used), (cell, name)
    assert "codes" not in rows_of("TEL-15")[4][1]


@pytest.mark.rule("TEL-81")
@pytest.mark.example("TEL-81")
def test_padding_of_shards():
    for cell, codes, scales, gathered in rows_of("TEL-81"):
        rows, width = integers(cell)[:2]
        shard = te.NVFP4Quantizer(columnwise=False)(sample(rows, width))
        assert [[*part.shape] for part in sent_by(shard)] == [integers(codes), integers(scales)[:2]]
        used = width // 16
        assert integers(scales)[2:] in ([], [used, integers(scales)[1] - used])
        made = te.NVFP4Quantizer(columnwise=False)(sample(2 * rows, width))
        assert [*made._rowwise_scale_inv.shape] == integers(gathered)
    squares = te.Float8BlockQuantizer(columnwise=False)(torch.ones(128, 128))
    assert [[*part.shape] for part in sent_by(squares)] == [[128, 128], [1, 1]]


@pytest.mark.rule("TEL-37", "TEL-38", "TEL-99")
@pytest.mark.example("TEL-37", "TEL-38", "TEL-99")
def test_shards_that_are_refused():
    makers = {
        "16x16 tiles, both directions": te.NVFP4Quantizer(**TILES),
        "1x16 blocks, rows only": te.NVFP4Quantizer(columnwise=False),
        "1x16 blocks, both directions": te.NVFP4Quantizer(),
    }
    assert [cell for cell, _ in rows_of("TEL-37")] == [*makers]
    for cell, outcome in rows_of("TEL-37"):
        whole = makers[cell](sample(128, 64))
        if outcome == "refused":
            with pytest.raises(NotImplementedError, match="TEL-37"):
                sent_by(whole)
            continue
        shards = whole.split(64)
        sent = [shard.fsdp_pre_all_gather(None, None, None, None, None) for shard in shards]
        gathered = tuple(torch.cat(parts) for parts in zip(*(buffers for buffers, _ in sent), strict=True))
        made, _ = shards[0].fsdp_post_all_gather(gathered, sent[0][1], BF16)
        assert made.directions() == whole.directions()
        assert ("columns derived" in outcome) == ("column" in made.directions())
    swizzled = te.NVFP4Quantizer(**TILES)
    swizzled.optimize_for_gemm = True
    two = SimpleNamespace(size=lambda _: 2)
    refused = {
        "MXFP8 of [2, 32, 64]": lambda: sent_by(te.MXFP8Quantizer()(sample(2, 32, 64))),
        "NVFP4 in tiles, flag set": lambda: sent_by(swizzled(sample(128, 128))),
        "MXFP8, 64 rows of 96 over two processes": lambda: te.MXFP8Quantizer()(sample(64, 64)).fsdp_pre_all_gather(
            two, (96, 64), None, None, None
        ),
    }
    assert [cell for cell, _ in rows_of("TEL-38")] == [*refused]
    for cell, outcome in rows_of("TEL-38"):
        assert outcome == "refused"
        with pytest.raises((NotImplementedError, ValueError), match="TEL-38"):
            refused[cell]()
    for cell, outcome in rows_of("TEL-99"):
        squares, high = cell.startswith("squares, "), integers(cell)[0]
        quantizer = te.Float8BlockQuantizer(block_scaling_dim=2 if squares else 1)
        shard = quantizer(sample(high, 128))
        if outcome == "sent":
            assert [[*part.shape] for part in sent_by(shard)] == [[high, 128], [high // 128, 1]]
            continue
        assert outcome == "refused"
        with pytest.raises((NotImplementedError, ValueError), match="TEL-99"):
            sent_by(shard)


# The alias


@pytest.mark.rule("TEL-14", "TEL-82", "TEL-39")
@pytest.mark.example("TEL-14", "TEL-82", "TEL-39")
def test_the_alias():
    (none, fails), (installs, imports) = rows_of("TEL-14")
    name = words(re.search(r"\| (`import .*?`) \|", text_of("TEL-14"))[1])[0].removeprefix("import ")
    ((removes, after),) = rows_of("TEL-82")
    assert (none, fails, after) == ("none", "fails, or imports the library itself", "as before")
    assert imports.startswith("imports the emulation")

    def import_it():
        try:
            return importlib.import_module(name).Linear
        except ImportError:
            return None

    before = import_it()
    assert before is None or before is not te.Linear
    getattr(te, words(installs)[0].removesuffix("()"))()
    try:
        assert import_it() is te.Linear
        for cell, error in rows_of("TEL-39"):
            path, call, _ = re.fullmatch(r"`([\w.]+)(\(.*\))?`(.*)", cell).groups()
            module, *attributes = path.removeprefix(f"{name}.").split(".")
            used = getattr(importlib.import_module(name), module)
            with pytest.raises(NotEmulatedError, match=attributes[0] if attributes else module):
                getattr(used, attributes[0]) if attributes else used()
            assert error.startswith("NotEmulatedError that names ")
            assert bool(call) == (not attributes)
    finally:
        getattr(te, words(removes)[0].removesuffix("()"))()
    assert import_it() is before
    assert name not in sys.modules or before is not None
