"""Examples of the chapters on checkpoints and their conversion, computed: rules that were divided."""

from __future__ import annotations

import json
import re
import shutil
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

import checkpoints_corpus as corpus
import fp4ref
from commands import convert, fp4
from fp4ref.checkpoints import access, bounds, lint, suspicions
from fp4ref.checkpoints.check_elements import _histogram, _narrow_range, suspect_saturation
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.configuration import TRANSFORMERS
from fp4ref.checkpoints.gguf_vocabulary import vocabulary_of
from fp4ref.checkpoints.groups import CONVENTIONS, recognize
from fp4ref.checkpoints.lossless import judge, target_of
from fp4ref.checkpoints.measure import Measured
from fp4ref.checkpoints.origins import origin_of
from fp4ref.checkpoints.repairs import scale_table
from fp4ref.checkpoints.shards import Shard
from fp4ref.checkpoints.suspicions import suspect_layout
from fp4ref.checkpoints.transfer.reading import read_weight
from fp4ref.checkpoints.transfer.recoding import recoded
from fp4ref.checkpoints.transfer.scales import StoredScale
from fp4ref.checkpoints.transfer.weights import Weight, WeightPiece
from fp4ref.errors import DomainError
from fp4ref.files import Entry, write_tensors
from fp4ref.formats import CUDA_E4M3, E2M1
from fp4ref.layout import LINEAR
from fp4ref.packing import pack, unpack
from fp4ref.standard import formulas
from standard_rules import integers, rows_of, text_of

QKV = "double_blocks.0.img_attn.qkv"
MODULE = "model.layers.0.mlp.up_proj"


def word(cell):
    return re.search("`(.*?)`", cell)[1]


def group_of(folder, module):
    return next(group for group in recognize(open_checkpoint(folder)).groups if group.module == module)


# Linting


