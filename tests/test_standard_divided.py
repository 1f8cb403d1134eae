"""Examples of rules that were divided: what was a clause of another rule has a table of its own, computed here."""

from __future__ import annotations

import io
import json
import re
import struct
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from commands import convert
from fp4ref.casts import CASTS
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.access import blocks_across, padding_bytes
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.groups import recognize
from fp4ref.checkpoints.repairs import repair_command
from fp4ref.conformance.families.products.cases import cases as products
from fp4ref.conformance.run import runner, stream
from fp4ref.conformance.subjects.outcomes import Finding, FindingKind
from fp4ref.conformance.subjects.subject import Subject
from fp4ref.conformance.verdict.product_runs import check
from fp4ref.errors import DomainError, FileError
from fp4ref.files import open_tensors
from fp4ref.standard import formulas
from fp4ref.testing import assert_conforms
from standard_rules import rows_of, text_of

F = np.float32
LAYER = "model.layers.0"
UP = f"{LAYER}.mlp.up_proj"
QKV = "double_blocks.0.img_attn.qkv"


# Volume 1


@pytest.mark.rule("NUM-11")
@pytest.mark.example("NUM-11")
@pytest.mark.parametrize("backend", ["numpy", "cpu", "torch"])
def test_a_nan_passes_its_sign_on(backend):
    if backend == "torch":
        pytest.importorskip("torch")
    for spec, code, scale, sign in rows_of("NUM-11"):
        q = fp4ref.quantize(np.ones((1, 32), F), spec.strip("`"), backend="numpy")
        byte = int(code.strip("`"), 16)
        q.row.data[...] = byte * 0x11 if byte < 16 else byte
        q.row.scales[...] = int(scale.strip("`"), 16)
        values = fp4ref.dequantize(q, backend=backend)
        assert np.isnan(values).all()
        assert np.signbit(values).all() == np.signbit(values).any() == (sign == "1")


@pytest.mark.sampled(2)
@pytest.mark.rule("GLB-9")
@pytest.mark.example("GLB-9")
@pytest.mark.parametrize("spec", ["nvfp4", "nvfp4-row-scaled"])
def test_an_amax_of_nan_is_any_nan(spec):
    spec = fp4ref.profiles[spec].replace(name=f"{spec}, NaN in every maximum", amax="propagate-nan")
    ((tensor, accepted, refused),) = rows_of("GLB-9")
    x = np.zeros((2, 32), F)
    x[0, 0] = 1
    x.view(np.uint32)[0, 1] = int(re.search("`(.*?)`", tensor)[1], 16)
    for backend in ("numpy", "cpu", "torch"):
        if backend == "torch":
            pytest.importorskip("torch")
        amax = fp4ref.quantize(x, spec, backend=backend).row.amax
        assert np.isnan(amax[0])
        assert not np.signbit(amax).any()
    for words, result in ((accepted, True), (refused, False)):
        for word in re.findall("`(.*?)`", words):

            def kernel(x, word=word):
                data, scales, amax = fp4ref.quantize(x, spec, backend="numpy").row
                bits = np.where(np.isnan(amax), np.uint32(int(word, 16)), amax.view(np.uint32))
                return data, scales, bits.view(F)

            if result:
                assert assert_conforms(kernel, spec, families=["nan"]).ok
                continue
            with pytest.raises(AssertionError, match="amax"):
                assert_conforms(kernel, spec, families=["nan"])


@pytest.mark.rule("GLB-9")
def test_an_amax_of_nan_is_wrong_where_it_is_a_number():
    def kernel(x):
        data, scales, amax = fp4ref.quantize(x, fp4ref.NVFP4, backend="numpy").row
        return data, scales, np.full_like(amax, np.nan)

    with pytest.raises(AssertionError, match="amax"):
        assert_conforms(kernel, fp4ref.NVFP4, families=["normal"])


@pytest.mark.rule("SPC-22")
@pytest.mark.example("SPC-22")
def test_names_of_third_parties():
    for name, result in rows_of("SPC-22"):
        form = fp4ref.Layout(name.strip("`"), "m(8,*) k(4,*): m0 k0 k1 m1")
        if result == "registered":
            assert fp4ref.register(form) is form
            fp4ref.LAYOUTS.forget(form.name)
            continue
        with pytest.raises(DomainError, match=r"vendor.name \[SPC-22\]"):
            fp4ref.register(form)


