"""The header of a safetensors file, read as far as it can be true.

A command that needs the file refuses it at the first contradiction. The linter reads on, so that it names all of them.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from fp4ref.checkpoints.shards import Shard, StoredTensor
from fp4ref.files.tensors import TEXT_MAX, byte_count, misshapen, quoted, reason
from fp4ref.json_text import strict_json

FIELDS = {"dtype", "shape", "data_offsets"}
METADATA = "__metadata__"


def read_safetensors(shard: Shard, *, head_only: bool = False) -> None:
    """Fill a shard from its header; contradictions become problems.

    head_only: the file may end anywhere after the header.

    Rules: CKP-1, CKP-2.
    """
    header = _header(shard)
    if header is None:
        shard.whole = False
        return
    base, entries = header
    metadata = entries.pop(METADATA, {})
    if isinstance(metadata, dict) and all(isinstance(text, str) for text in metadata.values()):
        shard.metadata = metadata
    else:
        shard.refuse(f"{METADATA} is not an object of strings")
    spans = []
    for name, entry in entries.items():
        why, span = _span(entry)
        if why:
            shard.refuse(f"tensor {quoted(name)}: {why}", names=(name,))
            shard.hidden.add(name)
        else:
            spans.append((*span, name))
            begin, end = span
            stored = StoredTensor(name, entry["dtype"], tuple(entry["shape"]), shard, base + begin, end - begin)
            shard.tensors[name] = stored
    if not shard.problems:
        _require_cover(shard, sorted(spans), base, head_only=head_only)


def _header(shard: Shard) -> tuple[int, dict[str, Any]] | None:
    """Return the offset of the data, and the entries; None if there are none, with a problem noted."""
    if shard.size < 8:
        shard.refuse(f"{shard.size} bytes, need 8 for the length of a header")
        return None
    length = int.from_bytes(shard.read(0, 8), "little")
    if length > min(TEXT_MAX, shard.size - 8):
        limit = f"at most {min(TEXT_MAX, shard.size - 8)}"
        shard.refuse(f"a header of {length} bytes, need {limit}")
        return None
    text = shard.read(8, length)
    why = "" if text.startswith(b"{") else "it does not start with {"
    try:
        entries = {} if why else strict_json(text.decode())
    except ValueError as error:
        why = reason(error)
    if why:
        shard.refuse(f"the header is not a JSON object in UTF-8 without repeated keys ({why})")
        return None
    return 8 + length, entries


def _span(entry: Any) -> tuple[str, tuple[int, int]]:
    """Return the first fault of a header's entry, empty if it has none, and its first and last offset in bytes."""
    if not (isinstance(entry, dict) and set(entry) == FIELDS):
        return f"fields other than {', '.join(sorted(FIELDS))}", (0, 0)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if why := misshapen(dtype if isinstance(dtype, str) else str(type(dtype)), shape):
        return why, (0, 0)
    if not (isinstance(offsets, list) and len(offsets) == 2 and all(type(item) is int for item in offsets)):
        return "data_offsets that are not two integers", (0, 0)
    begin, end = offsets
    if not 0 <= begin <= end or end >= 1 << 63:
        return f"data_offsets [{quoted(str(begin))}, {quoted(str(end))}]", (0, 0)
    if end - begin != byte_count(dtype, tuple(shape)):
        return f"{dtype} {shape} has {byte_count(dtype, tuple(shape))} bytes, data_offsets has {end - begin}", (0, 0)
    return "", (begin, end)


def _require_cover(shard: Shard, spans: list[tuple[int, int, str]], base: int, *, head_only: bool) -> None:
    """Note overlaps, gaps, and an end that is not the last tensor's."""
    last, before = 0, ""
    starts = [0, *accumulate((end for _, end, _ in spans), max)]
    overlap = any(begin < start for (begin, *_), start in zip(spans, starts, strict=False))
    length = sum(end - begin for begin, end, _ in spans)
    if not overlap and starts[-1] != length and base + length == shard.size:
        shard.refuse(f"offsets up to {starts[-1]}, for {length} bytes of data, which the file has")
        shard.hidden.update(shard.tensors)
        shard.tensors.clear()
        return
    for begin, end, name in spans:
        if begin < last or (begin > last and not overlap):  # behind an overlap, a gap is what it left
            pair = (before, name) if begin < last else (name,)
            what = "overlaps" if begin < last else "leaves a gap after"
            behind = quoted(before) if before else "the header"
            shard.refuse(f"tensor {quoted(name)} at byte {begin} {what} {behind}, which ends at {last}", names=pair)
            for each in pair if begin < last else ():
                shard.tensors.pop(each, None)
                shard.hidden.add(each)
        last, before = max(last, end), name
    if head_only or base + last == shard.size:
        return
    if base + last < shard.size:
        shard.refuse(f"{shard.size - base} bytes of data, the header describes {last}")
        return
    lost = tuple(name for begin, end, name in spans if base + end > shard.size)
    shard.refuse(
        f"the file has {shard.size} bytes, its header promises {base + last}; {len(lost)} tensors are cut off",
        "truncated",
    )
    for name in lost:
        shard.tensors.pop(name, None)
        shard.hidden.add(name)
