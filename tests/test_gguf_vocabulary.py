"""The vocabulary of a GGUF against tokens, merges and numbers that are written out by hand."""

from __future__ import annotations

import json
import struct
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from checkpoints_corpus import of_layers
from commands import convert
from fp4ref.checkpoints.checkpoint import open_checkpoint
from fp4ref.checkpoints.gguf_vocabulary import Vocabulary, vocabulary_of

pytestmark = pytest.mark.rule("CNV-20")
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA_3 = QWEN.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?")
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
OPENING = r"[^\r\n\p{L}\p{N}]?"
CLOSING = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT_4O = rf"{OPENING}{UPPER}*{LOWER}+{ENDS}|{OPENING}{UPPER}+{LOWER}*{ENDS}|\p{{N}}{{1,3}}|{CLOSING}"
TEKKEN = rf"{OPENING}{UPPER}*{LOWER}+|{OPENING}{UPPER}+{LOWER}*|\p{{N}}|{CLOSING}"
END = {"id": 5, "content": "<|end|>", "special": True}
TOOL = {"id": 6, "content": "<tool>", "special": False}
CONFIG = {"vocab_size": 9}
MODEL = {"model_type": "llama", "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e4, **CONFIG}


def divided(expression: str, **more: Any) -> dict[str, Any]:
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False, **more}
    return {"type": "Sequence", "pretokenizers": [split, level]}


def template(*around: str) -> dict[str, Any]:
    items = [{"Sequence": {"id": "A"}} if each == "A" else {"SpecialToken": {"id": each}} for each in around]
    return {"type": "Sequence", "processors": [{"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": items}]}


BYTES = {
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "\u0120": 2, "ab": 3, "\u0120ab": 4}, "merges": []},
    "added_tokens": [END, TOOL],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": divided(QWEN),
    "post_processor": {"type": "ByteLevel"},
}
BYTES["model"]["merges"] = [["a", "b"], [" ", "ab"]]
PIECES = {
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "byte_fallback": True,
        "vocab": {"<unk>": 0, "<s>": 1, "<0x0A>": 2, "\u2581a": 3, "\u2581ab": 4, "\u2581": 5, "a": 6, "b": 7},
        "merges": ["\u2581 a", "\u2581a b"],
    },
    "added_tokens": [{"id": 1, "content": "<s>", "special": True}],
    "normalizer": {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        ],
    },
    "pre_tokenizer": None,
    "post_processor": {"type": "TemplateProcessing", "single": template("<s>", "A")["processors"][1]["single"]},
}


def of(folder: Path, tokenizer: Any, settings: Any = None, **config: Any) -> Vocabulary | str:
    (folder / "tokenizer.json").write_text(tokenizer if isinstance(tokenizer, str) else json.dumps(tokenizer))
    if settings is not None:
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return vocabulary_of(folder, {**CONFIG, **config})


