"""Kinds of files that commands write, recognized by their content. Rules: FIL-40."""

from __future__ import annotations

from codecs import getincrementaldecoder

from fp4ref.files.targets import FileKind, beginning_with

METADATA = b"fp4ref"  # the key of a dump's metadata
ZIP, PNG_MAGIC = b"PK\x03\x04", b"\x89PNG\r\n\x1a\n"
NAME = slice(30, 30 + len(METADATA) + 5)  # the name of the first member of a zip archive


def _is_npz(data: bytes) -> bool:
    return data.startswith((ZIP, b"PK\x05\x06"))


def _is_safetensors(data: bytes) -> bool:
    return len(data) > 8 and data[8:9] == b"{" and int.from_bytes(data[:8], "little") < 1 << 32


def _is_dump(data: bytes) -> bool:
    if _is_npz(data):
        return data[NAME] == METADATA + b".json"
    return _is_safetensors(data) and b'"%s":' % METADATA in data


def _is_text(data: bytes) -> bool:
    """Return True if bytes are text in UTF-8, of which the last character may be cut."""
    try:
        incremental = getincrementaldecoder("utf-8")()
        return "\0" not in incremental.decode(data)
    except UnicodeDecodeError:
        return False


def containing(name: str, mark: bytes) -> FileKind:
    """Return the kind of texts that contain a mark near their beginning."""
    return beginning_with(name, lambda data: mark in data and _is_text(data))


def saved_case(note: str) -> FileKind:
    """Return the kind of dumps that hold one case, whose metadata has this key."""
    return beginning_with("a saved case", lambda data: _is_dump(data) and note.encode() in data)


DUMP = beginning_with("a dump that fp4ref wrote", _is_dump)
TENSORS = beginning_with(
    "a file of tensors that are not quantized",
    lambda data: (_is_npz(data) or _is_safetensors(data)) and not _is_dump(data),
)
HTML = beginning_with("an HTML page", lambda data: data.lstrip()[:9].lower() == b"<!doctype" and _is_text(data))
JUNIT = containing("a JUnit report", b"<testsuites")
SVG = containing("an SVG figure", b"<svg")
PNG = beginning_with("a PNG image", lambda data: data.startswith(PNG_MAGIC))
TEXT = beginning_with("a text", _is_text)
JSON = beginning_with("a JSON file", lambda data: data.lstrip()[:1] in (b"{", b"[") and _is_text(data))
SARIF = containing("a SARIF log", b"sarif")
STATEMENT = containing("a statement", b'"fp4ref_statement"')
HEADER = beginning_with(
    "a C or C++ header", lambda data: (b"#pragma once" in data or b"#ifndef" in data) and _is_text(data)
)
STREAM = beginning_with("a stream of cases", lambda data: data.startswith(b"FP4REF1\n"))