@pytest.mark.rule("CKP-41")
@pytest.mark.example("CKP-41")
def test_input_scales_that_were_never_set(tmp_path):
    names = [name for name in corpus.CLEAN["modelopt-nvfp4"]().tensors if name.endswith("input_scale")]
    assert len(names) > 2
    for run, (cell, finding) in enumerate(rows_of("CKP-41")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        value = float(cell.split()[0])
        for name in names[:2] if "two" in cell else names:
            export.put(name, "F32", value)
        found = [each for each in lint(export.write(tmp_path / f"{run}")).findings if each.code == "input-scale"]
        assert [bool(found), finding] in ([True, "`input-scale`"], [False, "none"])
        assert "two" not in cell or sorted(found[0].tensors) == sorted(names[:2])


@pytest.mark.rule("CKP-64")
@pytest.mark.example("CKP-64")
def test_scales_of_a_cache(tmp_path):
    name = "model.layers.1.self_attn.k_proj.k_scale"
    for run, (cell, finding) in enumerate(rows_of("CKP-64")):
        export = corpus.CLEAN["modelopt-nvfp4-kv"]()
        if cell == "not stored":
            export.drop(name)
        else:
            export.put(name, "F32", np.full({"one number": 1, "two numbers": 2}[cell], 0.1))
        codes = {each.code for each in lint(export.write(tmp_path / f"{run}")).findings}
        assert ("kv-scale" in codes) == (finding == "`kv-scale`")


@pytest.mark.rule("CKP-65", "CKP-13")
@pytest.mark.example("CKP-65")
def test_entries_of_modules_that_stay():
    for entry, module, matches in rows_of("CKP-65"):
        assert TRANSFORMERS.takes(word(entry), word(module)) == (matches == "yes")


# Conversions


@pytest.mark.rule("CNV-27", "CNV-69", "CNV-70")
@pytest.mark.example("CNV-27", "CNV-69", "CNV-70")
def test_padding_that_is_cropped(tmp_path):
    ((weight, stored, kept, back),) = rows_of("CNV-27")
    assert weight == kept == back
    export = corpus.source()
    for name in [*export.tensors]:
        export.drop(name)
    export.put(f"{QKV}.weight", "F32", np.random.default_rng(3).standard_normal(integers(weight)).astype(np.float32))
    plain, first = export.write(tmp_path / "plain"), tmp_path / "comfy"
    assert fp4("quantize", plain, "-o", first, "--to", "comfy", "--spec", "nvfp4", "--include", "*").exit_code == 0
    group = group_of(first, QKV)
    assert [[*group.shape], [*origin_of(group)["shape"]]] == [integers(stored), integers(kept)]
    assert [*read_weight(group).shape] == integers(back)
    head = re.search(r"weight (\[.*?\]), stored as (\[.*?\])", text_of("CNV-69"))
    assert [head[1], head[2]] == [weight, stored]
    for run, (cell, result) in enumerate(rows_of("CNV-69")):
        source = tmp_path / f"read{run}"
        shutil.copytree(first, source)
        if place := re.search(r"row (\d+), column (\d+) is (\d)", cell):
            row, column, code = map(int, place.groups())
            tensor = open_checkpoint(source).tensors[f"{QKV}.weight"]
            with tensor.shard.path.open("r+b") as file:
                file.seek(tensor.start + row * integers(stored)[1] // 2 + column // 2)
                file.write(bytes([code << 4]))
        pieces = read_weight(group_of(source, QKV)).read(1)
        if result == "read":
            assert [*pieces]
            continue
        assert result == "refused"
        with pytest.raises(DomainError, match=r"padding that is not zero.*CNV-69"):
            list(pieces)
    multiple = integers(re.search(r"multiples of \d+", text_of("CNV-70"))[0])[0]
    for run, (high, bias, read) in enumerate(rows_of("CNV-70")):
        export = corpus.comfy()
        export.put(f"{QKV}.bias", "BF16", np.zeros(int(bias), np.uint16))
        group = group_of(export.write(tmp_path / f"bias{run}"), QKV)
        assert (group.rows, group.convention.multiples[0]) == (int(high), multiple)
        assert group.unpadded[0] == int(read)


@pytest.mark.rule("CNV-36", "CNV-71")
@pytest.mark.example("CNV-36", "CNV-71")
def test_the_metadata_of_a_gguf(tmp_path):
    ((cell, same),) = rows_of("CNV-36")
    assert same == "the same"
    assert re.findall("`(.*?)`", cell) == ["general.architecture", "llama", "tokens", "a", "b"]
    convert(corpus.CLEAN["gguf-nvfp4"]().write(tmp_path / "source"), tmp_path / "target")
    for folder in ("source", "target"):
        found = open_checkpoint(tmp_path / folder).metadata
        assert (found["general.architecture"], found["tokens"]) == ("llama", "['a', 'b']")
    for run, (kind, architecture, version) in enumerate(rows_of("CNV-71")):
        source = corpus.CLEAN["compressed-mxfp4"]().write(tmp_path / f"other{run}")
        path = source / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"model_type": word(kind)}))
        convert(source, tmp_path / f"gguf{run}", to="gguf")
        found = open_checkpoint(tmp_path / f"gguf{run}").metadata
        assert found["general.architecture"] == word(architecture)
        assert found["general.quantization_version"] == version


TOKENIZER = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3, "\u0120ab": 4}, "merges": [["a", "b"]]},
    "added_tokens": [{"id": 5, "content": "<tool>", "special": True}, {"id": 6, "content": "<s>", "special": True}],
    "normalizer": None,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
    "post_processor": {"type": "ByteLevel"},
}
TOKENIZER["model"]["merges"].append(["\u0120", "ab"])


def vocabulary(folder, settings, processor=None, **config):
    """The vocabulary of a model whose tokenizer has these settings."""
    folder.mkdir(exist_ok=True)
    parts = [{"SpecialToken": {"id": each}} if each != "$A" else {"Sequence": {"id": "A"}} for each in processor or ()]
    own = {"post_processor": {"type": "TemplateProcessing", "single": parts}} if processor else {}
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER | own))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return vocabulary_of(folder, {"vocab_size": 7, **config})


