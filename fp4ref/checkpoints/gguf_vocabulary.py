"""The vocabulary of a model in GGUF, made of its tokenizer.json, as llama.cpp reads it.

Rules: CNV-20.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from fp4ref.files.tensors import reason

FILE_MAX = 64 << 20  # bytes of a file of a tokenizer
TOKENS_MAX = 1 << 22
SPACE = "\u2581"  # stands for a space in pieces of SentencePiece
BYTE_SPACE = "\u0120"  # stands for a space in byte-level tokens
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")
CASES = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = (  # of upper and lower case, by cases
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
LETTERS, SIGNS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+"
GPT_2 = ""  # the division that is built into byte-level tokenizers
PRE_TOKENIZERS = {  # llama.cpp's name, by the expression that divides texts and by whether whole words need no merges
    (rf"{CASES}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{REST}", True): "llama-bpe",
    (rf"{CASES}|{LETTERS}|\p{{N}}{{1,3}}|{SIGNS}[\r\n]*|{REST}", False): "dbrx",
    (rf"{CASES}|{LETTERS}|\p{{N}}|{SIGNS}[\r\n]*|{REST}", False): "qwen2",
    (rf"{WORDS[0]}|{WORDS[1]}|\p{{N}}|{SIGNS}[\r\n/]*|{REST}", True): "tekken",
    (rf"{WORDS[0]}{CASES}?|{WORDS[1]}{CASES}?|\p{{N}}{{1,3}}|{SIGNS}[\r\n/]*|{REST}", False): "gpt-4o",
    (GPT_2, False): "gpt-2",
}


class TokenType(IntEnum):
    """The type of a token in GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class NoVocabularyError(Exception):
    """A tokenizer that llama.cpp cannot be told of; never reaches a caller."""


class Vocabulary(NamedTuple):
    """A vocabulary of GGUF.

    model: llama.cpp's kind of tokenizer, "gpt2" for byte-level BPE or "llama" for SentencePiece. pre: how texts are
    divided. scores: of SentencePiece, else empty. merges: of BPE. special: numbers of tokens, by GGUF's key. flags:
    true or false, by key. remarks: where llama.cpp divides some texts otherwise.
    """

    model: str
    pre: str
    tokens: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    special: dict[str, int]
    flags: dict[str, bool]
    template: str
    remarks: list[str]


