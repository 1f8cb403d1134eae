"""Examples of the chapter on conversions, acted out: what is written, refused, recoded and quantized."""

from __future__ import annotations

import json
import os
import re
import zlib
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from commands import convert, fp4
from fp4ref.checkpoints import CONVENTIONS, lint
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.compare import Sameness, compare
from fp4ref.checkpoints.gguf_names import ARCHITECTURES, RowOrder
from fp4ref.checkpoints.gguf_vocabulary import PRE_TOKENIZERS, vocabulary_of
from fp4ref.checkpoints.manifest import manifest_of_checkpoint, to_text
from fp4ref.checkpoints.transfer import planning, running, work
from fp4ref.checkpoints.transfer import request as requests
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.checkpoints.transfer.work import begin, remaining, write_part
from fp4ref.files import Entry, write_tensors
from fp4ref.standard import formulas
from gguf_models import mixture, of_type
from standard_rules import integers, rows_of, text_of

LAYER = "model.layers.0"
UP, Q = f"{LAYER}.mlp.up_proj", f"{LAYER}.self_attn.q_proj"
E4M3 = ml_dtypes.float8_e4m3fn


def words(cell):
    return re.findall("`(.*?)`", cell)


def number(cell):
    return float(formulas.value(cell))


def array(folder, name, dtype=np.uint8):
    tensor = open_checkpoint(folder).tensors[name]
    return np.frombuffer(tensor.bytes(), dtype).reshape(tensor.shape)


def files_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def bfloat16(folder, name):
    tensor = open_checkpoint(folder).tensors[name]
    return np.frombuffer(tensor.bytes(), ml_dtypes.bfloat16).reshape(tensor.shape)


# The value in the middle, and losses


@pytest.mark.rule("CNV-1")
@pytest.mark.example("CNV-1")
def test_one_weight_in_two_conventions(tmp_path):
    (cell, *bytes_of), (scales, linear, tiles) = rows_of("CNV-1")
    first, second = integers(cell)[:2]
    own, other = (int(each, 16) for each in bytes_of)
    assert (first | second << 4, second | first << 4) == (own, other)
    export = corpus.modelopt()
    export.array(f"{Q}.weight")[3, 5] = own
    assert [*export.array(f"{Q}.weight_scale").shape] == integers(scales)
    source = export.write(tmp_path / "source")
    convert(source, tmp_path / "comfy", "comfy")
    assert array(tmp_path / "comfy", f"{Q}.weight")[3, 5] == other
    moved = corpus.tiled(export.array(f"{Q}.weight_scale"))
    assert np.array_equal(array(tmp_path / "comfy", f"{Q}.weight_scale"), moved)
    assert (linear, tiles) == ("linear", "tiles of 128 x 4")


@pytest.mark.rule("CNV-4", "CNV-65", "CNV-67")
@pytest.mark.example("CNV-4")
def test_losses(tmp_path):
    (scale, family, said), (negative, target, count) = rows_of("CNV-4")
    assert (scale, family, said) == ("an input scale", "MLX", "no place for it")
    result = fp4("convert", corpus.modelopt().write(tmp_path / "a"), tmp_path / "out", "--to", family.lower())
    assert result.exit_code == 2
    assert "an input scale, for which mlx.nvfp4 has no place" in result.stderr
    assert (negative, count) == ("a negative E4M3 scale byte", "the number of such bytes")
    assert target == "GGUF NVFP4, whose reader ignores the sign"
    export = corpus.CLEAN["torchao-nvfp4"]()
    export.array(f"{UP}._weight_scale")[3, 2:4] |= 0x80
    result = fp4("convert", export.write(tmp_path / "b"), tmp_path / "out", "--to", "gguf")
    assert result.exit_code == 2
    assert "2 scale bytes" in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.rule("CNV-5")