@pytest.mark.rule("CNV-45", "CNV-72")
@pytest.mark.example("CNV-45", "CNV-72")
def test_special_tokens(tmp_path):
    for token, number, found in rows_of("CNV-45"):
        settings = {} if token == "none" else {"bos_token": word(token)}
        assert vocabulary(tmp_path, settings, bos_token_id=int(number)).special == {"bos_token_id": int(found)}
    for processor, flag in rows_of("CNV-72"):
        for declared in (True, False):  # the processor decides
            made = vocabulary(tmp_path, {"add_bos_token": declared}, word(processor).split())
            assert made.flags["add_bos_token"] == (flag == "true")


@pytest.mark.rule("CNV-73")
@pytest.mark.example("CNV-73")
def test_the_template_of_chats(tmp_path):
    for run, (own, declared, found) in enumerate(rows_of("CNV-73")):
        folder = tmp_path / f"{run}"
        folder.mkdir()
        if own != "none":
            (folder / "chat_template.jinja").write_text(word(own))
        named = re.findall("`(\\w+)`: `(.*?)`", declared)
        templates = [{"name": name, "template": text} for name, text in named] or word(declared)
        assert vocabulary(folder, {"chat_template": templates}).template == word(found)


@pytest.mark.rule("CNV-11", "CNV-74")
@pytest.mark.example("CNV-74")
def test_repairs_that_cannot_be_made(tmp_path):
    repair = re.search(r"`--repair (\S+)`", text_of("CNV-74"))[1]
    for run, (cell, result) in enumerate(rows_of("CNV-74")):
        export = corpus.CLEAN["modelopt-nvfp4"]()
        if "no NaN" not in cell:
            export.array(f"{MODULE}.weight_scale")[5, 3] = 0x7F
            export.array(f"{MODULE}.weight")[5, 24:32] = 0
            export.array(f"{MODULE}.weight")[5, 31] = 0 if "above 16 zeros" in cell else 0x10
        source = export.write(tmp_path / f"{run}")
        if result != "refused":
            convert(source, tmp_path / f"to{run}", repairs=[repair])
            tensor = open_checkpoint(tmp_path / f"to{run}").tensors[f"{MODULE}.weight_scale"]
            scales = np.frombuffer(tensor.bytes(), np.uint8).reshape(tensor.shape)
            assert scales[5, 3] == 0x38  # what the producer gives zeros
            continue
        with pytest.raises(DomainError, match="CNV-74"):
            convert(source, tmp_path / f"to{run}", repairs=[repair])


# Bounds of counts


def measured(convention, codes=(), tops=(), structure=None, blocks=0, name="it.weight"):
    """Counts of a group: elements by the magnitude of their code, blocks by their largest one."""
    group = SimpleNamespace(
        convention=CONVENTIONS[convention],
        layout=LINEAR,
        parts={"codes": SimpleNamespace(name=name), "scales": SimpleNamespace(name=f"{name}_scale")},
    )
    counts = np.zeros(16, np.int64)
    counts[: len(codes)] = codes
    largest = np.zeros(8, np.int64)
    largest[: len(tops)] = tops
    scales = np.zeros(256, np.int64)
    scales[0x38] = blocks
    return Measured(group, counts, scales, largest, np.zeros(256, np.int64), structure=structure)


def of_shares(largest, second):
    """Counts of 10000 elements with these shares of codes 7 and 6; a tenth of the others are 0."""
    codes = np.zeros(8, np.int64)
    codes[7], codes[6] = round(10_000 * largest), round(10_000 * second)
    codes[0] = (10_000 - codes.sum()) // 10
    codes[1] = 10_000 - codes.sum()
    return codes


