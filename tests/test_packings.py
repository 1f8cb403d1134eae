"""Packings against naive loops over their text, against what owners' code wrote, and against the canonical packing."""

from __future__ import annotations

import json
import math
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st

import fp4ref
from covering import few
from fp4ref import packing as canonical
from fp4ref.cli import main
from fp4ref.conformance.judge.cases import judge
from fp4ref.conformance.run.runner import run
from fp4ref.conformance.subjects.subject import Subject, cases_of
from fp4ref.errors import DomainError, DTypeError, LayoutError, ShapeError
from fp4ref.formats import E2M1, E4M3, Format
from fp4ref.layout import Layout
from fp4ref.packed_records import records_of, width_of
from fp4ref.packings import CANONICAL_OF, PACKINGS, bit_of, codes_of, packed_shape, packing, repack, rows_follow

FORMATS = {4: E2M1, 6: Format("e2m3_of_this_test", 2, 3, bias=1, codes=32), 8: E4M3}
ROWS_INSIDE = Layout("rows_inside", "n(2,*) k(*): n0 k0 n1; unit 4")
FILLED = Layout("filled", "n(4,*) k(4,*): k0 n0 k1 n1; unit 4; pad n 0x5; pad k 0x9")
SIX_TURNED = Layout("six_turned", "n(*) k(4,*): k0^3 k1 n0; unit 6")
BYTES_TURNED = Layout("bytes_turned", "n(*) k(4,*): k0^3 k1 n0")
NAMES = list(PACKINGS)
CODES = np.arange(64, dtype=np.uint8) % 16
RECORDED = np.load(Path(__file__).parent / "data/layouts.npz")


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    return canonical.pack(codes.astype(np.uint8), FORMATS[bits])


def drawn(form: Layout, rows: int, columns: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1 << form.unit, (rows, columns)).astype(np.uint8)