@pytest.mark.example("CNV-5")
def test_padding_of_shapes(tmp_path):
    ((weight, stored, byte),) = rows_of("CNV-5")
    rows, columns = integers(weight)
    first, last = integers(re.search(r"rows (\d+ to \d+)", text_of("CNV-5").partition("|")[2])[1])
    values = np.random.default_rng(3).standard_normal((rows, columns)).astype(np.float32)
    (tmp_path / "in").mkdir()
    write_tensors(tmp_path / "in/model.safetensors", [Entry("w.weight", "F32", values.shape)], {}, [values])
    assert fp4("quantize", tmp_path / "in", "-o", tmp_path / "q", "--to", "comfy", "--spec", "nvfp4").exit_code == 0
    found = array(tmp_path / "q", "w.weight")
    assert [found.shape[0], 2 * found.shape[1]] == integers(stored)
    assert (first, last) == (rows, integers(stored)[0] - 1)
    assert not found[first:].any()
    assert not found[:, columns // 2 :].any()
    tiles = array(tmp_path / "q", "w.weight_scale")
    plain = fp4ref.layout.TILED_128X4.to_linear(np.ascontiguousarray(tiles), integers(stored)[0], 7)
    assert {*plain[first : last + 1].ravel().tolist()} == {int(byte, 16)}
    assert plain[:rows].any(axis=1).all()


# The target


@pytest.mark.rule("CNV-7", "CNV-28")
@pytest.mark.example("CNV-7", "CNV-28")
def test_shards(tmp_path):
    """Sizes of the rules in units of a thousand bytes for a GB."""
    ((cell, said),) = rows_of("CNV-7")
    *sizes, most = integers(cell)
    assert integers(said)[-1] == sum(sizes) > most
    rng = np.random.default_rng(1)
    names = words(cell)
    matrices = {
        name: rng.standard_normal((16 * size, 64)).astype(np.float32) for name, size in zip(names, sizes, strict=True)
    }
    (tmp_path / "in").mkdir()
    entries = [Entry(f"m.self_attn.{name}.weight", "F32", each.shape) for name, each in matrices.items()]
    write_tensors(tmp_path / "in/model.safetensors", entries, {}, [*matrices.values()])
    unit = 16 * 64 * 9 // 16  # bytes of codes and scales
    convert(
        tmp_path / "in",
        tmp_path / "out",
        "modelopt",
        specs=[("*", fp4ref.NVFP4)],
        requantize=False,
        shard_bytes=most * unit,
    )
    homes = {each.shard.name for name, each in open_checkpoint(tmp_path / "out").tensors.items()}
    assert len(homes) == 1
    data, scales = corpus.quantized(rng.standard_normal((64, 64)).astype(np.float32), "modelopt.nvfp4")
    unit = data.nbytes + scales.nbytes + 8  # of a weight with both its numbers
    for count, (cell, limit, said) in enumerate(rows_of("CNV-28")):
        export, index = corpus.modelopt(), {}
        folder = tmp_path / f"source{count}"
        folder.mkdir()
        for shard, size in enumerate(integers(cell)):
            tensors = {}
            for part in range(size):
                name = f"m.{shard}{part}.up_proj"
                tensors |= {f"{name}.weight": ("U8", data), f"{name}.weight_scale": ("F8_E4M3", scales)}
                tensors |= {f"{name}.{each}": ("F32", np.float32(0.01)) for each in ("weight_scale_2", "input_scale")}
            path = folder / f"model-{shard + 1:05}-of-00002.safetensors"
            path.write_bytes(corpus.safetensors_bytes(tensors, {}))
            index |= dict.fromkeys(tensors, path.name)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
        record = {"quantization_config": export.config["quantization_config"]}
        (folder / "config.json").write_text(json.dumps(record))
        convert(folder, tmp_path / f"target{count}", "compressed-tensors", shard_bytes=integers(limit)[0] * unit)
        written = [*(tmp_path / f"target{count}").glob("*.safetensors")]
        assert len(written) == {"two": 2, "four, if tensors can be dealt so": 4}[said]


@pytest.mark.rule("CNV-29", "CNV-60", "CNV-31", "CNV-9")
@pytest.mark.example("CNV-29", "CNV-31")
def test_targets_that_are_refused(tmp_path):
    source = corpus.modelopt().write(tmp_path / "source")
    before = files_of(source)
    (tmp_path / "exists").mkdir()
    for cell, outcome in rows_of("CNV-29"):
        target = tmp_path / (words(cell)[0] if words(cell) else cell)
        result = fp4("convert", source, target, "--to", "torchao")
        assert (result.exit_code, outcome) == (2, "refused")
        assert "it exists" in result.stderr or "inside the source" in result.stderr
        assert files_of(source) == before
    (first, refused), (_, also) = rows_of("CNV-31")
    assert (refused, also) == ("refused", "refused")
    one, other = (each.split()[1] for each in words(first))
    begin = ("convert", source, tmp_path / "out", "--rank", "0", "--world", "2", "--lossy")
    assert fp4(*begin, "--to", one).exit_code == 0
    result = fp4(*begin, "--to", other)
    assert result.exit_code == 2
    shard = source / "model-00002-of-00002.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    result = fp4("convert", source, tmp_path / "out", "--rank", "1", "--world", "2", "--lossy", "--to", one)
    assert result.exit_code == 2


@pytest.mark.rule("CNV-30")
@pytest.mark.example("CNV-30")
def test_checksums_of_a_manifest(tmp_path):
    ((cell, wanted),) = rows_of("CNV-30")
    data = bytes.fromhex(cell.partition("bytes ")[2])
    export = corpus.modelopt()
    export.put(f"{LAYER}.mlp.gate_proj.weight_scale_2", "F32", np.frombuffer(data, np.float32)[0])
    export.put(f"{UP}.weight_scale_2", "F32", np.frombuffer(data, np.float32)[0])
    convert(export.write(tmp_path / "source"), tmp_path / "out", "comfy")
    manifest = json.loads((tmp_path / "out" / "fp4ref_manifest.json").read_text())
    sums = {name: text for found in manifest["tensors"].values() for name, text in found.items()}
    assert sums[f"{UP}.weight_scale_2"] == f"crc32:{int(words(wanted)[0], 16):08x}" == f"crc32:{zlib.crc32(data):08x}"
    for name in manifest["tensors"]:
        assert manifest["files"][name]["size"] == (tmp_path / "out" / name).stat().st_size


@pytest.mark.rule("CNV-14", "CNV-34")
@pytest.mark.example("CNV-14", "CNV-34")
def test_declared_and_named(tmp_path):
    ((cell, said),) = rows_of("CNV-14")
    quantized, kept = words(cell)
    convert(corpus.compressed().write(tmp_path / "source"), tmp_path / "modelopt", "modelopt")
    inner = json.loads((tmp_path / "modelopt/hf_quant_config.json").read_text())["quantization"]
    algorithm, size, excluded = re.fullmatch(r"(\w+) with blocks of (\d+), `(.*)` excluded", said).groups()
    assert (inner["quant_algo"], inner["group_size"]) == (algorithm, int(size))
    assert excluded == kept
    assert excluded in inner["exclude_modules"]
    assert not any(quantized in each for each in inner["exclude_modules"])
    ((cell, own, other),) = rows_of("CNV-34")
    assert cell == "global scale"
    for folder, text in ((tmp_path / "modelopt", own), (tmp_path / "source", other)):
        name, size = re.match(r"`(\w+)` (\[.*?\])", text).groups()
        assert [*open_checkpoint(folder).tensors[f"{UP}.{name}"].shape] == integers(size)


# GGUF for llama.cpp


def gguf_of(export, folder, **settings):
    manifest = convert(export.write(folder / "source"), folder / "gguf", "gguf", **settings)
    return open_checkpoint(folder / "gguf"), manifest


@pytest.mark.rule("CNV-37", "CNV-38", "CNV-63")
@pytest.mark.example("CNV-37", "CNV-38", "CNV-63")
def test_numbers_of_a_gguf(tmp_path):
    ((cell, scales),) = rows_of("CNV-37")
    name = words(re.search(r"\| experts \| (`.*?`) \|", text_of("CNV-37"))[1])[0]
    count, *given = integers(cell)
    export = mixture()
    assert count == corpus.EXPERTS
    for expert, value in enumerate(given):
        for member in ("gate_proj", "up_proj"):
            export.put(f"{LAYER}.mlp.experts.{expert}.{member}.weight_scale_2", "F32", float(value))
    (norm, written) = rows_of("CNV-38")[0]
    hub, dtype = re.fullmatch(r"`(\S+)`, (\w+)", norm).groups()
    assert export.tensors[hub][0] == dtype
    found, _ = gguf_of(export, tmp_path)
    assert np.frombuffer(found.tensors[name].bytes(), np.float32).tolist() == [float(each) for each in integers(scales)]
    assert found.tensors["output_norm.weight"].dtype == written
    (first, kept), (second, none) = rows_of("CNV-63")
    types = json.loads(found.metadata["fp4ref.dtypes"])
    assert json.loads(words(kept)[0]).items() <= types.items()
    assert (re.fullmatch(r"`(\S+)`, (\w+)", first).groups(), none) == ((hub, dtype), "does not name it")
    wide = mixture()
    values = wide.array(hub).astype(np.uint32) << 16
    wide.put(hub, re.fullmatch(r"`(\S+)`, (\w+)", second)[2], values.view(np.float32))
    found, _ = gguf_of(wide, tmp_path / "wide")
    assert "output_norm.weight" not in json.loads(found.metadata["fp4ref.dtypes"])


@pytest.mark.rule("CNV-39", "CNV-42")
@pytest.mark.example("CNV-39", "CNV-42")
def test_files_and_names_of_a_gguf(tmp_path):
    found, _ = gguf_of(of_type("modelopt-nvfp4", "llama"), tmp_path, shard_bytes=200_000)
    paths = sorted((tmp_path / "gguf").glob("*.gguf"))
    ((cell, place, count),) = rows_of("CNV-39")
    assert cell == "the second of three"
    keys = [words(each)[0] for each in re.findall(r"\| (`split.*?`) ", text_of("CNV-39"))]
    assert keys == ["split.no", "split.count"]
    assert len(paths) > 1
    metas = [open_checkpoint(path).metadata for path in paths]
    assert [int(meta["split.no"]) for meta in metas] == [*range(len(paths))]
    assert {int(meta["split.count"]) for meta in metas} == {len(paths)}
    assert {int(meta["split.tensors.count"]) for meta in metas} == {len(found.tensors)}
    assert (int(place), int(count)) == (2 - 1, 3)
    ((stored, read),) = rows_of("CNV-42")
    assert words(stored)[0] in found.tensors
    convert(tmp_path / "gguf", tmp_path / "back", "modelopt")
    name = words(read)[0]
    assert np.array_equal(array(tmp_path / "back", name), array(tmp_path / "source", name))


@pytest.mark.rule("CNV-40", "CNV-41")
@pytest.mark.example("CNV-40", "CNV-41")
def test_models_that_llama_cpp_lacks(tmp_path):
    (first, same), (second, also) = rows_of("CNV-40")
    assert same == also == "the source's"
    router = mixture()
    router.config["norm_topk_prob"] = False
    assert words(second) == ["qwen3_moe", "norm_topk_prob"]
    for count, export in enumerate((of_type("modelopt-nvfp4", words(first)[1]), router)):
        source = export.write(tmp_path / f"{count}" / "source")
        found, manifest = gguf_of(export, tmp_path / f"{count}")
        weights = {name for name in open_checkpoint(source).tensors if name.endswith(".weight")}
        assert weights <= {*found.tensors}
        assert any("llama.cpp" in remark for remark in manifest["remarks"])
    (unnamed, refused), (missing, also) = rows_of("CNV-41")
    assert refused == also == "refused"
    export = of_type("modelopt-nvfp4", words(unnamed)[1])
    export.put(words(unnamed)[0], "BF16", np.zeros((32, 32)))
    with pytest.raises(ValueError, match="adapter.weight, for which llama.cpp's llama has no name"):
        gguf_of(export, tmp_path / "unnamed")
    expert, count = integers(missing)
    assert count == corpus.EXPERTS
    export = mixture()
    for suffix in ("weight", "weight_scale", "weight_scale_2", "input_scale"):
        export.drop(f"{LAYER}.mlp.experts.{expert}.up_proj.{suffix}")
    with pytest.raises(ValueError, match=f"without expert {expert}"):
        gguf_of(export, tmp_path / "missing")


def tokenizer(vocab, merges, **more):
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    return {
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": {"type": "ByteLevel"},
        **more,
    }


@pytest.mark.rule("CNV-43", "CNV-44", "CNV-46")
@pytest.mark.example("CNV-43", "CNV-44", "CNV-46")
def test_vocabularies(tmp_path):
    ((size, cell, token),) = rows_of("CNV-43")
    first, last = integers(cell)
    at = int(re.search(r"\| token (\d+) \|", text_of("CNV-43"))[1])
    vocab = {letter: place for place, letter in enumerate("abcdefgh"[first : last + 1])}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer(vocab, [])))
    found = vocabulary_of(tmp_path, {"vocab_size": int(size)})
    assert len(found.tokens) == int(size)
    assert found.tokens[at] == words(token)[0]
    assert found.types[at] == int(re.search(r"of type (\d)", text_of("CNV-43"))[1])
    assert found.remarks == []
    assert rows_of("CNV-46") == [["brings texts into the normal form NFC", "says so"]]
    nfc = tokenizer(vocab, [], normalizer={"type": "NFC"})
    (tmp_path / "tokenizer.json").write_text(json.dumps(nfc))
    assert any("NFC" in remark for remark in vocabulary_of(tmp_path, {"vocab_size": int(size)}).remarks)
    ((merges, said),) = rows_of("CNV-44")
    assert said == "the first is the larger"
    one, other = words(re.search(r"scores of (`\w+`, `\w+`)", text_of("CNV-44"))[1])
    pieces = {"<unk>": 0, "a": 1, "b": 2, "c": 3, one: 4, other: 5}
    made = tokenizer(pieces, words(merges))
    made["model"] |= {"unk_token": "<unk>", "byte_fallback": True}
    made |= {"pre_tokenizer": None, "post_processor": None}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}
    made["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "\u2581"}, replace]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(made))
    found = vocabulary_of(tmp_path, {"vocab_size": len(pieces)})
    assert not isinstance(found, str), found
    assert found.scores[4] > found.scores[5]
    assert [found.scores[4], found.scores[5]] == [0, -1]


# Recoding


MAGNITUDES = [0, 1, 2, 3, 4, 5, 6, 7]


def mxfp4_of(folder, rows, names=("m.down_proj",), config=None):
    """A checkpoint of compressed-tensors MXFP4: of each name, rows of 32 elements with all magnitudes and 2^k."""
    folder.mkdir()
    entries, arrays = [], []
    for name, exponents in zip(names, rows, strict=True):
        codes = np.resize(np.uint8(MAGNITUDES), (len(exponents), 32))
        entries += [
            Entry(f"{name}.weight_packed", "U8", (len(exponents), 16)),
            Entry(f"{name}.weight_scale", "U8", (len(exponents), 1)),
        ]
        arrays += [codes[:, ::2] | codes[:, 1::2] << 4, np.uint8([[127 + k] for k in exponents])]
    write_tensors(folder / "model.safetensors", entries, {}, arrays)
    group = {"weights": {"num_bits": 4, "type": "float", "group_size": 32, "strategy": "group"}}
    group |= {"targets": ["Linear"], "format": "mxfp4-pack-quantized"}
    record = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": []}
    text = {"quantization_config": {**record, "format": group["format"]}}
    (folder / "config.json").write_text(json.dumps(text))
    return folder


def exponents_of(cell):
    return [int(each) for each in re.findall(r"2\^(-?\d+)", cell)]


@pytest.mark.rule("CNV-21", "CNV-51", "CNV-50", "CNV-23")
@pytest.mark.example("CNV-21", "CNV-51", "CNV-50", "CNV-23")
def test_exact_casts(tmp_path):
    options = words(re.search(r"\| (`--to modelopt .*?`) \|", text_of("CNV-21"))[1])[0].split()
    ((cell, said),) = rows_of("CNV-21")
    source = mxfp4_of(tmp_path / "exact", [exponents_of(cell)])
    assert fp4("convert", source, tmp_path / "nvfp4", *options).exit_code == 0
    low, high, factor = re.search(r"scale bytes (\w\w) and (\w\w), global scale (\S+)", said).groups()
    scales = array(tmp_path / "nvfp4", "m.down_proj.weight_scale")
    assert [f"{byte:02X}" for byte in scales[:, 0]] == [low, high]
    assert array(tmp_path / "nvfp4", "m.down_proj.weight_scale_2", np.float32) == number(factor)
    assert np.array_equal(array(tmp_path / "nvfp4", "m.down_proj.weight"), array(source, "m.down_proj.weight_packed"))
    ((cell, said),) = rows_of("CNV-51")
    source = mxfp4_of(tmp_path / "other", [exponents_of(cell)])
    result = fp4("convert", source, tmp_path / "refused", *options)
    assert said == "refused, with the number of values that move and the first block without a scale"
    assert result.exit_code == 2
    assert re.search(r"\d+ of \d+ decoded values differ.*not exact: row 1, column 0", result.stderr)
    names = words(re.search(r"scales of (`\w+`, `\w+`), all", text_of("CNV-50"))[1])
    for count, (cell, said) in enumerate(rows_of("CNV-50")):
        exponents = [[each] for each in exponents_of(cell)]
        source = mxfp4_of(tmp_path / f"set{count}", exponents, [f"m.self_attn.{name}" for name in names])
        result = fp4("convert", source, tmp_path / f"fused{count}", "--to", "modelopt", "--spec", "nvfp4")
        assert (result.exit_code == 0) == said.startswith("both recoded"), result.output
        if result.exit_code == 0:
            factor = number(said.rpartition(" ")[2])
            for name in names:
                stored = array(tmp_path / f"fused{count}", f"m.self_attn.{name}.weight_scale_2", np.float32)
                assert stored == factor
    options = words(re.search(r"\| (`--to deepseek .*?`) \|", text_of("CNV-23"))[1])[0].split()
    for count, (cell, said) in enumerate(rows_of("CNV-23")):
        source = mxfp4_of(tmp_path / f"square{count}", [exponents_of(cell)])
        lossy = [] if count == 0 else ["--lossy"]
        result = fp4("convert", source, tmp_path / f"fp8{count}", *options, *lossy)
        assert (result.exit_code == 2) == (said == "refused"), result.output
        if result.exit_code == 0:
            stored = array(tmp_path / f"fp8{count}", "m.down_proj.weight_scale_inv", np.float32)
            assert stored.ravel().tolist() == [number(said.rpartition(" ")[2])]


@pytest.mark.rule("CNV-53", "CNV-49", "CNV-57")
@pytest.mark.example("CNV-53", "CNV-49", "CNV-57")
def test_zeros_and_second_quantizations(tmp_path):
    ((cell, said),) = rows_of("CNV-53")
    scale, code = said.split(", ")
    folder = tmp_path / "zeros"
    folder.mkdir()
    codes, scales = np.zeros((128, 4, 16), np.uint8), np.full((128, 4), 120, np.uint8)
    entries = [
        Entry("m.down_proj_blocks", "U8", (1, *codes.shape)),
        Entry("m.down_proj_scales", "U8", (1, *scales.shape)),
    ]
    write_tensors(folder / "model.safetensors", entries, {}, [codes[None], scales[None]])
    result = fp4("convert", folder, tmp_path / "fp8", "--to", "deepseek", "--spec", "block-fp8")
    assert result.exit_code == 0, result.output
    assert cell == "zeros"
    assert array(tmp_path / "fp8", "m.down_proj.weight_scale_inv", np.float32).ravel().tolist() == [float(scale)]
    assert {*array(tmp_path / "fp8", "m.down_proj.weight").ravel().tolist()} == {int(code, 16)}
    name = words(re.search(r"\| block of (`\w+`) \|", text_of("CNV-49"))[1])[0]
    (four, nothing), (three, moves) = rows_of("CNV-49")
    for cell, said in ((four, nothing), (three, moves)):
        top = integers(cell)[0]
        byte = int(re.search(r"byte (\w\w)", cell)[1], 16) if "byte" in cell else 127
        folder = tmp_path / f"top{top}"
        folder.mkdir()
        code = [0, 0.5, 1, 1.5, 2, 3, 4, 6].index(top)
        packed = np.full((1, 16), code | code << 4, np.uint8)
        entries = [Entry("w.weight_packed", "U8", (1, 16)), Entry("w.weight_scale", "U8", (1, 1))]
        write_tensors(folder / "model.safetensors", entries, {}, [packed, np.uint8([[byte]])])
        result = fp4("lossless", folder, "--to", name, "--json")
        (row,) = json.loads(result.stdout)["weights"]
        assert (row["moved"], row["rescaled"]) == {"nothing": (0, 0)}.get(said, (0, 1)), said
    assert moves == "the scale, not the values (THM-1)"
    ((spec, amax),) = rows_of("CNV-57")
    (tmp_path / "in").mkdir()
    zeros = np.zeros((16, 32), np.float32)
    write_tensors(tmp_path / "in/model.safetensors", [Entry("w.weight", "F32", zeros.shape)], {}, [zeros])
    result = fp4("quantize", tmp_path / "in", "-o", tmp_path / "q", "--to", "modelopt", "--spec", words(spec)[0])
    assert result.exit_code == 0, result.output
    assert array(tmp_path / "q", "w.weight_scale_2", np.float32) * 2688 == float(amax)


# Repairs and quantization


@pytest.mark.rule("CNV-11", "CNV-12")
@pytest.mark.example("CNV-11", "CNV-12")
def test_repairs(tmp_path):
    codes = [words(code)[0] for code, _ in rows_of("CNV-11")]
    assert codes == ["nibble-order", "scale-layout", "scale-nan", "orphan-tensor"]
    right = corpus.modelopt()

    def turned(export):
        for name in [name for name, (kind, _) in export.tensors.items() if kind == "U8" and name.endswith(".weight")]:
            data = export.array(name)
            export.put(name, "U8", data >> 4 | data << 4)

    def tiled(export):
        for name in [name for name in export.tensors if name.endswith(".weight_scale")]:
            if export.array(name).shape[0] % 128 == 0:
                export.put(name, "F8_E4M3", corpus.tiled(export.array(name)))

    def orphan(export):
        export.put(f"{UP}.weight_quantizer._amax", "F32", 1.0)

    for code, change in (("nibble-order", turned), ("scale-layout", tiled), ("orphan-tensor", orphan)):
        export = corpus.modelopt()
        change(export)
        source = export.write(tmp_path / code)
        assert {each.code for each in lint(source).findings} == {code}
        convert(source, tmp_path / f"{code}-mended", repairs=[code])
        found = open_checkpoint(tmp_path / f"{code}-mended").tensors
        assert {name: each.bytes() for name, each in found.items()} == {
            name: data.tobytes() for name, (_, data) in right.tensors.items()
        }, code
    ((cell, largest),) = rows_of("CNV-12")
    export = corpus.modelopt()
    names = [f"{LAYER}.self_attn.{name}_proj" for name in "qkv"]
    for name, value in zip(names, integers(cell), strict=True):
        export.put(f"{name}.weight_scale_2", "F32", value * 2.0**-10)
    convert(export.write(tmp_path / "fused"), tmp_path / "one", repairs=["fused-global-scale"])
    for name in names:
        assert array(tmp_path / "one", f"{name}.weight_scale_2", np.float32) == int(largest) * 2.0**-10


@pytest.mark.rule("CNV-13", "CNV-56")
@pytest.mark.example("CNV-13", "CNV-56")
def test_quantizing(tmp_path):
    ((cell, used),) = rows_of("CNV-13")
    names = words(re.search(r"amaxes of (.*?) \|", text_of("CNV-13"))[1])
    export = corpus.source()
    for name, amax in zip(names, integers(cell), strict=True):
        values = export.array(f"{LAYER}.self_attn.{name}.weight")
        small = (values.view(ml_dtypes.bfloat16).astype(np.float32) * 1e-3).astype(np.float32)
        small[0, 0] = amax
        export.put(f"{LAYER}.self_attn.{name}.weight", "BF16", corpus.bf16(small))
    source = export.write(tmp_path / "source")
    options = ("--to", "modelopt", "--spec", "nvfp4")
    assert fp4("quantize", source, "-o", tmp_path / "q", *options).exit_code == 0
    for name in names:
        stored = array(tmp_path / "q", f"{LAYER}.self_attn.{name}.weight_scale_2", np.float32)
        assert stored == np.float32(int(used)) / np.float32(2688)
        expected = fp4ref.quantize(bfloat16(source, f"{LAYER}.self_attn.{name}.weight"), "nvfp4", amax=int(used))
        assert np.array_equal(array(tmp_path / "q", f"{LAYER}.self_attn.{name}.weight"), expected.row.data)
    (plain, bad, refused), (others, any_, also) = rows_of("CNV-56")
    assert (bad, any_, refused, also) == ("one NaN", "any", "refused", "refused")
    export = corpus.source()
    export.array(f"{UP}.weight")[0, 0] = 0x7FC0
    nan = export.write(tmp_path / "nan")
    for spec, given in ((words(plain)[0], nan), *((each, source) for each in words(others))):
        result = fp4("quantize", given, "-o", tmp_path / "none", "--to", "modelopt", "--spec", spec)
        assert result.exit_code == 2
        assert not (tmp_path / "none").exists()


@pytest.mark.rule("CNV-24", "CNV-58")
@pytest.mark.example("CNV-24", "CNV-58")
def test_experts_in_one_tensor(tmp_path):
    rng = np.random.default_rng(7)
    for count, (cell, sizes, axis, said) in enumerate(rows_of("CNV-24")):
        shape = integers(re.search(r"\[.*?\]", cell)[0])
        hidden, inter = integers(sizes)
        values = rng.standard_normal(shape).astype(np.float32)
        values = values.astype(ml_dtypes.bfloat16).astype(np.float32)
        assert shape[int(axis)] == hidden
        first = values[0].T if int(axis) == 1 else values[0]  # rows of the first expert
        rows = first[0::2] if said.startswith("columns 0, 2, 4") else first[: integers(said)[1] + 1]
        assert said.endswith("transposed") == (int(axis) == 1)
        config = {"hidden_size": hidden, "intermediate_size": inter, "num_local_experts": shape[0]}
        config["model_type"] = "gpt_oss" if "gpt_oss" in cell else "llama"
        export = corpus.Export(config=config, shards=1)
        export.put("model.layers.0.mlp.experts.gate_up_proj", "BF16", corpus.bf16(values))
        source = export.write(tmp_path / f"{count}")
        options = ("--to", "modelopt", "--spec", "mxfp8-e4m3", "--include", "*experts*")
        result = fp4("quantize", source, "-o", tmp_path / f"q{count}", *options)
        assert result.exit_code == 0, result.output
        expected = fp4ref.quantize(rows, "mxfp8-e4m3", backend="numpy").row
        stored = array(tmp_path / f"q{count}", "model.layers.0.mlp.experts.0.gate_proj.weight")
        assert np.array_equal(stored, expected.data)
        if "gpt_oss" in cell:
            (own, names), (other, listed) = rows_of("CNV-58")
            found = open_checkpoint(tmp_path / f"q{count}").tensors
            assert other == "`modelopt.nvfp4`"
            assert all(f"model.layers.0.mlp.{name}" in found for name in words(listed))
            options = ("--to", words(own)[0], "--spec", "mxfp4", "--include", "*experts*")
            result = fp4("quantize", source, "-o", tmp_path / "whole", *options)
            assert result.exit_code == 0, result.output
            found = open_checkpoint(tmp_path / "whole").tensors
            assert {*found} == {f"model.layers.0.mlp.{name}" for name in words(names)}


# Runs, manifests and comparisons


@pytest.mark.rule("CNV-8", "CNV-9", "CNV-60")
@pytest.mark.example("CNV-8", "CNV-9", "CNV-60")
def test_runs(tmp_path):
    ((cell, said),) = rows_of("CNV-9")
    count = integers(re.search(r"finished of (\d+) shards", text_of("CNV-9"))[1])[0]
    finished = integers(cell)
    export = corpus.modelopt()
    export.shards = count
    source = export.write(tmp_path / "source")
    before = files_of(source)
    request = request_to_convert(source, tmp_path / "out", to="torchao")
    partial, plan = begin(request)
    assert len(plan.shards) == count
    for shard in finished:
        write_part(str(partial), shard - 1)
    assert rows_of("CNV-8") == [
        ["before the last shard is written", "none"],
        ["after the manifest is written", "the whole directory"],
    ]
    assert not (tmp_path / "out").exists()
    assert [each + 1 for each in remaining(partial, plan)] == integers(said)
    times = {path.name: path.stat().st_mtime_ns for path in partial.glob("*.safetensors")}
    assert run(request) is not None
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {each.name for each in plan.shards}
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in times} == times
    assert rows_of("CNV-60") == [["succeeds, fails or is interrupted", "the bytes of before"]]
    assert files_of(source) == before


