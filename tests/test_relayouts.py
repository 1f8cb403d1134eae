"""`fp4ref layouts`: what it lists, where two layouts differ, and which one a buffer is in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fp4ref
from fp4ref import relayouts
from fp4ref.cli import main
from fp4ref.errors import Fp4Error
from fp4ref.layout import LAYOUTS, ORIGINS, Layout
from fp4ref.packings import PACKINGS, repack

RNG = np.random.default_rng(8)


def run(*arguments: object):
    return CliRunner().invoke(main, ["layouts", *map(str, arguments)])


@pytest.fixture
def saved(tmp_path):
    """Save arrays as .npy files, and return their paths."""

    def save(*arrays):
        paths = [tmp_path / f"{number}.npy" for number in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        return paths

    return save


def test_every_name_is_listed_with_its_text_and_consumer():
    found = run()
    assert found.exit_code == 0
    for name in relayouts.every():
        assert f"  {name:<30} {relayouts.named(name).text}\n" in found.output
    records = json.loads(run("--consumer", "hipblaslt", "--json").output)
    assert {r["name"] for r in records} == {"rocm.gfx950_32x8", "rocm.gfx1250_mx32", "rocm.gfx1250_mx16"}
    assert records[0]["owner"] == "ROCm/rocm-libraries"
    assert run("--match", "nothing*").output.startswith("no name matches 'nothing*'\n")
    assert "; --match '*gfx950*' lists the names that contain it" in run("--match", "gfx950").output


@pytest.mark.rule("LAY-13", "LAY-15", "LAY-40")
@pytest.mark.parametrize(
    "a, b, shape, place, text",
    [
        ("tiled_128x4", "cutlass.sf_mn_major", (128, 8), None, None),
        ("tiled_128x4", "cutlass.sf_mn_major", (256, 8), (0, 4), "(0, 4) is stored at 512 and 1024"),
        ("tiled_128x4", "torchao.to_blocked", (300, 9), None, None),
        ("linear", "flashinfer.sf_8x4", None, None, "linear with 2 axes of 8 bits, flashinfer.sf_8x4 with 3 of 8"),
        ("linear", "tiled_8x4", (1, 4), "size", "the same offsets, but 4 and 32 units with padding"),
        ("rocm.gfx950_32x8", "aiter.shuffle_scale", (256, 16), None, None),
        ("low_first", "high_first", (2, 4), (0, 0), "(0, 0) is stored at 0 and 1"),
        ("ggml.mxfp4_data", "pairs_16", (1, 32), (0, 0), "(0, 0) is stored at 2 and 0"),
    ],
)
def test_where_two_layouts_differ(a, b, shape, place, text):
    if shape is None:
        with pytest.raises(Fp4Error) as caught:
            relayouts.differ(relayouts.named(a), relayouts.named(b), (4, 4))
        assert text in str(caught.value)
        return
    found = relayouts.differ(relayouts.named(a), relayouts.named(b), shape)
    assert (found is None) == (text is None)
    if found:
        assert found.text == text
        assert found.place == (None if place == "size" else place)


@pytest.mark.rule("LAY-15", "LAY-37")
def test_padding_tells_layouts_apart():
    text = "m(32,*) k(4,*): k0 m0 k1 m1"
    zero, ones, some = (
        Layout(name, text + pad) for name, pad in (("a", ""), ("b", "; pad m 0x7f"), ("c", "; pad m unspecified"))
    )
    assert relayouts.differ(zero, ones, (32, 4)) is None
    assert "different values" in relayouts.differ(zero, ones, (31, 4)).text
    assert "leaves open" in relayouts.differ(zero, some, (31, 4)).text


def test_compare_says_equal_here_and_different_there():
    found = run("compare", "tiled_128x4", "cutlass.sf_mn_major")
    assert found.exit_code == 1
    assert "128 x 8      equal\n" in found.output
    assert "300 x 9      differ: (0, 4) is stored at 512 and 1536\n" in found.output
    record = json.loads(run("compare", "tiled_128x4", "cutlass.sf_mn_major", "--shape", "256x8", "--json").output)
    assert record["shapes"] == [
        {
            "shape": [256, 8],
            "result": "differ",
            "text": "(0, 4) is stored at 512 and 1024",
            "index": [0, 4],
            "offsets": [512, 1024],
        }
    ]
    found = run("compare", "linear", "aiter.gemm_gfx1250")
    assert (
        "refused: aiter.gemm_gfx1250.padded_shape: 1 x 1 scales, need a multiple of 16 along m [LAY-43]" in found.output
    )
    assert run("compare", "tiled_128x4", "torchao.to_blocked").exit_code == 0


@pytest.mark.parametrize(
    "name, shape",
    [
        ("aiter.n32k4", (2, 64, 8)),
        ("vllm.marlin_scale_nvfp4", (128, 4)),
        ("cutlass.sf_mn_major", (300, 9)),
        ("ggml.nvfp4_scale", (5, 12)),
        ("triton.hopper_scale_w4", (256, 6)),
    ],
)
@pytest.mark.rule("LAY-7", "LAY-18")
def test_find_names_the_layout_of_a_buffer(name, shape, saved):
    scales = RNG.permutation(np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)
    first, second = saved(scales, LAYOUTS[name].from_linear(scales))
    found = json.loads(run("find", first, second, "--json").output)
    assert name in {match["name"] for match in found["matches"]}
    buffers = {LAYOUTS[match["name"]].from_linear(scales).tobytes() for match in found["matches"]}
    assert len(buffers) == 1


@pytest.mark.rule("PACK-7", "PACK-9")
@pytest.mark.parametrize("name", ["pairs_16", "ggml.mxfp4_data", "vllm.marlin_fp4_a8", "aiter.shuffle_weight_16x16"])
def test_find_names_the_packing_of_a_buffer(name, saved):
    data = RNG.integers(0, 256, (64, 64), np.uint8)
    first, second = saved(data, repack(data, 64, 128, "low_first", name, bits=4).reshape(-1))
    output = run("find", first, second, "--bits", 4).output
    assert f"{name}: " in output
    others = [line.split(":")[0] for line in output.splitlines() if not line.startswith("    ")][:-1]
    same = {other for other in others if PACKINGS[other].unit != PACKINGS[name].unit}
    assert not same
    assert f"{len(np.unique(data))} distinct values in 4096 units" in output


def test_find_of_raw_bytes_floats_and_a_buffer_that_no_layout_makes(tmp_path, saved):
    scales = RNG.permutation(256).astype(np.uint8).reshape(32, 8)
    (tmp_path / "a.bin").write_bytes(scales.tobytes())
    (tmp_path / "b.bin").write_bytes(LAYOUTS["rocm.gfx950_32x8"].from_linear(scales).tobytes())
    found = run("find", tmp_path / "a.bin", tmp_path / "b.bin", "--shape", "32x8")
    assert found.exit_code == 0
    assert "rocm.gfx950_32x8: m(16,2,*)" in found.output
    assert "    for hipBLASLt on gfx950" in found.output
    assert run("find", *saved(scales, scales[::-1])).exit_code == 1
    floats = RNG.standard_normal((2, 7, 5)).astype(np.float32)
    buffer = LAYOUTS["deepgemm.mn_major_fp32"].from_linear(floats.view(np.uint32)).view(np.float32)
    found = run("find", *saved(floats, buffer.reshape(-1)[:-1]))  # the owner does not allocate the last padding
    assert "deepgemm.mn_major_fp32" in found.output
    assert "; 1 units of padding are missing at the end" in found.output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("compare", "tiled", "linear"), "layout: unknown name 'tiled', need a registered one (tiled_8x4"),
        (("compare", "linear", "tiled_8x4", "--shape", "4"), "shape '4', need 2 numbers with x between them [NUM-4]"),
        (("compare", "linear", "aiter.gemm_gfx1250", "--shape", "4x4"), "need a multiple of 16 along m [LAY-43]"),
        (("compare", "linear", "low_first"), "linear with 2 axes of 8 bits, low_first with 2 of 4, need as many axes"),
        (("find", "{text}", "{text}"), "without --shape, need one for files other than .npy [LAY-7]"),
        (("find", "{npy}", "{npy}"), "not a .npy array ("),
        (("find", "{text}", "{text}", "--shape", "3x3"), "need 3x3 [NUM-4]"),
        (("find", "missing.npy", "{text}"), "missing.npy: No such file or directory"),
        (("find", "{wide}", "{wide}"), "int16 and int16, need two buffers of bytes, or two of units of 32 bits"),
    ],
)
def test_bad_input_is_one_line(arguments, message, tmp_path):
    (tmp_path / "a.txt").write_text("12345")
    (tmp_path / "a.npy").write_text("12345")
    np.save(tmp_path / "wide.npy", np.zeros((2, 2), np.int16))
    places = {"text": tmp_path / "a.txt", "npy": tmp_path / "a.npy", "wide": tmp_path / "wide.npy"}
    found = run(*(str(argument).format(**places) for argument in arguments))
    assert found.exit_code == 2
    assert message in found.output
    assert len(found.output.strip().splitlines()) == 1


def test_the_page_of_consumers_names_every_layout(tmp_path):
    script = Path(__file__).parents[1] / "docs/generate/field_layouts.py"
    subprocess.run([sys.executable, str(script), str(tmp_path / "page.md")], check=True)
    page = (tmp_path / "page.md").read_text("utf-8")
    scales, data = page.split("## Packed data")
    for name, origin in ORIGINS.items():
        row = f"| {origin.consumer} | `{name}` | "
        assert (row in scales) != (row in data)
        assert (row in data) == (name in PACKINGS or relayouts.named(name).unit == 1 or "weight" in name)
    assert "* `rocm.gfx950_32x8`, `aiter.shuffle_scale`, `aiter.gemm_gfx950`, `triton.cdna4_scale`\n" in page


@pytest.mark.rule("LAY-13", "LAY-16", "PACK-7")
@pytest.mark.parametrize("name", relayouts.every())
def test_where_finds_a_unit_and_what_it_holds(name):
    form = relayouts.named(name)
    sizes = tuple(axis.multiple + (0 if axis.refused else 1) for axis in form.axes)
    shape, last = "x".join(map(str, sizes)), [size - 1 for size in sizes]
    offset = int(form.offsets(last, sizes))
    found = run("where", name, ",".join(map(str, last)), "--shape", shape)
    assert found.exit_code == 0, found.output
    spoken = ", ".join(f"{axis.name} = {at}" for axis, at in zip(form.axes, last, strict=True))
    assert found.output.startswith(f"{name}, {spoken}: ")
    assert str(offset) in found.output.splitlines()[1].rpartition("= ")[2]
    back = run("where", name, "--offset", offset, "--shape", shape).output
    repeated = {axis for axis, _ in form.form.repeated}
    assert repeated or back == f"{name} unit {offset}: {spoken}\n"


TILES = "m(2,*) k(2,*): k0 m0 k1 m1; pad "


@pytest.mark.rule("LAY-5", "LAY-15", "LAY-37", "LAY-41", "LAY-42")
@pytest.mark.parametrize(
    ("text", "offset", "found"),  # one scale in four places: (0, 0), (0, 1), (1, 0), (1, 1)
    [
        ("tiled_8x4", 0, None),
        ("tiled_8x4", 1, ("padding", "LAY-5")),
        ("linear_padded", 1, ("padding", "LAY-37")),
        (TILES + "m 0x11", 3, ("padding", "LAY-15")),
        (TILES + "m unspecified", 2, ("padding", "LAY-37")),
        (TILES + "m unspecified", 1, ("padding", "LAY-15")),
        (TILES + "m unspecified", 3, ("padding", "LAY-37")),
        (TILES + "k unspecified", 3, ("padding", "LAY-15")),  # of both axes: the first one's
        (TILES + "k unspecified", 1, ("padding", "LAY-37")),
        ("ggml.mxfp4_scale", 1, ("a gap", "LAY-41")),
    ],
)
def test_a_unit_that_stores_nothing_has_the_rule_of_its_value(text, offset, found):
    form = fp4ref.LAYOUTS[text] if " " not in text else fp4ref.Layout("t", text)
    assert form.unused(offset, 1, 1) == found


@pytest.mark.rule("LAY-5", "LAY-16", "PACK-10")
@pytest.mark.parametrize(
    "arguments, said",
    [
        (("vllm.kv_v_scale", "1,0,5,3", "--shape", "2x4x16x8"), "t = 5, s = 3: byte 557\n"),
        (("vllm.marlin_fp4", "3,5", "--shape", "64x16"), "byte 226, low nibble\n"),
        (("six_low_first", "1,5", "--shape", "3x7"), "byte 9, from bit 6 on\n"),
        (("deepgemm.mn_major_fp32", "0,3,1", "--shape", "1x8x4"), "word 11\n"),
        (("tiled_128x4", "--offset", "9", "--shape", "3x3"), "unit 9: padding, at m = 64, k = 1 [LAY-5]"),
        (("linear_padded", "--offset", "11", "--shape", "3x3"), "unit 11: padding, at m = 2, k = 3 [LAY-37]"),
        (("cuda.tma_16u4_align16", "--offset", "20", "--shape", "3x32"), "a gap, which holds no unit"),
        (("tiled_128x4", "--offset", "512", "--shape", "3x3"), "offset 512, need offset < 512"),
        (("tiled_128x4", "3,3", "--shape", "3x3"), "m = 3, need m < 3"),
        (("tiled_128x4", "-1,3", "--shape", "3x3"), "No such option"),
        (("tiled_128x4", "3", "--shape", "3x3"), "index '3', need 2 numbers with commas between them"),
        (("tiled_128x4", "3,1", "--shape", "3"), "shape '3', need 2 numbers with x between them"),
        (("tiled_128x4", "--shape", "3x3"), "give INDEX, or --offset"),
        (("aiter.gemm_gfx950", "0,0", "--shape", "3x8"), "need a multiple of 32 along m [LAY-43]"),
    ],
)
def test_what_where_says(arguments, said):
    assert said in run("where", *arguments).output


@pytest.mark.rule("LAY-8", "LAY-22")
def test_starts_of_a_group_by_each_rule():
    found = run("starts", "tiled_128x4", "3x8", "130x8", "0x8", "128x8")
    assert found.output.splitlines()[1:] == [
        "  packed  0 1024 3072 3072; 4096 in all",
        "  bound   0 2048 4096 5120; 7168 in all",
        "  fixed   0 2048 4096 6144; 8192 in all",
    ]
    assert "bound   refused: cutlass.sf_mn_major" in run("starts", "cutlass.sf_mn_major", "3x8").output
    assert "with 4 axes, need two axes" in run("starts", "vllm.kv_v_scale", "3x8").output
    assert "shape '3', need 2 numbers" in run("starts", "linear", "3").output