MEMBER = (
    b"\x93NUMPY\1\0" + struct.pack("<H", 118) + b"{'descr': '|u1', 'fortran_order': False, 'shape': (2,), }".ljust(117)
)
MEMBER += b"\nab"


def archive(*, sizes=None, extra=b"", end=()):
    """An archive of one stored member; sizes and extra field of the directory, and fields of the end record."""
    name, crc = b"a.npy", zlib.crc32(MEMBER)
    local = struct.pack("<4s5H3L2H", b"PK\3\4", 20, 0, 0, 0, 33, crc, len(MEMBER), len(MEMBER), len(name), 0) + name
    both = (len(MEMBER),) * 2 if sizes is None else sizes
    entry = struct.pack("<4s6H3L5H2L", b"PK\1\2", 20, 45, 0, 0, 0, 33, crc, *both, len(name), len(extra), 0, 0, 0, 0, 0)
    entry += name + extra
    start = len(local) + len(MEMBER)
    last = bytearray(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), start, 0))
    for offset, value in end:
        struct.pack_into("<H", last, offset, value)
    return local + MEMBER + entry + bytes(last)


def outcome(path, data):
    path.write_bytes(data)
    try:
        with open_tensors(path) as file:
            assert file.read("a").tobytes() == b"ab"
    except FileError:
        return "refused"
    return "read"


FIELDS = {"number of this disk": 4, "number of members on this disk": 8, "number of members": 10}


@pytest.mark.rule("FIL-43")
@pytest.mark.example("FIL-43")
def test_fields_of_the_end_record(tmp_path):
    table = rows_of("FIL-43")
    assert {field for field, _ in table} == {*FIELDS}
    for field, result in table:
        assert outcome(tmp_path / "a.npz", archive(end=[(FIELDS[field], 7)])) == result


@pytest.mark.rule("FIL-44")
@pytest.mark.example("FIL-44")
def test_sizes_in_a_record_of_zip64(tmp_path):
    (bits,) = re.findall(r"a field of (\d+) bits is", " ".join(text_of("FIL-44").split()))
    for size, record, result in rows_of("FIL-44"):
        assert 4 * len(size.strip("`")) == int(bits)
        both = (int(size.strip("`"), 16),) * 2
        extra = struct.pack("<2H2Q", 1, 16, len(MEMBER), len(MEMBER)) if record != "none" else b""
        assert outcome(tmp_path / "a.npz", archive(sizes=both, extra=extra)) == result


# Checkpoints


def found(export, folder, **options):
    return {each.code for each in lint(export.write(folder), **options).findings}


def told(cell, codes):
    """Compare the codes with a cell: none, or one that is there."""
    if cell == "none of this code":
        assert "orphan-tensor" not in codes
    else:
        assert codes == set() if cell == "none" else cell.strip("`") in codes, (cell, codes)