@pytest.mark.rule("CNV-10", "CNV-32", "CNV-33")
@pytest.mark.example("CNV-10", "CNV-32", "CNV-33")
def test_sources_that_change(tmp_path, monkeypatch):
    source = corpus.modelopt().write(tmp_path / "source")
    before = files_of(source)
    shard = int(re.search(r"while shard (\d+) is written", text_of("CNV-10"))[1])
    partial, plan = begin(request_to_convert(source, tmp_path / "other", to="torchao"))
    path = next(source.glob(f"*0000{shard}-of*.safetensors"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    error = rows_of("CNV-10")[0][1].removeprefix("an error: the file ")
    with pytest.raises(ValueError, match=error):
        write_part(str(partial), shard - 1)
    path.write_bytes(before[path.name])
    size = integers(re.search(r"first (\d+) KiB", text_of("CNV-32"))[1])[0] << 10
    at = int(re.search(r"another byte (\d+) \|", text_of("CNV-32"))[1])
    assert size == requests.HEAD
    assert at < size
    state = path.stat()
    partial, plan = begin(request_to_convert(source, tmp_path / "third", to="torchao"))
    data = bytearray(before[path.name])
    data[at] ^= 1  # of a name in the header, or of spaces behind it
    path.write_bytes(data)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    with pytest.raises(ValueError, match="changed while it was read|header"):
        write_part(str(partial), shard - 1)
    path.write_bytes(before[path.name])
    partial, plan = begin(request_to_convert(source, tmp_path / "fourth", to="torchao"))
    stored = open_checkpoint(source).tensors
    monkeypatch.setattr(work, "require_state", lambda *request: None)  # as if the file system showed the old ones
    changed = []

    def step(name, number):
        if name in stored and not changed:
            changed.append(name)
            with stored[name].shard.path.open("r+b") as file:
                file.seek(stored[name].start)
                file.write(bytes([stored[name].bytes(0, 1)[0] ^ 1]))

    assert rows_of("CNV-33")[0][1] == "an error; the shard is written by the next run"
    with pytest.raises(ValueError, match="changed while it was read"):
        write_part(str(partial), 0, step)
    assert changed
    assert 0 in remaining(partial, plan)


@pytest.mark.rule("CNV-15")
@pytest.mark.example("CNV-15")
def test_the_same_bytes_of_ranks_and_workers(tmp_path):
    ((cell, said),) = rows_of("CNV-15")
    assert said == "the same"
    one, many = (each.split() for each in words(cell)[:2])
    source, common = corpus.modelopt().write(tmp_path / "source"), ("--to", "torchao", "--lossy")
    for name, more in (("one", one), ("many", many)):
        assert fp4("convert", source, tmp_path / name, *common, *more).exit_code == 0
    assert cell.endswith("two ranks and `fp4ref merge`")
    for rank in range(2):
        done = fp4("convert", source, tmp_path / "ranks", *common, "--rank", rank, "--world", 2)
        assert done.exit_code == 0, done.output
    assert fp4(words(cell)[-1].split()[1], tmp_path / "ranks").exit_code == 0
    shards = [
        {name: data for name, data in files_of(tmp_path / each).items() if name.endswith(".safetensors")}
        for each in ("one", "many", "ranks")
    ]
    assert shards[0] == shards[1] == shards[2]


@pytest.mark.rule("CNV-16", "CNV-59")
@pytest.mark.example("CNV-16", "CNV-59")
def test_manifests_and_comparisons(tmp_path):
    most = integers(re.search(r"less than (\d+) bytes beside", text_of("CNV-59"))[1])[0]
    ((cell, said),) = rows_of("CNV-59")
    count, length = integers(cell)
    assert integers(said) == [count * (most + length)]
    source = corpus.modelopt().write(tmp_path / "source")
    text = to_text(manifest_of_checkpoint(source))
    entries = [line.rstrip(",") for line in text.splitlines()[1:-1]]
    assert all(len(line) - len(line.partition(": ")[0]) < most for line in entries)
    (_, same), (factors, multiplier), (cache, shape), (names, of_hub) = rows_of("CNV-16")
    assert same == "the same"
    convert(source, tmp_path / "gguf", "gguf")
    assert manifest_of_checkpoint(tmp_path / "gguf") == manifest_of_checkpoint(source)
    as_multiplier, as_divisor = (number(each) for each in re.findall(r"[\d.]+", factors))
    assert as_multiplier == 1 / as_divisor
    assert multiplier == "the same multiplier"
    export = corpus.modelopt()
    export.put(f"{UP}.weight_scale_2", "F32", as_multiplier)
    export.put(f"{LAYER}.mlp.gate_proj.weight_scale_2", "F32", as_multiplier)
    export.write(tmp_path / "two")
    convert(tmp_path / "two", tmp_path / "half", "compressed-tensors")
    assert array(tmp_path / "half", f"{UP}.weight_global_scale", np.float32) == as_divisor
    found = [manifest_of_checkpoint(tmp_path / each) for each in ("two", "half")]
    assert found[0][f"{UP}.weight"] == found[1][f"{UP}.weight"]
    assert cache == "a scale of the KV cache of shape [] and of shape [1]"
    assert shape == "the same, of shape []"
    convert(corpus.modelopt(kv=True).write(tmp_path / "kv"), tmp_path / "kv1", "compressed-tensors")
    found = [manifest_of_checkpoint(tmp_path / each) for each in ("kv", "kv1")]
    assert found[0] == found[1]
    assert words(of_hub) == ["q_proj", "k_proj", "v_proj"]
    assert words(names) == ["attn.qkv"]
    sizes = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16}
    rows = [16 * heads for heads in (4, 2, 2)]
    parts = [np.full((high, 64), value, np.float32) for value, high in enumerate(rows)]
    ours, hub = corpus.Export(config=sizes), corpus.Export(config={"quantization_config": {"quant_method": "mxfp4"}})
    for number_, part in ((1, "gate_up_proj"), (2, "down_proj")):
        for kind, shape in (("blocks", (2, 64, 2, 16)), ("scales", (2, 64, 2))):
            ours.put(f"block.0.mlp.mlp{number_}_weight.{kind}", "U8", np.full(shape, 100 + number_))
            hub.put(f"{LAYER}.mlp.experts.{part}_{kind}", "U8", np.full(shape, 100 + number_))
    ours.put(f"block.0.{words(names)[0]}.weight", "F32", np.concatenate(parts))
    for name, part in zip(words(of_hub), parts, strict=True):
        hub.put(f"{LAYER}.self_attn.{name}.weight", "F32", part)
    found = [manifest_of_checkpoint(each.write(tmp_path / f"openai{count}")) for count, each in enumerate((ours, hub))]
    assert found[0] == found[1]


@pytest.mark.rule("CNV-17")
@pytest.mark.example("CNV-17")
def test_values_that_are_the_same(tmp_path):
    (zeros, same), (doubled, other), (recoded, form) = rows_of("CNV-17")
    assert (zeros, same) == ("-0 for 0; another scale for a block of zeros", "the same values")
    folders = []
    for count, (scale, code) in enumerate(((0x38, 0x00), (0x08, 0x88))):
        export = corpus.modelopt()
        export.array(f"{UP}.weight")[2, :8] = code
        export.array(f"{UP}.weight_scale")[2, 0] = scale
        folders.append(export.write(tmp_path / f"zeros{count}"))
    (difference,) = compare(*map(manifest_of_checkpoint, folders)).differences
    assert difference.sameness is Sameness.VALUES
    assert doubled == "MXFP8: every scale doubled, every element halved exactly"
    folders = []
    for count, (code, exponent) in enumerate(((0x40, 120), (0x38, 121))):
        export = corpus.CLEAN["modelopt-mxfp8"]()
        export.array(f"{UP}.weight").view(np.uint8)[...] = code
        export.array(f"{UP}.weight_scale")[...] = exponent
        folders.append(export.write(tmp_path / f"mxfp8{count}"))
    (difference,) = compare(*map(manifest_of_checkpoint, folders)).differences
    assert (difference.sameness, other) == (Sameness.VALUES, "the same values, another block scale")
    assert "another block scale" in difference.text
    assert (recoded, form) == ("MXFP4 recoded as NVFP4 without loss", "another format, the same values")
    source = mxfp4_of(tmp_path / "mxfp4", [[-7, -24]])
    assert fp4("convert", source, tmp_path / "recoded", "--to", "modelopt", "--spec", "nvfp4").exit_code == 0
    said = fp4("compare", source, tmp_path / "recoded").stdout
    assert "another format" in said
    assert "the same values" in said


@pytest.mark.rule("CNV-19", "CNV-20", "CNV-47")
@pytest.mark.example("CNV-19", "CNV-20", "CNV-47")
def test_tables_of_llama_cpp_and_of_processes():
    known = {}
    for cell, architecture, said in rows_of("CNV-19"):
        for name in words(cell):
            known[name] = words(architecture)[0]
            places = ARCHITECTURES[name].place(f"{LAYER}.self_attn.q_proj.weight")
            assert (places[0].order is RowOrder.QUERY) == (known[name] == "llama"), name
            assert said.startswith("rows of `q_proj`") == (name in {"llama", "mistral"})
    assert {name: each.name for name, each in ARCHITECTURES.items()} == known
    mixtral = {row[0]: row[2] for row in rows_of("CNV-19")}["`mixtral`"]
    for hub, part in zip(re.findall(r"`(w\d)`", mixtral), ("gate", "up", "down"), strict=True):
        (place,) = ARCHITECTURES["mixtral"].place(f"{LAYER}.block_sparse_moe.experts.1.{hub}.weight")
        assert (place.name, place.expert) == (f"blk.0.ffn_{part}_exps.weight", 1)
    orders = [each.order for each in ARCHITECTURES["gpt_oss"].place(f"{LAYER}.mlp.experts.gate_up_proj_bias")]
    assert orders == [RowOrder.EVEN, RowOrder.ODD]
    (_, names), (_, pieces), (_, none) = rows_of("CNV-20")
    assert words(names)[0] == "gpt2"
    assert {*words(names)[1:]} == {*PRE_TOKENIZERS.values()}
    assert words(pieces) == ["llama", "default"]
    assert words(none) == ["no_vocab"]
    assert "replaced twice" in text_of("CNV-47")
    assert running.RETRIES == 2
    (_, same), (_, error) = rows_of("CNV-47")
    assert same == "the same bytes"
    assert error == f"an error: worker processes ended {1 + running.RETRIES} times"


@pytest.mark.rule("CNV-35")
@pytest.mark.example("CNV-35")
def test_a_configuration_declares_one_format_for_all():
    ((target, modules, outcome),) = rows_of("CNV-35")
    assert target == "one whose configuration declares one format for all"
    assert (modules, outcome) == ("two formats", "refused")
    export = corpus.modelopt()
    files = {
        "config.json": {"quantization_config": export.config["quantization_config"]},
        "hf_quant_config.json": export.hf,
    }
    placed = [
        SimpleNamespace(weight=SimpleNamespace(module=module), convention=CONVENTIONS[f"modelopt.{name}"])
        for module, name in ((UP, "nvfp4"), (Q, "mxfp8"))
    ]
    planning._require_true(files, placed[:1])
    with pytest.raises(ValueError, match=f"{Q} as modelopt.mxfp8, which the configuration declares as .*CNV-35"):
        planning._require_true(files, placed)