def vocabulary_of(folder: Path, config: Mapping[str, Any]) -> Vocabulary | str:
    """Return the vocabulary of a model's directory, or why there is none.

    config: its config.json, whose `vocab_size` is the number of tokens.

    Rules: CNV-20, CNV-43.
    """
    try:
        return _made(folder, config)
    except NoVocabularyError as error:
        return str(error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"tokenizer.json is not one of a tokenizer ({type(error).__name__}: {error})"[:200]


def _made(folder: Path, config: Mapping[str, Any]) -> Vocabulary:
    tokenizer = _read(folder / "tokenizer.json")
    if tokenizer is None:
        raise NoVocabularyError("there is no tokenizer.json")
    settings = _read(folder / "tokenizer_config.json") or {}
    model = tokenizer["model"]
    if model.get("type", "BPE") != "BPE":
        raise NoVocabularyError(f"tokenizer.json has a model of type {model['type']!r}, not BPE")
    for key in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(key):
            raise NoVocabularyError(f"tokenizer.json has a {key}, which llama.cpp does not")
    added = {int(each["id"]): each for each in tokenizer.get("added_tokens") or ()}
    own = {int(number): str(text) for text, number in model["vocab"].items()}
    names = own | {number: str(each["content"]) for number, each in added.items()}
    count = int(config["vocab_size"])
    if count > TOKENS_MAX:
        raise NoVocabularyError(f"config.json has a vocab_size of {count}")
    beyond = max(names, default=0)
    if beyond >= count or min(names, default=0) < 0:
        raise NoVocabularyError(f"token {beyond} of tokenizer.json is beyond the vocab_size {count} of config.json")
    pieces = bool(model.get("byte_fallback"))
    tokens = [names.get(number, f"[PAD{number}]") for number in range(count)]
    types: list[int] = [_type(number, names, added, pieces=pieces) for number in range(count)]
    if pieces and model.get("unk_token") in own.values():
        types[model["vocab"][model["unk_token"]]] = TokenType.UNKNOWN
    merges = [_pair(each) for each in model["merges"]]
    special, flags = _specials(tokenizer, settings, config, {text: number for number, text in names.items()})
    template = _template(folder, settings)
    if pieces:
        prefix, remarks = _space_prefix(tokenizer)
        scores = _scores(own, merges, count)
        flags["add_space_prefix"] = prefix
        return Vocabulary("llama", "default", tokens, types, scores, [], special, flags, template, remarks)
    pre, remarks = _pre_tokenizer(tokenizer)
    joined = [" ".join(part.replace(" ", BYTE_SPACE) for part in pair) for pair in merges]
    return Vocabulary("gpt2", pre, tokens, types, [], joined, special, flags, template, remarks)


def _read(path: Path) -> Any:
    """Return the object of a JSON file of bounded size; None if there is no such file."""
    if not path.is_file():
        return None
    try:
        with path.open("rb") as file:
            text = file.read(FILE_MAX + 1)
        if len(text) > FILE_MAX:
            raise NoVocabularyError(f"{path.name} has more than {FILE_MAX} bytes")
        found = json.loads(text.decode())
    except (OSError, ValueError, RecursionError) as error:
        raise NoVocabularyError(f"{path.name} cannot be read: {reason(error)}") from None
    if not isinstance(found, dict):
        raise NoVocabularyError(f"{path.name} is not a JSON object")
    return found


def _pair(merge: Any) -> tuple[str, str]:
    first, second = merge.split(" ") if isinstance(merge, str) else merge
    return str(first), str(second)


def _type(number: int, names: Mapping[int, str], added: Mapping[int, Any], *, pieces: bool) -> TokenType:
    if number not in names:
        return TokenType.UNUSED
    if pieces and BYTE_TOKEN.fullmatch(names[number]):
        return TokenType.BYTE
    if number in added:
        return TokenType.CONTROL if added[number].get("special") else TokenType.USER_DEFINED
    return TokenType.NORMAL


def _parts(found: Any, key: str) -> Iterator[dict[str, Any]]:
    """Yield the members of a sequence of normalizers, pre-tokenizers or processors; those of one are itself."""
    if isinstance(found, dict) and found.get("type") == "Sequence":
        for each in found[key]:
            yield from _parts(each, key)
    elif found is not None:
        yield found


def _pre_tokenizer(tokenizer: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return llama.cpp's name of a division of texts into words, with what differs. Rules: CNV-46."""
    kinds = [each["type"] for each in _parts(tokenizer.get("normalizer"), "normalizers")]
    if set(kinds) - {"NFC"}:
        raise NoVocabularyError(f"tokenizer.json normalizes texts by {', '.join(kinds)}, which llama.cpp does not")
    remarks = ["llama.cpp does not bring texts into the normal form NFC, as tokenizer.json asks"] if kinds else []
    parts = [*_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    types = [each["type"] for each in parts]
    if types == ["Split", "ByteLevel"] and parts[0].get("behavior") == "Isolated" and not parts[0].get("invert"):
        expression = parts[0]["pattern"].get("Regex", " ")
    elif types == ["ByteLevel"]:
        expression = GPT_2
    else:
        raise NoVocabularyError(f"tokenizer.json divides texts by {', '.join(types) or 'nothing'}")
    if parts[-1].get("add_prefix_space") or parts[-1].get("use_regex", True) != (expression == GPT_2):
        raise NoVocabularyError("tokenizer.json has a byte-level step that llama.cpp does not")
    ignored = bool(tokenizer["model"].get("ignore_merges"))
    found = PRE_TOKENIZERS.get((expression, ignored))
    if found is None:
        raise NoVocabularyError("tokenizer.json divides texts by an expression for which no name in llama.cpp is known")
    if expression.startswith(WORDS[0]):
        remarks.append("llama.cpp divides words with combining marks, as in Devanagari, otherwise than tokenizer.json")
    return found, remarks


def _space_prefix(tokenizer: Mapping[str, Any]) -> tuple[bool, list[str]]:
    """Return True if a text gets a space in front, with what differs. Rules: CNV-46."""
    normalizers = [*_parts(tokenizer.get("normalizer"), "normalizers")]
    divisions = [*_parts(tokenizer.get("pre_tokenizer"), "pretokenizers")]
    spaces = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    if not divisions and normalizers == [{"type": "Prepend", "prepend": SPACE}, spaces]:
        return True, []
    if not normalizers and [each["type"] for each in divisions] == ["Metaspace"] and not divisions[0].get("split"):
        scheme = divisions[0].get("prepend_scheme", "always")
        more = " or follows a special token" if scheme == "first" else ""
        later = f"llama.cpp also puts a space before a text that begins with one{more}; tokenizer.json does not"
        return scheme != "never", [later] if scheme != "never" else []
    raise NoVocabularyError("tokenizer.json has pieces of SentencePiece, and treats spaces as llama.cpp does not")


def _scores(own: Mapping[int, str], merges: list[tuple[str, str]], count: int) -> list[float]:
    """Return a score for each token by which llama.cpp merges pieces in the order of the merges.

    llama.cpp merges any two neighbours whose text is a token, the largest score first.

    Rules: CNV-44.
    """
    ranks: dict[str, int] = {}
    last = ""
    for first, second in merges:
        if first + second != last and first + second in ranks:
            raise NoVocabularyError(f"tokenizer.json has merges that no score has: {first + second!r} at two places")
        last = first + second
        ranks.setdefault(last, len(ranks))
    pieces, pairs = set(own.values()), set(merges)
    for piece in ranks:
        for cut in range(1, len(piece)):
            if {piece[:cut], piece[cut:]} <= pieces and (piece[:cut], piece[cut:]) not in pairs:
                got = f"{piece[:cut]!r} and {piece[cut:]!r}"
                raise NoVocabularyError(f"tokenizer.json does not merge {got}, as llama.cpp would")
    return [0.0 - ranks.get(own.get(number, ""), len(ranks)) for number in range(count)]


SPECIAL = {"bos": "bos_token_id", "eos": "eos_token_id", "unk": "unknown_token_id", "pad": "padding_token_id"}


def _specials(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], config: Mapping[str, Any], numbers: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, bool]]:
    """Return the numbers of special tokens, and whether texts begin and end with one. Rules: CNV-45, CNV-72."""
    special: dict[str, int] = {}
    for name, key in SPECIAL.items():
        token = settings.get(f"{name}_token")
        text = token.get("content") if isinstance(token, dict) else token
        usual = config.get(f"{name}_token_id")
        usual = usual[0] if isinstance(usual, list) and usual else usual
        number = numbers.get(text) if isinstance(text, str) else usual
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < config["vocab_size"]:
            special[key] = number
    flags = {f"add_{name}_token": settings.get(f"add_{name}_token") is True for name in ("bos", "eos")}
    for each in _parts(tokenizer.get("post_processor"), "processors"):
        if each["type"] == "TemplateProcessing":
            around = [item.get("SpecialToken", {}).get("id") for item in each["single"]]
            middle = around.index(None)
            before, after = around[:middle], around[middle + 1 :]
            if len(before) > 1 or len(after) > 1 or None in after:
                raise NoVocabularyError("tokenizer.json puts several special tokens around a text")
            for name, tokens in (("bos", before), ("eos", after)):
                flags[f"add_{name}_token"] = bool(tokens)
                if tokens:
                    special[SPECIAL[name]] = numbers[tokens[0]]
        elif each["type"] != "ByteLevel":
            raise NoVocabularyError(f"tokenizer.json processes texts by {each['type']}")
    return special, flags


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    """Return the template of chats; "" if there is none. Rules: CNV-73."""
    path = folder / "chat_template.jinja"
    try:
        if path.is_file() and path.stat().st_size <= FILE_MAX:
            return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NoVocabularyError(f"{path.name} cannot be read: {reason(error)}") from None
    found = settings.get("chat_template") or ""
    if isinstance(found, list):
        found = next((each["template"] for each in found if each.get("name") == "default"), "")
    return found if isinstance(found, str) else ""