@pytest.mark.rule("CKP-55", "CKP-7")
@pytest.mark.example("CKP-55")
def test_what_a_convention_requires(tmp_path):
    for number, (cell, finding) in enumerate(rows_of("CKP-55")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.drop(*(f"{UP}.{name}" for name in re.findall("`(.*?)`", cell)))
        told(finding, found(export, tmp_path / str(number)))


@pytest.mark.rule("CKP-56", "CKP-7")
@pytest.mark.example("CKP-56")
def test_what_the_metadata_lists(tmp_path):
    for number, (listed, stored, finding) in enumerate(rows_of("CKP-56")):
        export = corpus.CLEAN["torchao-nvfp4"]()
        names = json.loads(export.metadata["tensor_names"])
        more = set(re.findall("`(.*?)`", listed)) - set(re.findall("`(.*?)`", stored))
        export.metadata["tensor_names"] = json.dumps([*names, *(f"{LAYER}.{name}" for name in more)])
        told(finding, found(export, tmp_path / str(number)))


@pytest.mark.rule("CKP-57", "CKP-7")
@pytest.mark.example("CKP-57")
def test_what_declared_numbers_require(tmp_path):
    for number, (declared, stored, finding) in enumerate(rows_of("CKP-57")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        layers = {name.split(".")[2] for name in export.tensors if name.startswith("model.layers.")}
        assert len(layers) == int(stored)
        export.config["num_hidden_layers"] = int(declared.split()[0])
        told(finding, found(export, tmp_path / str(number)))


@pytest.mark.rule("CKP-58", "CKP-7")
@pytest.mark.example("CKP-58")
def test_what_other_layers_have(tmp_path):
    for number, (first, *others, finding) in enumerate(rows_of("CKP-58")):
        export, name = corpus.CLEAN["modelopt-nvfp4"](), first.strip("`")
        assert f"{LAYER}.{name}" in export.tensors
        for tensor in [each for each in export.tensors if each.startswith("model.layers.1.")]:
            export.tensors[tensor.replace("layers.1.", "layers.2.")] = export.tensors[tensor]
        export.config["num_hidden_layers"] = 3
        for layer, cell in enumerate(others, 1):
            if cell == "not stored":
                export.drop(f"model.layers.{layer}.{name}")
        told(finding.partition(":")[0], found(export, tmp_path / str(number)))


@pytest.mark.rule("CKP-59", "CKP-60", "CKP-61", "CKP-8")
@pytest.mark.example("CKP-59", "CKP-60", "CKP-61")
@pytest.mark.parametrize("rule", ["CKP-59", "CKP-60", "CKP-61"])
def test_what_belongs_to_no_weight(rule, tmp_path):
    for number, (cell, finding) in enumerate(rows_of(rule)):
        export, name = corpus.CLEAN["modelopt-nvfp4"](), re.match("`(.*?)`", cell)[1]
        if "without" in cell:
            export.put(f"{LAYER}.mlp.o_gate.{name}", "F8_E4M3", np.full((8, 8), 0x40))
        else:
            export.put(
                f"{UP}.{name}", "F32", np.zeros(export.array(f"{UP}.weight").shape[0]) if name == "bias" else 1.0
            )
        told(finding, found(export, tmp_path / str(number)))


def comfy(tmp_path, change=lambda export: None):
    export = corpus.CLEAN["comfy-nvfp4"]()
    change(export)
    folder = export.write(tmp_path)
    (group,) = (each for each in recognize(open_checkpoint(folder)).groups if each.name == QKV)
    return folder, group


@pytest.mark.rule("CKP-62", "CKP-26")
@pytest.mark.example("CKP-62")
def test_the_padding_of_tiles(tmp_path):
    ((scales, tiles, padding),) = rows_of("CKP-62")

    def fill(export):
        export.array(f"{QKV}.weight_scale")[...] = 0x38

    _, group = comfy(tmp_path, fill)
    rows, columns = map(int, scales.split(" × "))
    assert (group.rows, blocks_across(group)) == (rows, columns)
    assert eval(tiles.replace("×", "*")) - rows * columns == int(padding) == padding_bytes(group)


@pytest.mark.rule("CKP-63", "CKP-26")
@pytest.mark.example("CKP-63")
def test_the_rows_below_a_bias(tmp_path):
    ((size, bias, rows),) = rows_of("CKP-63")
    first, last = map(int, rows.split(" to "))
    assert (first, last + 1) == (int(bias), int(size.split(" × ")[0]))
    for row in (first - 1, first, last):

        def change(export, row=row):
            assert export.array(f"{QKV}.bias").shape == (int(bias),)
            export.array(f"{QKV}.weight")[row, 0] = 1

        folder, _ = comfy(tmp_path / str(row), change)
        assert ({each.code for each in lint(folder).findings} == {"padding"}) == (row >= first)


# Conversions


@pytest.mark.rule("CNV-26", "CNV-64")
@pytest.mark.example("CNV-26", "CNV-64")
def test_kept_bits_of_a_scale(tmp_path):
    ((number, half, same),) = rows_of("CNV-26")
    assert number == same
    for run, (kept, stored, read) in enumerate([*rows_of("CNV-64"), (same, half, number)]):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.array(f"{UP}.weight_scale_2")[...] = F(kept)
        export.array(f"{LAYER}.mlp.gate_proj.weight_scale_2")[...] = F(kept)
        middle, back = tmp_path / f"{run}ct", tmp_path / f"{run}back"
        convert(export.write(tmp_path / f"{run}source"), middle, "compressed-tensors")
        tensor = open_checkpoint(middle).tensors[f"{UP}.weight_global_scale"]
        if run != 1:
            assert np.frombuffer(tensor.bytes(), F)[0] == F(stored)
        with tensor.shard.path.open("r+b") as file:
            file.seek(tensor.start)
            file.write(F(stored).tobytes())
        convert(middle, back, "modelopt", lossy=True)
        result = open_checkpoint(back).tensors[f"{UP}.weight_scale_2"]
        assert np.frombuffer(result.bytes(), F)[0] == F(read)


def losses(source, target, **options):
    return convert(source, target, options.pop("to"), lossy=True, **options)["losses"]


@pytest.mark.rule("CNV-65", "CNV-4")
@pytest.mark.example("CNV-65")
def test_a_scale_without_a_place(tmp_path):
    for run, (scale, target, loss) in enumerate(rows_of("CNV-65")):
        to = target.partition(",")[0].lower()
        texts = losses(corpus.CLEAN["modelopt-nvfp4"]().write(tmp_path / f"{run}"), tmp_path / f"{run}to", to=to)
        assert [text for text in texts if f"{scale}, for which {to}" in text] == texts
        assert bool(texts) == (loss == "yes")


@pytest.mark.rule("CNV-66", "CNV-4")
@pytest.mark.example("CNV-66")
def test_a_value_that_moves(tmp_path):
    (_, same, none), (_, other, count) = rows_of("CNV-66")
    assert (same, other, none, count) == ("MXFP4", "MXFP4", "no", "the number of values that differ")
    specs = [("*", fp4ref.profiles["mxfp4"])]
    export = corpus.CLEAN["modelopt-mxfp4"]()
    assert losses(export.write(tmp_path / "a"), tmp_path / "b", to="modelopt", specs=specs) == []
    moved = losses(corpus.CLEAN["mlx-nvfp4"]().write(tmp_path / "c"), tmp_path / "d", to="mlx", specs=specs)
    assert all(re.search(r": [1-9]\d* of \d+ decoded values differ", text) for text in moved)
    assert moved


@pytest.mark.rule("CNV-67", "CNV-4")
@pytest.mark.example("CNV-67")
def test_a_byte_that_is_read_otherwise(tmp_path):
    for run, (byte, _, loss) in enumerate(rows_of("CNV-67")):
        export = corpus.CLEAN["torchao-nvfp4"]()
        export.array(f"{UP}._weight_scale")[3, 2] = int(re.match("`(..)`", byte)[1], 16)
        texts = losses(export.write(tmp_path / f"{run}"), tmp_path / f"{run}to", to="gguf")
        assert any(f"{UP}: 1 scale bytes" in text for text in texts) == (loss == "yes")


@pytest.mark.rule("CNV-54", "CNV-68")
@pytest.mark.example("CNV-54", "CNV-68")
@pytest.mark.parametrize("rule", ["CNV-54", "CNV-68"])
def test_commands_of_repairs(rule, tmp_path):
    for run, (cell, command) in enumerate(rows_of(rule)):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        export.array(f"{UP}.weight_scale")[5, 3] = 0x7F
        if "above zeros" in cell:
            export.array(f"{UP}.weight")[5, 24:32] = 0x80
        if "orphan-tensor" in cell:
            export.put(f"{LAYER}.mlp.o_gate.weight_scale", "F8_E4M3", np.zeros((4, 4)))
        options = {"convention": "modelopt"} if "convention" in cell else {}
        repairs = {each.code: each.repair for each in lint(export.write(tmp_path / f"{run}"), **options).findings}
        words = repairs["scale-nan"].split()[4:]
        assert sorted(words) == sorted([] if command == "none" else command.strip("`").split())
    assert repair_command("a", ["x"], source="b").endswith("--repair x --source b")


# Kernels on trial


@pytest.mark.rule("CNF-116", "CNF-74")
@pytest.mark.example("CNF-116")
def test_the_time_of_a_process_that_starts_again(monkeypatch):
    for first, limit in rows_of("CNF-116"):
        took = float((re.search(r"after (\d+) s", first) or [0, 0])[1])
        now, limits = [0.0], []
        ends = [[None], [None]] if first.startswith("answers") else None
        kind = FindingKind.HUNG if first == "hangs" else FindingKind.CRASHED

        class Process:
            def __init__(self, *arguments):
                pass

            def outcomes(self, jobs, limit, left, ends=ends, kind=kind, limits=limits, now=now, took=took, **how):
                limits.append(limit)
                now[0] += took
                return ends[0] if ends else Finding(kind, "it")

        monkeypatch.setattr(runner, "KernelProcess", Process)
        monkeypatch.setattr(runner.time, "monotonic", lambda now=now: now[0])
        asked = runner.Runner.__new__(runner.Runner)
        asked._process, asked._allowance = None, 60.0
        asked._options = SimpleNamespace(timeout=1.0, left=1e9)
        asked._subject = SimpleNamespace(target="it", library=None, declaration=SimpleNamespace(to_json=dict))
        asked._asked([])
        asked._process = None
        asked._asked([])
        assert limits == [61.0, float(limit.split()[0])], first


@pytest.mark.rule("CNF-117")
@pytest.mark.example("CNF-117")
def test_the_lowest_byte_comes_first():
    (count, counted), (amax, stored) = rows_of("CNF-117")
    assert struct.pack("<I", int(count.split()[-1])).hex(" ").upper() == counted.strip("`")
    out = io.BytesIO()
    plan = stream.StreamPlan(fp4ref.NVFP4, families=("normal",))
    stream.write(out, plan)
    data = out.getvalue()
    n = int.from_bytes(data[8:12], "little")
    assert json.loads(data[12 : 12 + n])["fp4ref"]
    case = next(iter(plan.cases()))
    assert F(case.amax if case.amax is not None else np.abs(case.x).max()).astype("<f4").tobytes() in data
    assert np.array(float(amax.split()[1]), "<f4").tobytes().hex(" ").upper() == stored.strip("`")


# Profiles


@pytest.mark.rule("PRO-11", "PRO-13")
@pytest.mark.example("PRO-11", "PRO-13")
def test_casts_to_e8m0():
    def cast(name, cell):
        return f"{int(CASTS[name].encode(F([formulas.value(cell)]))[0]):02X}"

    for number, code in rows_of("PRO-11"):
        assert {cast("torch.e8m0", number), cast("ml_dtypes.e8m0", number)} == {code.strip("`")}
    for number, *both in rows_of("PRO-13"):
        assert [cast("torch.e8m0", number), cast("ml_dtypes.e8m0", number)] == [code.strip("`") for code in both]


NAMES = ("a_data", "a_scales", "b_data", "b_scales", "bias", "rows", "columns", "depth")


@pytest.mark.rule("GEM-51", "GEM-62")
@pytest.mark.example("GEM-51", "GEM-62")
def test_what_a_kernel_that_adds_is_given():
    spec, seen = fp4ref.MXFP4, []

    @fp4ref.kernel(operation="gemm", inputs=NAMES, outputs=("values",), out_buffers=True, in_place=True)
    def adding(a_data, a_scales, b_data, b_scales, bias, rows, columns, depth, out):
        seen.append((bias.copy(), out[0].copy()))
        sides = ((a_data, a_scales, rows), (b_data, b_scales, columns))
        a, b = (
            fp4ref.Quantized(spec, (n, depth), "float32", "linear", fp4ref.DirectionData(data, scales, None))
            for data, scales, n in sides
        )
        out[0][...] = fp4ref.gemm(a, b, bias=bias, accumulate=seen[-1][1], backend="numpy")

    assert check(Subject.of(adding), spec, ("powers",)).ok
    ((_, bias, c),) = rows_of("GEM-51")
    assert (bias, c) == ("zeros", "zeros")
    assert seen
    assert not any(part.any() for both in seen for part in both)
    seen.clear()
    assert check(Subject.of(adding), spec, ("accumulate",)).ok
    ((name, *calls),) = rows_of("GEM-62")
    (case,) = (case for case in products(spec, ("accumulate",)) if case.id == name.strip("`"))
    found = [c for _, c in seen if c.shape == case.accumulate.shape and c.tobytes() == case.accumulate.tobytes()]
    assert [*calls] == ["C"] * len(calls)
    assert len(found) >= len(calls)


# Linear layers


@pytest.fixture
def te():
    pytest.importorskip("torch")
    import fp4ref.te
    from fp4ref.te.quantization import FP8GlobalStateManager

    FP8GlobalStateManager.reset()
    yield fp4ref.te
    FP8GlobalStateManager.reset()


def sizes(cell):
    return [int(word) for word in re.findall(r"\d+", cell)]


@pytest.mark.rule("TEL-56", "TEL-88")
@pytest.mark.example("TEL-56", "TEL-88")
def test_the_parts_of_a_hybrid_tensor(te):
    import torch

    (_, rows, data), (_, columns, turned) = rows_of("TEL-56")
    kinds = {"MXFP8": te.MXFP8Quantizer, "NVFP4": te.NVFP4Quantizer}
    made = te.HybridQuantizer(rowwise_quantizer=kinds[rows](), columnwise_quantizer=kinds[columns]())(
        torch.randn(64, 96, dtype=torch.bfloat16)
    )
    by_rows, by_columns = made._rowwise_storage, made._columnwise_storage
    assert (by_rows._quantizer.__class__, by_columns._quantizer.__class__) == (kinds[rows], kinds[columns])
    assert [*by_rows._rowwise_data.shape] == sizes(data)
    assert [*by_columns._columnwise_data.shape] == sizes(turned)
    ((one, other, fprop, wgrad),) = rows_of("TEL-88")
    assert (one, other, fprop, wgrad) == (rows, columns, rows, columns)
    assert (made.read_in("row"), made.read_in("column")) == (by_rows, by_columns)


@pytest.mark.rule("TEL-66", "TEL-89")
@pytest.mark.example("TEL-66", "TEL-89")
def test_histories_begin_and_change_their_length(te):
    import torch

    from fp4ref.te.delayed_scaling import resized
    from fp4ref.te.recipe_state import DelayedScalingRecipeState

    ((length, history, scale),) = rows_of("TEL-66")
    recipe = te.recipe.DelayedScaling(amax_history_len=int(length))
    state = DelayedScalingRecipeState(recipe, mode="forward", num_quantizers=1)
    assert state.amax_history[:, 0].tolist() == sizes(history)
    assert state.scale.tolist() == sizes(scale)
    for before, count, after in rows_of("TEL-89"):
        got = resized(torch.tensor(sizes(before), dtype=torch.float32)[:, None], int(count))
        assert got[:, 0].tolist() == sizes(after)


@pytest.mark.rule("TEL-47", "TEL-90")
@pytest.mark.example("TEL-47", "TEL-90")
def test_when_scales_are_updated(te):
    import torch

    largest = sizes(re.search("amax 7, then 14", text_of("TEL-47"))[0])
    for algorithm in ("max", "most_recent"):
        layer = te.Linear(32, 32, params_dtype=torch.bfloat16, device="cpu")
        recipe = te.recipe.DelayedScaling(amax_history_len=8, amax_compute_algo=algorithm)
        x, seen = torch.ones(16, 32, dtype=torch.bfloat16), []
        for amax in (*largest, 1):
            with te.autocast(recipe=recipe):
                layer(amax * x)
                seen.append(layer.quantizer("input").scale.item())
        assert seen == [float(row[1]) for row in rows_of("TEL-47")]
    layers = [te.Linear(32, 32, params_dtype=torch.bfloat16, device="cpu") for _ in range(2)]
    with te.autocast(recipe=te.recipe.DelayedScaling(amax_history_len=4)):
        between = layers[0](torch.ones(16, 32, dtype=torch.bfloat16, requires_grad=True))
        y = layers[1](between)
    said = {"of all modules": True, "of none": False}
    nodes = [between.grad_fn, y.grad_fn]
    for number, last in enumerate(nodes):
        node = last
        while not hasattr(node, "reduce_and_update_bwd_fp8_tensors"):
            node = node.next_functions[0][0]
        assert node.reduce_and_update_bwd_fp8_tensors is said[rows_of("TEL-90")[number][1]]
    y.sum().backward()
    assert all(layer.fp8_meta["scaling_bwd"].scale[0].item() != 1 for layer in layers)


@pytest.mark.rule("TEM-5", "TEM-55")
@pytest.mark.example("TEM-5", "TEM-55")
def test_members_of_a_grouped_layer(te):
    import torch

    table = rows_of("TEM-5")
    splits = [int(rows) for _, rows, *_ in table]
    layer = te.GroupedLinear(2, 128, 16, bias=False, params_dtype=torch.bfloat16, device="cpu")
    weights = [getattr(layer, f"weight{weight}") for *_, weight, _ in table]
    assert [f"from its {rows} rows" for rows in splits] == [row[-1] for row in table]
    recipe = te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)
    for factors in ((1, 1), (1, 3)):
        numbers = [float(formulas.value(x)) for _, x, _ in rows_of("TEM-55")]
        for weight, factor in zip(weights, factors, strict=True):
            weight.data.fill_(factor)
            weight.grad = None
        parts = [torch.full((rows, 128), number) for rows, number in zip(splits, numbers, strict=True)]
        with te.autocast(recipe=recipe):
            y = layer(torch.cat(parts).to(torch.bfloat16), splits)
        y.sum().backward()
        for part, factor, (_, _, value) in zip(y.split(splits), factors, rows_of("TEM-55"), strict=True):
            assert (part == factor * float(formulas.value(value))).all()
        for weight, rows, number in zip(weights, splits, numbers, strict=True):
            assert (weight.grad == rows * number).all()