def changed(tokenizer: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    found = deepcopy(tokenizer)
    place = found
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = to
    return found


@pytest.mark.rule("CNV-43")
def test_a_byte_level_vocabulary(tmp_path: Path) -> None:
    settings = {"eos_token": "<|end|>", "pad_token": {"content": "<|end|>"}, "chat_template": "hello"}
    assert of(tmp_path, BYTES, settings) == Vocabulary(
        model="gpt2",
        pre="qwen2",
        tokens=["a", "b", "\u0120", "ab", "\u0120ab", "<|end|>", "<tool>", "[PAD7]", "[PAD8]"],
        types=[1, 1, 1, 1, 1, 3, 4, 5, 5],
        scores=[],
        merges=["a b", "\u0120 ab"],
        special={"eos_token_id": 5, "padding_token_id": 5},
        flags={"add_bos_token": False, "add_eos_token": False},
        template="hello",
        remarks=["llama.cpp does not bring texts into the normal form NFC, as tokenizer.json asks"],
    )


@pytest.mark.rule("CNV-44")
def test_pieces_get_scores_in_the_order_of_their_merges(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from a file")
    assert of(tmp_path, PIECES, {"unk_token": "<unk>", "chat_template": "from settings"}) == Vocabulary(
        model="llama",
        pre="default",
        tokens=["<unk>", "<s>", "<0x0A>", "\u2581a", "\u2581ab", "\u2581", "a", "b", "[PAD8]"],
        types=[2, 3, 6, 1, 1, 1, 1, 1, 5],
        scores=[-2, -2, -2, 0, -1, -2, -2, -2, -2],
        merges=[],
        special={"bos_token_id": 1, "unknown_token_id": 0},
        flags={"add_bos_token": True, "add_eos_token": False, "add_space_prefix": True},
        template="from a file",
        remarks=[],
    )


@pytest.mark.parametrize(
    ("expression", "whole_words", "name"),
    [
        (QWEN, False, "qwen2"),
        (LLAMA_3, True, "llama-bpe"),
        (LLAMA_3, False, "dbrx"),
        (GPT_4O, False, "gpt-4o"),
        (TEKKEN, True, "tekken"),
    ],
)
def test_names_of_divisions(expression: str, whole_words: bool, name: str, tmp_path: Path) -> None:
    tokenizer = changed(BYTES, "pre_tokenizer", to=divided(expression))
    found = of(tmp_path, changed(tokenizer, "model", "ignore_merges", to=whole_words))
    assert isinstance(found, Vocabulary)
    assert found.pre == name
    assert any("combining marks" in each for each in found.remarks) == (expression in {GPT_4O, TEKKEN})


def test_the_division_that_is_built_in(tmp_path: Path) -> None:
    level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
    found = of(tmp_path, changed(BYTES, "pre_tokenizer", to=level))
    assert isinstance(found, Vocabulary)
    assert found.pre == "gpt-2"


@pytest.mark.rule("CNV-46")
@pytest.mark.parametrize(("scheme", "prefix"), [("first", True), ("always", True), ("never", False)])
def test_spaces_of_pieces(scheme: str, prefix: bool, tmp_path: Path) -> None:
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": scheme, "split": False}
    found = of(tmp_path, changed(changed(PIECES, "normalizer", to=None), "pre_tokenizer", to=space))
    assert isinstance(found, Vocabulary)
    assert found.flags["add_space_prefix"] is prefix
    assert bool(found.remarks) is prefix


@pytest.mark.rule("CNV-45")
def test_special_tokens_around_a_text_are_those_of_the_template(tmp_path: Path) -> None:
    tokenizer = changed(BYTES, "post_processor", to=template("<|end|>", "A", "<tool>"))
    found = of(tmp_path, tokenizer, {"bos_token": "<tool>", "add_bos_token": False})
    assert isinstance(found, Vocabulary)
    assert found.special == {"bos_token_id": 5, "eos_token_id": 6}
    assert found.flags == {"add_bos_token": True, "add_eos_token": True}
    (tmp_path / "tokenizer_config.json").unlink()
    found = of(tmp_path, BYTES, eos_token_id=[4, 5], bos_token_id=99)  # of config.json, where nothing else says
    assert isinstance(found, Vocabulary)
    assert found.special == {"eos_token_id": 4}


@pytest.mark.parametrize(
    ("tokenizer", "config", "why"),
    [
        ("{", {}, "tokenizer.json cannot be read: "),
        ("[]", {}, "tokenizer.json is not a JSON object"),
        ("{}", {}, "is not one of a tokenizer (KeyError: 'model')"),
        (changed(BYTES, "model", "vocab", to=[]), {}, "is not one of a tokenizer"),
        (changed(BYTES, "model", "merges", to=["a"]), {}, "is not one of a tokenizer"),
        (changed(BYTES, "model", "merges", to=[7]), {}, "is not one of a tokenizer"),
        (changed(BYTES, "model", "type", to="Unigram"), {}, "a model of type 'Unigram', not BPE"),
        (changed(BYTES, "model", "dropout", to=0.1), {}, "has a dropout"),
        (BYTES, {"vocab_size": 6}, "token 6 of tokenizer.json is beyond the vocab_size 6"),
        (BYTES, {"vocab_size": 1 << 31}, "vocab_size of 2147483648"),
        (changed(BYTES, "model", "vocab", "a", to=-1), {}, "beyond the vocab_size"),
        (changed(BYTES, "normalizer", "type", to="Lowercase"), {}, "normalizes texts by Lowercase"),
        (changed(BYTES, "pre_tokenizer", to=divided("[a-z]+")), {}, "an expression for which no name"),
        (changed(BYTES, "pre_tokenizer", to=divided(TEKKEN)), {}, "an expression for which no name"),  # whole words
        (changed(BYTES, "pre_tokenizer", to=divided(QWEN, add_prefix_space=True)), {}, "a byte-level step"),
        (changed(BYTES, "pre_tokenizer", to={"type": "Whitespace"}), {}, "divides texts by Whitespace"),
        (changed(BYTES, "pre_tokenizer", to=None), {}, "divides texts by nothing"),
        (changed(BYTES, "post_processor", to=template("<tool>", "<tool>", "A")), {}, "several special tokens"),
        (changed(BYTES, "post_processor", to={"type": "BertProcessing"}), {}, "processes texts by BertProcessing"),
        (changed(PIECES, "normalizer", to=None), {}, "treats spaces as llama.cpp does not"),
        (changed(PIECES, "model", "merges", to=["a b", "\u2581 a", "a b"]), {}, "merges that no score has: 'ab'"),
        (changed(PIECES, "model", "merges", to=["\u2581a b", "\u2581 b"]), {}, None),
        (changed(PIECES, "model", "vocab", "ab", to=8), {}, "does not merge '\u2581' and 'ab', as llama.cpp would"),
    ],
)
def test_tokenizers_that_llama_cpp_cannot_be_told_of(
    tokenizer: Any, config: dict[str, Any], why: str | None, tmp_path: Path
) -> None:
    found = of(tmp_path, tokenizer, **config)
    if why is None:
        assert isinstance(found, Vocabulary)
    else:
        assert isinstance(found, str)
        assert why in found
        assert "\n" not in found


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def test_a_gguf_has_the_vocabulary_in_its_first_file(tmp_path: Path) -> None:
    export = of_layers(1).CLEAN["modelopt-nvfp4"]()
    export.config |= MODEL
    source = export.write(tmp_path / "source")
    (source / "tokenizer.json").write_text(json.dumps(PIECES))
    manifest = convert(source, tmp_path / "gguf", "gguf", shard_bytes=20_000)
    assert not [each for each in manifest["remarks"] if "vocabulary" in each]
    first, *others = open_checkpoint(tmp_path / "gguf").shards
    values = {key: first.read(*place) for key, place in first.entries.items()}
    tokens = ["<unk>", "<s>", "<0x0A>", "\u2581a", "\u2581ab", "\u2581", "a", "b", "[PAD8]"]
    expected = {
        "tokenizer.ggml.model": struct.pack("<I", 8) + text("llama"),
        "tokenizer.ggml.pre": struct.pack("<I", 8) + text("default"),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 9) + b"".join(map(text, tokens)),
        "tokenizer.ggml.token_type": struct.pack("<IIQ9i", 9, 5, 9, 2, 3, 6, 1, 1, 1, 1, 1, 5),
        "tokenizer.ggml.scores": struct.pack("<IIQ9f", 9, 6, 9, -2, -2, -2, 0, -1, -2, -2, -2, -2),
        "tokenizer.ggml.bos_token_id": struct.pack("<II", 4, 1),
        "tokenizer.ggml.add_bos_token": struct.pack("<IB", 7, 1),
        "tokenizer.ggml.add_eos_token": struct.pack("<IB", 7, 0),
        "tokenizer.ggml.add_space_prefix": struct.pack("<IB", 7, 1),
    }
    assert {key: value for key, value in values.items() if key.startswith("tokenizer")} == expected
    assert others
    assert not [key for shard in others for key in shard.entries if key.startswith("tokenizer")]


def test_a_gguf_without_vocabulary_says_why(tmp_path: Path) -> None:
    export = of_layers(1).CLEAN["modelopt-nvfp4"]()
    export.config |= MODEL
    manifest = convert(export.write(tmp_path / "source"), tmp_path / "gguf", "gguf")
    assert [each for each in manifest["remarks"] if each.endswith("no text; there is no tokenizer.json")]
    shard = open_checkpoint(tmp_path / "gguf").shards[0]
    assert shard.read(*shard.entries["tokenizer.ggml.model"]) == struct.pack("<I", 8) + text("no_vocab")
