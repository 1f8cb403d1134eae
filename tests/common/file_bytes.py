"""Bytes of safetensors files and of archives, right ones and broken ones."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from typing import Any


def safetensors(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a file of a header, which may state another length of itself."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def archive(*members: tuple[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive of members by name."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        for name, data in members:
            file.writestr(name, data)
    return buffer.getvalue()


def with_field(data: bytes, offset: int, value: bytes) -> bytes:
    """Return an archive with another field in the first record of its central directory."""
    start = data.index(b"PK\1\2") + offset
    return data[:start] + value + data[start + len(value) :]