@pytest.mark.rule("CKP-30")
@pytest.mark.example("CKP-30")
def test_pieces_of_a_group(tmp_path, monkeypatch):
    ((cell, pieces_of),) = rows_of("CKP-30")
    (rows, columns), (count, high) = integers(cell), integers(pieces_of)
    entries = [
        Entry("w.weight", "U8", (rows, columns // 2)),
        Entry("w.weight_scale", "F8_E4M3", (rows, columns // 16)),
        Entry("w.weight_scale_2", "F32", ()),
    ]
    arrays = [np.zeros(each.shape, np.uint8) for each in entries[:2]] + [np.ones((), np.float32)]
    write_tensors(tmp_path / "w.safetensors", entries, {}, arrays)
    group = group_of(tmp_path / "w.safetensors", "w")
    read = []
    monkeypatch.setattr(Shard, "_note", lambda shard, start, data: read.append((start, len(data))))
    assert [len(piece.packed) for piece in access.pieces(group)] == [high] * count
    assert high * columns <= 1 << int(re.search(r"at most 2\^(\d+) elements", text_of("CKP-30"))[1])
    assert sum(count for _, count in read) == sum(array.nbytes for array in arrays[:2])  # each byte once


@pytest.mark.rule("CKP-33")
@pytest.mark.example("CKP-33")
def test_bounds_of_formats():
    for (_, share, always, often), name in zip(rows_of("CKP-33"), ("nvfp4", "mxfp4"), strict=True):
        convention = CONVENTIONS[f"modelopt.{name}"]
        formula, about = share.split(", about ")
        value = float(eval_of(formula))
        assert bounds.most_crowded(convention) == pytest.approx(value, rel=1e-7)
        assert round(value, 2) == float(about)
        assert bounds.always_reached(convention) == int(always)
        assert bounds.often_reached(convention) == int(often)


def eval_of(formula):
    """A formula with the signs of chapter 20, in float32."""
    return formulas.value(formula.replace("·", " * "))


@pytest.mark.rule("CKP-19")
@pytest.mark.example("CKP-19")
def test_crowded_codes():
    for cell, finding in rows_of("CKP-19"):
        largest, second = map(float, cell.split(", "))
        found = [*_narrow_range(measured("modelopt.nvfp4", of_shares(largest, second)), "it", 10_000)]
        assert [code for code, *_ in found] == ([] if finding == "none" else [word(finding)])


@pytest.mark.rule("CKP-46")
@pytest.mark.example("CKP-46")
def test_unused_codes():
    blocks = integers(re.search(r"of \d+ blocks", text_of("CKP-46"))[0])[0]
    for many, finding in rows_of("CKP-46"):
        tops = [0] * 5 + [blocks - int(many), 0, int(many)]
        found = [code for code, *_ in _narrow_range(measured("modelopt.nvfp4", tops=tops), "it", 0)]
        assert ("range-unused" in found) == (finding == "`range-unused`")


@pytest.mark.rule("CKP-47")
@pytest.mark.example("CKP-47")
def test_unusual_modules():
    usual = float(re.search(r"where ([\d.]+) of codes 7 is usual", text_of("CKP-47"))[1])
    formula = re.search(r"leads to `(.*?)`", text_of("CKP-47"))[1]
    others = [measured("modelopt.nvfp4", of_shares(usual, 0.1), name=f"{n}") for n in range(5)]
    for cell, finding in rows_of("CKP-47"):
        largest, second = map(float, cell.split(", "))
        found = [*suspect_saturation([*others, measured("modelopt.nvfp4", of_shares(largest, second))])]
        assert [code for code, *_ in found] == ([] if finding == "none" else [word(finding)])
        bound = 1.1 * float(formulas.value(formula, {"s": np.float32(second)}))
        assert bool(found) == (largest > max(0.25, 3 * usual, bound))


@pytest.mark.rule("CKP-25")
@pytest.mark.example("CKP-25")
def test_codes_that_no_weight_has():
    for cell, finding in rows_of("CKP-25"):
        counts = np.zeros(16, np.int64)
        if signs := re.fullmatch(r"(\d+) % positive, (\d+) % negative", cell):
            plus, minus = map(int, signs.groups())
            counts[1:8], counts[9:16] = 100 * plus, 100 * minus
        else:
            share, code = re.fullmatch(r"([\d.]+) % code (\d)", cell).groups()
            counts[int(code)] = round(float(share) * 1000)
            counts[1] += (100_000 - counts.sum()) // 2
            counts[9] = 100_000 - counts.sum()
        found = measured("modelopt.nvfp4")
        found.codes[:] = counts
        assert bool(_histogram(found, int(counts.sum()))) == (finding == "`code-histogram`")


@pytest.mark.rule("CKP-42", "CKP-43")
@pytest.mark.example("CKP-42", "CKP-43")
def test_layouts_that_scales_show():
    for blocks, cell, finding in rows_of("CKP-42"):
        shares = tuple(map(float, cell.split(", ")))
        found = [*suspect_layout([measured("modelopt.nvfp4", structure=shares, blocks=int(blocks))])]
        findings = [each for each in found if not isinstance(each, str)]
        assert [each.severity for each in findings] == (["warning"] if finding == "a suspicion" else [])
    count = integers(re.search(r"of \d+ tensors", text_of("CKP-43"))[0])[0]
    for showing, together, reported in rows_of("CKP-43"):
        shares = (0.1, 0.11) if together.endswith("in the other") else (0.11, 0.1)
        many, *right = integers(showing)
        structures = [(0.05, 0.3)] * many + [(0.3, 0.05)] * sum(right)
        structures += [shares] * (count - len(structures))
        members = [
            measured("modelopt.nvfp4", structure=each, blocks=512, name=f"{n}") for n, each in enumerate(structures)
        ]
        found = [*suspect_layout(members)]
        (finding,) = (each for each in found if not isinstance(each, str))
        assert len(finding.tensors) == integers(reported)[0]
        told = [each for each in found if isinstance(each, str)]
        assert bool(told) == ("cannot be told" in reported)
        assert not told or f"cannot tell for {integers(reported)[1]} of {count}" in told[0]


@pytest.mark.rule("CKP-23", "CKP-48")
@pytest.mark.example("CKP-23", "CKP-48")
def test_orders_of_nibbles(monkeypatch):
    norm = SimpleNamespace(name="norm.weight")
    monkeypatch.setattr(suspicions, "norm_of", lambda *_: norm)
    monkeypatch.setattr(suspicions, "floats", lambda _: np.ones(64))
    for rule in ("CKP-23", "CKP-48"):
        for cell, said in rows_of(rule):
            swapped, declared = map(float, cell.split(", "))
            scores = iter((declared, swapped))
            monkeypatch.setattr(suspicions, "_score", lambda *_, scores=scores: next(scores))
            one = measured("modelopt.nvfp4")
            one.energy = np.ones(64)
            found = [*suspicions.suspect_nibbles(SimpleNamespace(), [one])]
            told = [each for each in found if isinstance(each, str)]
            assert (len(found) > len(told)) == (said == "a suspicion")
            assert bool(told) == (said == "nibble order: cannot tell")
            if said == "a suspicion":
                (finding,) = found
                assert f"{swapped:.1f}" in finding.message
                assert f"{declared:.1f}" in finding.message
            if told:
                assert told[0].startswith(said)


# Numbers of conversions


@pytest.mark.rule("CKP-20")
@pytest.mark.example("CKP-20")
def test_directions_of_stored_scales():
    for cell, constant, stored in rows_of("CKP-20"):
        direction = CONVENTIONS[word(cell)].global_direction
        amax = float(re.search(r"amax (\d+)", text_of("CKP-20"))[1])
        assert direction.constant == float(constant)
        assert direction.stored(amax) == pytest.approx(float(formulas.value(stored)), rel=1e-7)
        assert direction.amax(direction.stored(amax)) == amax


@pytest.mark.rule("CNV-3", "CNV-25")
@pytest.mark.example("CNV-3", "CNV-25")
def test_scales_that_change_their_direction():
    multiplier, divisor = (CONVENTIONS[f"{name}.nvfp4"].global_direction for name in ("modelopt", "compressed-tensors"))
    for one, other in rows_of("CNV-3"):
        scale = StoredScale(np.float32([formulas.value(one)]), multiplier)
        assert scale.to(divisor).values.tolist() == [np.float32(formulas.value(other))]
    for one, other, back, cost in rows_of("CNV-25"):
        scale = StoredScale(np.float32([formulas.value(one)]), multiplier)
        there = scale.to(divisor)
        assert there.values.tolist() == [np.float32(formulas.value(other))]
        assert there.to(multiplier).values.tolist() == [np.float32(formulas.value(back))]
        assert scale.cost(divisor).name.lower() == cost


@pytest.mark.rule("CNV-55", "CNV-62")
@pytest.mark.example("CNV-55", "CNV-62")
def test_block_scales_under_another_global_scale():
    for before, scales, after in rows_of("CNV-55"):
        own, common = integers(scales)
        byte = CUDA_E4M3.encode(np.float32([before]))
        table, _ = scale_table(Fraction(own, common))
        assert CUDA_E4M3.decode(table[byte]).tolist() == [float(after)]
    for exact, after, error in rows_of("CNV-62"):
        table, errors = scale_table(Fraction(exact))
        one = int(CUDA_E4M3.encode(np.float32([1]))[0])
        assert CUDA_E4M3.decode(table[[one]]).tolist() == [float(after)]
        assert errors[one] == Fraction(error)


def weight_of(*blocks):
    """A weight of MXFP4 with one block in each row: magnitudes, None for all, and the exponent of the scale."""
    codes = [np.resize(np.uint8(range(8) if of is None else of), 32) for of, _ in blocks]
    packed = pack(np.stack(codes), E2M1)
    scales = np.uint8([[127 + exponent] for _, exponent in blocks])
    piece = WeightPiece(0, 0, packed, scales)
    return Weight(
        module="it",
        element="e2m1",
        scale="e8m0",
        block=(1, 32),
        shape=(len(blocks), 32),
        read=lambda multiple: iter([piece]),
    )


def nvfp4_of(weight):
    """The verdict on a weight as NVFP4, and its blocks as they are recoded."""
    target = target_of(fp4ref.NVFP4)
    verdict = judge(weight, target)
    return verdict, [*recoded(weight, target, verdict).read(1)] if verdict.lossless else []


def exponents_of(cell):
    return [int(np.log2(formulas.value(each))) for each in re.findall(r"2\^-?\d+", cell)]


@pytest.mark.rule("CNV-18", "CNV-48")
@pytest.mark.example("CNV-18", "CNV-48")
def test_casts_of_two_blocks():
    for rule in ("CNV-18", "CNV-48"):
        for cell, said in rows_of(rule):
            verdict, _ = nvfp4_of(weight_of(*((None, exponent) for exponent in exponents_of(cell))))
            assert verdict.lossless == (said == "exact")
            share = {"exact": 1, "half of the blocks": 0.5}.get(said)
            assert share is None or verdict.exact == share * verdict.blocks
            assert verdict.lossless or verdict.witness


MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def codes_of(text):
    return [MAGNITUDES.index(float(each)) for each in text.split(", ")]


@pytest.mark.rule("CNV-22", "CNV-52")
@pytest.mark.example("CNV-22", "CNV-52")
def test_factors_and_scales_of_recoded_blocks():
    for cell, said in rows_of("CNV-22"):
        magnitudes, first, second = re.fullmatch(r"(.*), k = (-?\d+) and (-?\d+)", cell).groups()
        of = None if magnitudes == "all magnitudes" else codes_of(magnitudes)
        verdict, (piece,) = nvfp4_of(weight_of((of, int(first)), (of, int(second))))
        factor, one, other = re.match(r"global scale (2\^-\d+); scale bytes (\w\w) and (\w\w); ", said).groups()
        assert (verdict.one, verdict.shift) == (1, int(np.log2(formulas.value(factor))))
        assert [f"{byte:02X}" for byte in piece.scales[:, 0]] == [one, other]
        made = unpack(piece.packed, 32, E2M1)
        if changed := re.search(r"of the first are (.*)", said):
            assert made[0, :3].tolist() == codes_of(changed[1])
        else:
            assert np.array_equal(made, np.resize(np.uint8(range(8)), (2, 32)))
    factor = re.search(r"global scale (2\^-\d+)", text_of("CNV-52"))[1]
    wide = ([1, 2, 4], 0), ([1, 2, 4], -18)  # these two need that factor
    for cell, said in rows_of("CNV-52"):
        given = re.fullmatch(r"(.*), k = (-?\d+)", cell)
        block = (codes_of(given[1]), int(given[2])) if given else ([0], 5)
        verdict, (piece,) = nvfp4_of(weight_of(block, *wide))
        assert verdict.shift == int(np.log2(formulas.value(factor)))
        assert f"{piece.scales[0, 0]:02X}" == said[:2]
        if changed := re.search(r"the magnitudes (.*)", said):
            assert unpack(piece.packed, 32, E2M1)[0, :3].tolist() == codes_of(changed[1])
