"""Examples of the chapter on recipes and caching, acted out: quantized tensors and the layouts of their scales."""

from __future__ import annotations

import json
import pickle
import re

import pytest

torch = pytest.importorskip("torch")

import fp4ref  # noqa: E402
from fp4ref import te  # noqa: E402
from fp4ref.conformance.vectors.sources.four_over_six import sums_by_order  # noqa: E402
from fp4ref.standard import formulas  # noqa: E402
from fp4ref.te import debug, rng  # noqa: E402
from standard_rules import integers, rows_of, text_of  # noqa: E402
from te_samples import sample  # noqa: E402

BF16 = torch.bfloat16
KINDS = {"NVFP4": te.NVFP4Quantizer, "MXFP8": te.MXFP8Quantizer}
RHT = {"with_rht": True, "with_post_rht_amax": True}
TILES = {"with_2d_quantization": True}


def words(cell):
    return re.findall("`(.*?)`", cell)


def shape_of(cell, **sizes):
    """The shape that a cell's formula gives, such as [pad128(M), pad4(K/16)]."""
    block = int(re.search(r"number of blocks of (\d+)", text_of("TEL-49"))[1])
    names = {f"pad{n}": lambda size, n=n: -(-size // n) * n for n in (4, 128)} | {"b": lambda size: -(-size // block)}
    return [*eval(cell.replace("/", "//"), names | sizes)]


def shapes(tensor):
    names = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
    return [[*getattr(tensor, f"_{name}").shape] for name in names]


@pytest.mark.rule("TEL-49", "TEL-22")
@pytest.mark.example("TEL-49", "TEL-22")
def test_shapes_of_buffers():
    blocks = [lambda: te.Float8BlockQuantizer(block_scaling_dim=1), te.Float8BlockQuantizer]
    for rule, makers, trials in (
        ("TEL-49", blocks, ((130, 300), (128, 128), (7, 5), (513, 260))),
        ("TEL-22", [*KINDS.values()], ((256, 288), (32, 64), (160, 96), (1088, 1056))),
    ):
        names, *columns = zip(*rows_of(rule), strict=True)
        kinds = ("data", "scales")
        assert [*names] == [f"{direction} {kind}" for direction in ("rowwise", "columnwise") for kind in kinds]
        for (m, k), (make, cells) in ((each, pair) for each in trials for pair in zip(makers, columns, strict=True)):
            assert shapes(make()(torch.ones(m, k))) == [shape_of(cell, M=m, K=k) for cell in cells]
    example = re.search(r"For (\[.*?\]), blocks of 1x128 have .*? (\[.*?\]) and .*? (\[.*?\])", text_of("TEL-49"))
    size, rows, columns = map(integers, example.groups())
    assert shapes(blocks[0]()(torch.ones(size)))[1::2] == [rows, columns]
    example = re.search(r"For (\[.*?\]) NVFP4 has .*? (\[.*?\]) and .*? (\[.*?\])", text_of("TEL-22"))
    size, rows, columns = map(integers, example.groups())
    assert shapes(te.NVFP4Quantizer()(torch.ones(size)))[1::2] == [rows, columns]
    padded = te.Float8BlockQuantizer(block_scaling_dim=1)(torch.ones(130, 300))._rowwise_scale_inv
    assert not padded[:, 130:].any()


@pytest.mark.rule("TEL-73", "TEL-74")
@pytest.mark.example("TEL-73", "TEL-74")
def test_edges_and_profiles_of_blocks():
    block, width = integers(re.search(r"block of (.*?) elements", text_of("TEL-73"))[1])[1:]
    ((amax, said),) = rows_of("TEL-73")
    x = torch.full((1, block + width), float(2 * int(amax)))  # the first block has another amax
    x[0, block:] = torch.linspace(-1, 1, width)
    x[0, -1] = float(amax)
    assert said.startswith(f"that of the {width} elements: ")
    scales = te.Float8BlockQuantizer(block_scaling_dim=1, columnwise=False)(x)._rowwise_scale_inv
    assert scales[1, 0] == 1 / integers(said)[-1]
    for cell, found in rows_of("TEL-74"):
        (m, k), setting = integers(cell.partition("]")[0]), re.search(r"\[.*?\], (\d+)x(\d+), (on|off)", cell)
        high, wide = int(setting[1]), int(setting[2])
        profile, matrix = words(found)[0], integers(found.rpartition("[")[2])
        x = sample(m, k, dtype=torch.float32) * torch.exp2(torch.arange(m).view(m, 1) % 9 - 4.0)
        with te.emulate_device(9, 0):
            made = te.Float8BlockQuantizer(
                block_scaling_dim=1 if high == 1 else 2, force_pow_2_scales=setting[3] == "off", columnwise=False
            )(x)
        down, across = m // high, k // wide
        blocks = x.view(down, high, across, wide).transpose(1, 2).reshape(matrix)
        golden = fp4ref.quantize(x if setting[3] == "off" else blocks, profile, "row", backend="numpy").row.data
        codes = made._rowwise_data.view(down, high, across, wide).transpose(1, 2).reshape(matrix)
        assert torch.equal(codes if setting[3] == "on" else made._rowwise_data, torch.as_tensor(golden))


@pytest.mark.rule("TEL-51", "TEL-75")
@pytest.mark.example("TEL-51", "TEL-75")
def test_products_of_block_scaled_fp8():
    ((codes, scales, total),) = rows_of("TEL-51")
    code, count = float(integers(codes)[0]), integers(codes)[-1]
    made = []
    major, minor = map(int, re.search(r"below capability (\d+)\.(\d+)", text_of("TEL-51")).groups())
    assert f"capability {major}.{minor} and above" in text_of("TEL-75")
    with te.emulate_device(major - 1, 9):
        for scale in re.findall(r"[\d.]+", scales):
            x = torch.full((16, count), code)
            tensor = te.Float8BlockQuantizer(block_scaling_dim=1, force_pow_2_scales=False, columnwise=False)(x)
            tensor._rowwise_data.copy_(x.to(torch.float8_e4m3fn).view(torch.uint8))
            tensor._rowwise_scale_inv.fill_(float(scale))
            made.append(tensor)
        assert te.general_gemm(*made)[0].unique().tolist() == [float(total)]
    ((cell, operand),) = rows_of("TEL-75")
    code, scale = map(float, cell.split(", "))
    tensor, identity = made[0], te.Float8BlockQuantizer(block_scaling_dim=1, columnwise=False)(torch.eye(count))
    tensor._rowwise_data.copy_(torch.full((16, count), code).to(torch.float8_e4m3fn).view(torch.uint8))
    tensor._rowwise_scale_inv.fill_(scale)
    with te.emulate_device(major, minor):
        product = te.general_gemm(identity, tensor)[0]
    assert product.unique().tolist() == [float(operand)]


EXTRA = {"scale_fwd": torch.arange(3) + 2.0, "amax_history_fwd": torch.ones(4, 3)}
EXTRA |= {"scale_bwd": torch.full((2,), 7.0), "amax_history_bwd": torch.zeros(4, 2)}


class Named:
    """A function that is no recipe, which a pickle may name."""

    def __reduce__(self):
        return print, ("executed",)


def layer():
    return te.Linear(32, 32, params_dtype=BF16, device="cpu")


def written():
    """A layer under delayed scaling, and the extra state that it writes."""
    module = layer()
    with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=4)):
        module(torch.ones(16, 32, dtype=BF16))
    module.fp8_meta["scaling_fwd"].scale.copy_(EXTRA["scale_fwd"])
    return module.get_extra_state()