def naive(form: Layout, codes: np.ndarray, rows_at_bytes: bool) -> bytes:
    """The buffer as one long integer, a code at a time; padding holds 0."""
    rows, columns = codes.shape
    high, wide = form.padded(rows, columns)
    units = int(np.prod(form.padded_shape(rows, columns)))
    row_bits = -(-wide * form.unit // 8) * 8
    total, size = 0, row_bits * high if rows_at_bytes else units * form.unit
    for n in range(rows):
        for k in range(columns):
            offset = int(form.offsets([n, k], (rows, columns)))
            bit = n * row_bits + (offset - n * wide) * form.unit if rows_at_bytes else offset * form.unit
            total |= int(codes[n, k]) << bit
    return total.to_bytes(-(-size // 8), "little")


@pytest.mark.rule("PACK-7", "PACK-8")
@settings(max_examples=60, deadline=None)
@given(
    form=st.sampled_from([*PACKINGS.values(), ROWS_INSIDE, SIX_TURNED, BYTES_TURNED]),
    rows=st.integers(0, 9),
    columns=st.integers(0, 70),
    seed=st.integers(0, 9),
)
@example(form=ROWS_INSIDE, rows=3, columns=3, seed=0)
@example(form=CANONICAL_OF[6], rows=3, columns=1, seed=0)
@example(form=PACKINGS["ggml.mxfp4_data"], rows=3, columns=64, seed=1)
@example(form=PACKINGS["ggml.nvfp4_data"], rows=2, columns=128, seed=2)
@example(form=PACKINGS["pairs_8"], rows=3, columns=48, seed=3)
@example(form=PACKINGS["words_big"], rows=5, columns=32, seed=4)
def test_repack_is_a_naive_loop_and_its_own_inverse(form, rows, columns, seed):
    for axis, size in enumerate((rows, columns)):
        if form.axes[axis].refused and size % form.axes[axis].multiple:
            with pytest.raises(
                ShapeError, match=rf"{rows} x {columns} (units|scales), need a multiple of .* \[LAY-43\]"
            ):
                packed_shape(form, rows, columns)
            return
    codes = drawn(form, rows, columns, seed)
    at_bytes = form.text.startswith(("n(*)", "m(*)")) and not form.has_gaps
    data = packed(codes, form.unit)
    got = repack(data, rows, columns, "canonical", form)
    assert got.tobytes() == naive(form, codes, at_bytes)
    assert got.shape == packed_shape(form, rows, columns)
    assert repack(got, rows, columns, form).tobytes() == data.tobytes()
    poisoned = got | repack(np.full_like(got, 255), rows, columns, form, form) ^ np.uint8(255)
    assert repack(poisoned, rows, columns, form).tobytes() == data.tobytes()  # padding, spare bits and gaps


@pytest.mark.rule("PACK-1", "PACK-2", "PACK-3", "PACK-4", "PACK-5", "PACK-7")
@given(bits=st.sampled_from([4, 6, 8]), rows=st.integers(0, 4), columns=st.integers(0, 11), seed=st.integers(0, 9))
def test_the_canonical_packing_of_each_width_is_what_the_model_packs(bits, rows, columns, seed):
    form = CANONICAL_OF[bits]
    codes = drawn(form, rows, columns, seed)
    data = packed(codes, bits)
    got = repack(data, rows, columns, form, form)
    assert got.tolist() == data.tolist()
    assert got.shape == data.shape
    assert naive(form, codes, rows_at_bytes=True) == data.tobytes()


@pytest.mark.rule("PACK-8")
@pytest.mark.parametrize(
    "name, recorded",
    [
        ("low_first", "pack_low_first"),
        ("high_first", "pack_high_first_comfy"),
        ("ggml.mxfp4_data", "gguf_mxfp4_data"),
        ("ggml.nvfp4_data", "gguf_nvfp4_data"),
        ("ggml.mxfp4x4_data", "ggml_mxfp4x4_data"),
        ("ggml.mxfp4x8_data", "ggml_mxfp4x8_data"),
        ("vllm.marlin_fp4", "marlin_weight_fp4"),
    ],
)
def test_what_owners_were_seen_to_write(name, recorded):
    assert recorded in {json.loads(line)["name"] for line in RECORDED["index"]}
    keys = [key for key in RECORDED.files if key.partition("|")[0] == recorded]
    for key in keys:
        rows, columns = (int(size) for size in re.findall(r"=(\d+)", key))
        codes = drawn(PACKINGS[name], rows, columns, 1)
        nibbles = np.where(RECORDED[key] < 0, 0, codes.reshape(-1)[RECORDED[key]])
        expected = nibbles[0::2] | nibbles[1::2] << 4
        got = repack(packed(codes, 4), rows, columns, "canonical", name).reshape(-1)
        assert got[: expected.size].tolist() == expected.tolist()
        assert not got[expected.size :].any()


@pytest.mark.rule("PACK-8")
@pytest.mark.parametrize(
    "name, first",
    [
        ("high_first", "01 23 45 67"),
        ("pairs_8", "80 91 a2 b3"),
        ("pairs_16", "00 11 22 33"),
        ("words_big", "76 54 32 10"),
        ("words_high_first", "67 45 23 01"),
        ("ggml.mxfp4_data", "00 00 11 22"),
        ("ggml.nvfp4_data", "00 00 00 00 80 91"),
    ],
)
def test_the_first_bytes_of_counted_codes(name, first):
    got = repack(packed(CODES[None], 4), 1, 64, "low_first", name)
    assert got.tobytes().startswith(bytes.fromhex(first))


@pytest.mark.rule("PACK-7", "PACK-10", "PACK-11")
def test_the_examples_of_the_rule():
    data = packed(np.array([[1, 2, 3], [4, 5, 6]]), 4)
    assert data.tobytes() == bytes.fromhex("21 03 54 06")
    assert repack(data, 2, 3, "low_first", ROWS_INSIDE).tobytes() == bytes.fromhex("41 52 63")
    assert packed(np.array([[0x3F], [1]]), 6).tobytes() == bytes.fromhex("3f 01")


@pytest.mark.rule("PACK-12", "PACK-10")
@pytest.mark.parametrize(
    ("text", "rows", "columns", "shape"),
    [
        ("n(*) k(*): k0 n0; unit 4", 0, 3, (0, 2)),
        ("n(2,*) k(*): n0 k0 n1; unit 4", 0, 4, (0, 2)),
        ("n(2,*) k(*): n0 k0 n1; unit 4", 0, 5, (1, 0)),
        ("n(*) k(*): k0 n0; unit 4", 2, 3, (2, 2)),
        ("n(*) k(*): |1 k0 n0; unit 4", 2, 3, (1, 3)),  # an alignment, though it moves nothing
    ],
)
def test_the_shape_of_the_bytes(text, rows, columns, shape):
    assert packed_shape(Layout("t", text), rows, columns) == shape


@pytest.mark.rule("PACK-2", "PACK-11")
def test_spare_nibbles_are_0_and_stated_padding_is_written():
    assert repack(np.uint8([[0x21, 0xF3]]), 1, 3, "low_first", "high_first").tolist() == [[0x12, 0x30]]
    got = repack(np.uint8([[0x21, 0x03]]), 1, 3, "low_first", FILLED)
    assert got.tobytes() == bytes.fromhex("21 93 55 55 55 55 55 55")


@pytest.mark.rule("PACK-7")
def test_one_line_registers_a_packing(request):
    form = fp4ref.register(Layout("acme.pairs_4", "n(*) k(4,2,*): k1 k0 k2 n0; unit 4"))
    request.addfinalizer(lambda: fp4ref.LAYOUTS.forget(form.name))
    data = packed(CODES[None, :8], 4)
    assert repack(data, 1, 8, "low_first", "acme.pairs_4").tobytes() == bytes.fromhex("40 51 62 73")
    assert repack(repack(data, 1, 8, "low_first", form), 1, 8, form).tobytes() == data.tobytes()


@pytest.mark.rule("PACK-7")
def test_refusals_are_one_line():
    data = np.zeros((2, 4), np.uint8)
    scales = Layout("scales", "m(8,*) k(4,*): k0 m0 k1 m1; unit 16")
    for error, message, arguments, more in (
        (ShapeError, "repack: 8 bytes for 2 x 9 codes in low_first, need 10 [PACK-7]", (2, 9, "low_first"), {}),
        (LayoutError, "'high_first' with units of 4 bits, need units of 6", (2, 8, "six_low_first", "high_first"), {}),
        (LayoutError, "'canonical' for codes of None bits, need a width", (2, 8, "canonical"), {}),
        (LayoutError, "packing: 'scales' with 2 axes and units of 16 bits, need two axes", (2, 8, scales), {}),
        (LayoutError, "'low_first' with units of 4 bits, need units of 8 bits", (2, 8, "low_first"), {"bits": 8}),
        (fp4ref.UnknownNameError, "packing: unknown name 'lowfirst', need a registered one (", (2, 8, "lowfirst"), {}),
    ):
        with pytest.raises(error, match=re.escape(message)) as raised:
            repack(data, *arguments, **more)
        assert "\n" not in str(raised.value)
    with pytest.raises(DTypeError, match=r"data of type int8, need uint8 \[PACK-7\]"):
        repack(data.view(np.int8), 2, 8, "low_first")


@pytest.mark.rule("PACK-7", "PACK-10")
@pytest.mark.parametrize("name", [name for name, form in PACKINGS.items() if form.unit == 4])
def test_whole_records_are_moved_as_single_codes_are(name, monkeypatch):
    form, shape = PACKINGS[name], (64, 1024)
    data = np.random.default_rng(5).integers(0, 256, (64, 512)).astype(np.uint8)
    by_records = records_of(form, shape, width_of(CANONICAL_OF[4], form)) is not None
    assert by_records == (rows_follow(form) or name in {"ggml.mxfp4_data", "ggml.nvfp4_data", "cuda.tma_16u4_align16"})
    there = repack(data, *shape, "low_first", name)
    monkeypatch.setattr("fp4ref.packings.records_of", lambda *arguments: None)
    assert repack(data, *shape, "low_first", name).tobytes() == there.tobytes()
    assert repack(there, *shape, name).tobytes() == data.tobytes()


@pytest.mark.parametrize("name", ["high_first", "vllm.marlin_fp4"])
def test_a_conversion_needs_little_memory_beyond_its_result(name):
    data = np.zeros((2048, 2048), np.uint8)  # 8 million codes
    tracemalloc.start()
    try:
        repack(data, 2048, 4096, "low_first", name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < data.nbytes + (24 << 20)


def kernel_of(name: str, spoil: bool = False):
    """A right quantizer whose codes are packed nibble by nibble, in another packing."""
    form = PACKINGS[name]

    def quantize(x):
        q = fp4ref.quantize(x, "mxfp4", backend="numpy")
        rows, columns = q.matrix
        codes = canonical.unpack(q.row.data, columns, E2M1)
        units = np.zeros(math.prod(form.padded_shape(rows, columns)), np.uint8)
        units[form.offsets(list(np.indices(codes.shape)), codes.shape)] = codes
        data = (units[0::2] | units[1::2] << 4).reshape(packed_shape(form, rows, columns))
        if spoil and data.size:
            data[-1, -1] |= repack(np.full_like(data, 255), rows, columns, form, form)[-1, -1] ^ 0xFF
        return data, q.row.scales

    return quantize


FEW = ["normal", "ragged", "empty"]


def kinds(function, **declared) -> set[str]:
    """The kinds of findings about a kernel, or "differs" for wrong codes."""
    subject = Subject.of(function, outputs=("data", "scales"), **declared)
    cases = cases_of(subject.declaration, fp4ref.MXFP4, families=FEW)
    judged = [judge(r.case, r.outcome, subject.declaration, r.expected) for r in run(subject, cases)]
    assert len(judged) > 4
    return {str(j.finding.kind) if j.finding else "equal" if j.equal else "differs" for j in judged}


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.rule("CNF-8", "PACK-7", "PACK-8")
@pytest.mark.parametrize("name", few(["high_first", "pairs_16", "words_big", "ggml.mxfp4_data", "vllm.marlin_fp4"], 3))
def test_a_kernel_that_declares_another_packing_is_judged_by_its_codes(name):
    assert kinds(kernel_of(name), packing=name) == {"equal"}
    assert kinds(kernel_of(name)) & {"differs", "shape"}
    assert kinds(kernel_of("low_first"), packing=name) & {"differs", "shape"}


@pytest.mark.sampled(3)
@pytest.mark.rule("PACK-2", "PACK-7")
@pytest.mark.parametrize("name, found", [("high_first", True), ("pairs_16", True), ("ggml.mxfp4_data", False)])
def test_padding_that_a_packing_states_is_judged(name, found):
    assert ("wrong-padding" in kinds(kernel_of(name, spoil=True), packing=name)) == found


@pytest.mark.rule("CNF-8", "PACK-7")
def test_a_dequantizer_is_given_the_packing_that_it_declares():
    @fp4ref.kernel(operation="dequantize", inputs=("data", "scales"), outputs=("values",), packing="words_high_first")
    def dequantize(data, scales):
        rows, columns = scales.shape[0], data.shape[1] * 2
        codes = np.stack([data >> 4, data & 15], -1).reshape(rows, -1, 4, 2)[:, :, ::-1].reshape(rows, columns)
        values = np.float32([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])[codes]
        return np.ldexp(values, (scales.astype(int) - 127).repeat(32, 1)[:, :columns])

    subject = Subject.of(dequantize, multiple=(1, 8))
    cases = cases_of(subject.declaration, fp4ref.MXFP4, families=["normal"])
    judged = [judge(r.case, r.outcome, subject.declaration, r.expected) for r in run(subject, cases)]
    assert {(j.equal, bool(j.mismatches)) for j in judged if j.case.x.size} == {(True, False)}


@pytest.mark.rule("CNF-8", "PACK-7")
@pytest.mark.parametrize(
    "settings, message",
    [
        ({"packing": "pairs"}, "packing: unknown name 'pairs'"),
        ({"packing": "pairs_8", "nibble_order": "high"}, "packing 'pairs_8' and another order of data"),
        ({"packing": "linear", "transposed": True}, "packing 'linear' and another order of data"),
    ],
)
def test_wrong_declarations(settings, message):
    with pytest.raises(fp4ref.Fp4Error, match=message):
        fp4ref.kernel(**settings)


@pytest.mark.slow
@pytest.mark.rule("CNF-8", "PACK-7")
def test_verify_of_a_kernel_whose_file_registers_its_packing(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import fp4ref\n"
        "fp4ref.register(fp4ref.Layout('mine.pairs_4', 'n(*) k(4,2,*): k1 k0 k2 n0; unit 4'))\n"
        "@fp4ref.kernel(outputs=('data', 'scales'), packing='mine.pairs_4', multiple=(1, 8))\n"
        "def quantize(x):\n"
        "    q = fp4ref.quantize(x, 'mxfp4', backend='numpy')\n"
        "    pairs = q.row.data.reshape(len(q.row.data), -1, 4)\n"
        "    low, high = pairs[:, :, :2], pairs[:, :, 2:]\n"
        "    codes = [(part >> shift & 15) for part in (low, high) for shift in (0, 4)]\n"
        "    even, odd = codes[0] | codes[2] << 4, codes[1] | codes[3] << 4\n"
        "    import numpy as np\n"
        "    return np.stack([even, odd], -1).reshape(q.row.data.shape), q.row.scales\n"
    )
    arguments = ["verify", "--kernel", f"{tmp_path / 'mine.py'}:quantize", "--family", "normal"]
    try:
        found = CliRunner().invoke(main, [*arguments, "--spec", "mxfp4"])
        assert found.exit_code == 0, found.output
        found = CliRunner().invoke(main, [*arguments, "--spec", "mxfp4", "--packing", "low_first"])
        assert found.exit_code == 1, found.output
        found = CliRunner().invoke(main, [*arguments, "--spec", "mxfp8-e4m3"])
        assert found.exit_code == 2, found.output
        assert "'mine.pairs_4' with units of 4 bits, need units of 8 bits [PACK-7]" in found.output
    finally:
        fp4ref.LAYOUTS.forget("mine.pairs_4")


@pytest.mark.rule("PACK-7", "PACK-8")
@pytest.mark.parametrize(
    "name, place",
    [
        ("low_first", "data byte 145 high nibble in low_first"),  # row 2 begins at byte 128, and 35 is odd
        ("high_first", "data byte 145 low nibble in high_first"),
        ("pairs_16", "data byte 147 low nibble in pairs_16"),  # code 3 of the second group of 32
        ("words_big", "data byte 146 high nibble in words_big"),
        ("ggml.mxfp4_data", "data byte 157 low nibble in ggml.mxfp4_data"),  # 17 bytes for each of 2 * 4 + 1 blocks
    ],
)
def test_where_an_element_is_in_another_packing(name, place):
    found = CliRunner().invoke(main, ["where", "2", "35", "--shape", "4x128", "--spec", "mxfp4", "--packing", name])
    assert found.exit_code == 0, found.output
    assert place in found.output


def test_where_refuses_a_packing_of_another_width():
    found = CliRunner().invoke(main, ["where", "0", "0", "--shape", "4x128", "--packing", "six_low_first"])
    assert found.exit_code == 2
    assert "packing: 'six_low_first' with units of 6 bits, need units of 4 bits [PACK-7]" in found.output


@pytest.mark.rule("PACK-7", "PACK-10")
@pytest.mark.parametrize("name", PACKINGS)
def test_the_codes_of_a_byte(name):
    form = packing(name, 4) if PACKINGS[name].unit == 8 and name != "linear" else PACKINGS[name]
    rows, columns = (axis.multiple if axis.refused else axis.multiple + 4 for axis in form.axes)
    wanted: dict[int, list[tuple[int, int, int]]] = {}
    for row in range(rows):
        for column in range(columns):
            byte, bit = bit_of(form, (rows, columns), row, column)
            for part in {byte, byte + (bit + form.unit - 1) // 8}:
                wanted.setdefault(part, []).append((8 * byte + bit, row, column))
    size = math.prod(packed_shape(form, rows, columns))
    step = size // 1024 | 1  # odd: in a large form, every value of each digit of a byte's place still comes
    for byte in range(0, size, step):
        expected = [(row, column) for _, row, column in sorted(wanted.get(byte, []))]
        assert codes_of(form, (rows, columns), byte) == expected
    with pytest.raises(DomainError, match="need 0 <= byte <"):
        codes_of(form, (rows, columns), -1)