def as_bytes(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


STATES = {
    "empty, or of a recipe without a state, as a pickle too": lambda: [
        torch.empty(0, dtype=torch.uint8),
        as_bytes(json.dumps({"recipe": "MXFP8BlockScaling"}).encode()),
        as_bytes(pickle.dumps({})),
        as_bytes(pickle.dumps({"recipe": te.recipe.MXFP8BlockScaling()})),
    ],
    "written by this layer under delayed scaling": lambda: [written()],
    "a pickle with scales": lambda: [as_bytes(pickle.dumps(EXTRA))],
    "a pickle with scales that names anything but recipes and tensors": lambda: [
        as_bytes(pickle.dumps(EXTRA | {"extra_fp8_variables": Named()}))
    ],
    "no tensor of bytes, or scales in damaged bytes": lambda: [torch.ones(8), written()[:-40]],
}


@pytest.mark.rule("TEL-52")
@pytest.mark.example("TEL-52")
def test_extra_states(monkeypatch):
    variable = words(re.search(r"with (`.*?`)", text_of("TEL-52"))[1])[0]
    assert {cell for cell, *_ in rows_of("TEL-52")} == {*STATES}
    for cell, effect, other in rows_of("TEL-52"):
        for said, allowed in ((effect, False), (effect if other == "the same" else other, True)):
            monkeypatch.delenv("NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", raising=False)
            if allowed:
                monkeypatch.setenv(*variable.split("="))
            for state in STATES[cell]():
                module = layer()
                if said == "refused":
                    with pytest.raises(ValueError, match="TEL-52"):
                        module.set_extra_state(state)
                    continue
                module.set_extra_state(state)
                restored = module.fp8_meta.get("scaling_fwd")
                assert said == ("scales and histories are restored" if restored else "changes nothing")
                assert restored is None or torch.equal(restored.scale, EXTRA["scale_fwd"])


@pytest.mark.rule("TEL-3")
@pytest.mark.example("TEL-3")
def test_settings_name_a_specification():
    x = sample(32, 64)
    for cell, spec in rows_of("TEL-3"):
        made = te.NVFP4Quantizer(**dict.fromkeys(words(cell), True))(x)
        golden = fp4ref.quantize(x, words(spec)[0], "both", "linear", backend="numpy")
        assert torch.equal(made._rowwise_data, golden.row.data)
        assert torch.equal(made._columnwise_data, golden.column.data)
        assert torch.equal(made._rowwise_scale_inv[:32, :4], golden.row.scales)
        assert torch.equal(made._columnwise_scale_inv[:64, :2], golden.column.scales)
        assert torch.equal(made._amax_rowwise, golden.row.amax)
        assert torch.equal(made._amax_columnwise, golden.column.amax)


@pytest.mark.rule("TEL-23")
@pytest.mark.example("TEL-23")
def test_whole_blocks():
    steps = map(int, re.search(r"multiples of (\d+) for NVFP4, or of (\d+) for MXFP8", text_of("TEL-23")).groups())
    for (name, make), step, at in zip(KINDS.items(), steps, (1, 2), strict=True):
        for cell, outcome in ((row[0], row[at]) for row in rows_of("TEL-23")):
            size = integers(cell)
            for given in (size, size[::-1]):
                fits = not any(each % step for each in given)
                assert outcome == ("accepted" if fits else "refused"), name
                if fits:
                    make()(torch.ones(given))
                    continue
                with pytest.raises(ValueError, match="divisible"):
                    make()(torch.ones(given))


@pytest.mark.rule("TEL-5", "TEL-84", "TEL-24", "TEL-4")
@pytest.mark.example("TEL-5", "TEL-84", "TEL-24", "TEL-4")
@pytest.mark.parametrize("kind", KINDS)
def test_updates_in_place(kind):
    first, second = sample(128, 128), sample(128, 128, seed=1)
    assert rows_of("TEL-5") == [["codes at address p, scales at q", "new codes at p, new scales at q"]]
    quantizer = KINDS[kind]()
    tensor = quantizer(first)
    places = [buffer.data_ptr() for buffer in tensor.buffers()]
    tensor.quantize_(second)
    assert [buffer.data_ptr() for buffer in tensor.buffers()] == places
    assert all(map(torch.equal, tensor.buffers(), quantizer(second).buffers()))
    values = {"those before": second, "those of the new values": first}
    for cell, said in rows_of("TEL-24"):
        quantizer.update_quantized(first, tensor, noop_flag=torch.tensor(json.loads(cell), dtype=torch.float32))
        assert all(map(torch.equal, tensor.buffers(), quantizer(values[said]).buffers()))
    layouts = {"compact": "linear", "in the GEMM layout": "tiled_128x4"}
    spec = fp4ref.NVFP4 if kind == "NVFP4" else fp4ref.MXFP8_E4M3
    for flag, said in rows_of("TEL-4"):
        quantizer.optimize_for_gemm = flag == "true"
        tensor = quantizer(first)
        assert tensor._with_gemm_swizzled_scales == (flag == "true")
        golden = fp4ref.quantize(first, spec, "row", layouts[said], backend="numpy").row.scales
        assert torch.equal(tensor._rowwise_scale_inv[:, : golden.shape[1]], golden)
    for before, writes, after in rows_of("TEL-84"):
        assert (tensor._with_gemm_swizzled_scales, writes) == (before == "true", "compact scales")
        quantizer.optimize_for_gemm = False
        quantizer.update_quantized(second, tensor)
        assert tensor._with_gemm_swizzled_scales == (after == "true")
        assert torch.equal(tensor._rowwise_scale_inv, quantizer(second)._rowwise_scale_inv)


@pytest.mark.rule("TEL-76")
@pytest.mark.example("TEL-76")
def test_replays_take_other_bytes(monkeypatch):
    ((replays, said),) = rows_of("TEL-76")
    assert said == "of two seeds"
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(
        torch, "randint", lambda low, high, size, device=None, draw=torch.randint: draw(low, high, size)
    )
    states = [rng.next_state(torch.device("cuda")) for _ in replays.split(", ")]
    assert len({int(state.seed) for state in states}) == 2
    made = [rng.random_bytes((16, 32), "both", state, torch.device("cpu")).row for state in states]
    assert not torch.equal(*made)


@pytest.mark.rule("TEL-25")
@pytest.mark.example("TEL-25")
def test_columns_that_are_missing():
    made = {
        "NVFP4 in 16x16 tiles, compact scales": [te.NVFP4Quantizer(**TILES, columnwise=False)],
        "NVFP4 in 16x16 tiles, scales in the GEMM layout": [te.NVFP4Quantizer(**TILES, columnwise=False)],
        "NVFP4 in 1x16 blocks, MXFP8": [make(columnwise=False) for make in KINDS.values()],
    }
    assert [cell for cell, _ in rows_of("TEL-25")] == [*made]
    for cell, outcome in rows_of("TEL-25"):
        for quantizer in made[cell]:
            quantizer.optimize_for_gemm = "GEMM" in cell
            tensor = quantizer(sample(128, 128))
            if outcome == "error":
                with pytest.raises(RuntimeError):
                    tensor.update_usage(columnwise_usage=True)
                continue
            assert outcome == "columns are derived"
            tensor.update_usage(columnwise_usage=True)
            assert tensor.directions() == ["row", "column"]


@pytest.mark.rule("TEL-40", "BLK-12")
@pytest.mark.example("TEL-40")
def test_derived_columns():
    x = torch.from_numpy(sums_by_order().astype("f4")).bfloat16()
    assert [*x.shape] == integers(re.search(r"tensor (\[.*?\]) in one tile", text_of("TEL-40"))[1])
    for cell, *bytes_of in rows_of("TEL-40"):
        largest = re.search(r"4over6 with (\d+)", cell)
        search = {"nvfp4_use_4over6": True, "nvfp4_e4m3_max": int(largest[1])} if largest else {}
        whole = te.NVFP4Quantizer(**TILES, **search)(x)
        derived = te.NVFP4Quantizer(**TILES, **search, columnwise=False)(x)
        derived.update_usage(columnwise_usage=True)
        found = [derived._rowwise_scale_inv, derived._columnwise_scale_inv, whole._columnwise_scale_inv]
        assert [scales[:16, 0].tolist() for scales in found] == [[int(words(cell)[0], 16)] * 16 for cell in bytes_of]
        assert torch.equal(derived._amax_columnwise, derived._amax_rowwise)


@pytest.mark.rule("TEL-26", "TEL-27")
@pytest.mark.example("TEL-26", "TEL-27")
@pytest.mark.parametrize("kind", KINDS)
def test_views_and_pieces(kind):
    for cell, view, said in rows_of("TEL-26"):
        tensor = KINDS[kind]()(sample(*integers(cell)))
        seen = tensor.view(integers(view))
        assert [*seen.shape] == integers(view)
        assert isinstance(seen, type(tensor)) == (said == "the same bytes")
        if said == "the same bytes":
            assert all(
                one.data_ptr() == two.data_ptr() for one, two in zip(seen.buffers(), tensor.buffers(), strict=True)
            )
        else:
            assert said == "its values, not quantized"
            assert torch.equal(seen, tensor.dequantize().view(integers(view)))
    for cell, rows, amax in rows_of("TEL-27"):
        *size, largest = integers(cell)
        x = sample(*size).clamp(-1, 1)
        x[-1, -1] = largest
        whole = KINDS[kind]()(x)
        starts = 0
        for piece, many in zip(whole.split(integers(rows)), integers(rows), strict=True):
            assert torch.equal(piece._rowwise_data, whole._rowwise_data[starts : starts + many])
            if kind == "NVFP4":
                assert (piece._amax_rowwise, piece._amax_columnwise) == (int(amax), int(amax))
            starts += many


def eligible_of(cell, m, k, device):
    """Return True if TEL-28's table calls a matrix on a device eligible, by the numbers of its first row."""
    rows = {name: (shape, devices) for name, shape, devices in rows_of("TEL-28")}
    shape, devices = rows[cell]
    if shape in {"every", "none"}:
        return shape == "every"
    steps = integers(shape)
    down, across = steps if len(steps) == 2 else steps * 2
    first, last = (tuple(map(int, each.split("."))) for each in devices.split(" to "))
    return not (m % down or k % across) and first <= device <= last


@pytest.mark.rule("TEL-28")
@pytest.mark.example("TEL-28")
def test_eligible_tensors():
    makers = {
        "MXFP8": [te.MXFP8Quantizer],
        "NVFP4 with a Hadamard transform": [lambda: te.NVFP4Quantizer(**RHT)],
        "NVFP4 in 16x16 tiles, one amax, no 4over6": [lambda: te.NVFP4Quantizer(**TILES)],
        "other NVFP4": [
            te.NVFP4Quantizer,
            lambda: te.NVFP4Quantizer(row_scaled_nvfp4=True),
            lambda: te.NVFP4Quantizer(**TILES, nvfp4_use_4over6=True),
        ],
    }
    assert [cell for cell, *_ in rows_of("TEL-28")] == [*makers]
    examples = re.findall(r"A \((\d+), (\d+)\) weight", text_of("TEL-28").replace("a (", "A ("))
    sizes = [(32, 64), (64, 128), (64, 64), (128, 96), (96, 128), *(tuple(map(int, each)) for each in examples)]
    for device in ((9, 9), (10, 0), (10, 3), (11, 0), (11, 1), (12, 0)):
        for (cell, given), (m, k) in ((pair, size) for pair in makers.items() for size in sizes):
            for make in given:
                quantizer = make()
                quantizer.optimize_for_gemm, quantizer.role = True, "weight"
                debug.reset_operation_counts()
                with te.emulate_device(*device):
                    tensor = quantizer(sample(m, k))
                counts = debug.operation_counts()
                assert tensor._with_gemm_swizzled_scales
                wanted = eligible_of(cell, m, k, device)
                assert bool(counts["swizzle_in_quantize"]) == wanted, (cell, m, k, device)
                assert bool(counts["swizzle_standalone"]) != wanted
    found = [eligible_of("NVFP4 in 16x16 tiles, one amax, no 4over6", *map(int, each), (10, 0)) for each in examples]
    assert found == [False, True]


@pytest.mark.rule("TEL-29")
@pytest.mark.example("TEL-29")
@pytest.mark.parametrize("kind", KINDS)
def test_moved_twice(kind):
    quantizer = KINDS[kind]()
    tensor = quantizer(sample(128, 128))
    quantizer.optimize_for_gemm = True
    moved = quantizer(sample(128, 128))
    for before, said in rows_of("TEL-29"):
        assert tensor._with_gemm_swizzled_scales == (before == "true")
        te.swizzle_scales_for_gemm_(tensor)
        assert tensor._with_gemm_swizzled_scales
        assert said in {"the scales in the GEMM layout, flag true", "those before"}
        assert all(map(torch.equal, tensor.buffers(), moved.buffers()))


WEIGHTS = {
    "cached, eligible": [te.recipe.NVFP4BlockScaling, te.recipe.MXFP8BlockScaling],
    "not cached, eligible": [te.recipe.NVFP4BlockScaling, te.recipe.MXFP8BlockScaling],
    "NVFP4, not eligible": [lambda: te.recipe.NVFP4BlockScaling(disable_2d_quantization=True)],
    "per-tensor FP8": [te.recipe.Float8CurrentScaling],
}


@pytest.mark.rule("TEL-7")
@pytest.mark.example("TEL-7")
@pytest.mark.parametrize("microbatches", [1, 3])
def test_moves_of_a_weight(microbatches):
    assert [cell for cell, *_ in rows_of("TEL-7")] == [*WEIGHTS]
    for cell, *counted in rows_of("TEL-7"):
        wanted = [int(formulas.value(each.replace(" N", " * N"), {"N": microbatches})) for each in counted]
        for made, cached in ((recipe(), choice) for recipe in WEIGHTS[cell] for choice in (True, False)):
            if cached is cell.startswith("not cached") or (not cached and cell.startswith("cached")):
                continue
            debug.reset_operation_counts()
            module = te.Linear(128, 256, params_dtype=BF16, device="cpu")
            for number in range(microbatches):
                x = sample(128, 128).requires_grad_()
                with te.autocast(recipe=made):
                    y = module(x, is_first_microbatch=number == 0 if cached else None)
                y.sum().backward()
            found = debug.operation_counts()
            names = ("swizzle_standalone", "swizzle_in_quantize")
            assert [found[name].get("weight", 0) for name in names] == wanted
            assert found["quantize"]["weight"] == (1 if cached else microbatches)
