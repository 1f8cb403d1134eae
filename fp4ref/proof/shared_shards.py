"""Claims about processes that have parts of a tensor: what shards send, and a common amax."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fp4ref import api
from fp4ref.catalogue import resolve
from fp4ref.formats import F
from fp4ref.proof import whole
from fp4ref.proof.claims import ClaimSubject, Method, ProofClaim, Replayed, Tell
from fp4ref.proof.emulated import PADDED, filled, has_amax, quantizer
from fp4ref.proof.rounds import BlockedError, together
from fp4ref.quantized import DIRECTIONS

MEMBERS = (1, 2, 3)
SENT = {"nvfp4": "nvfp4", "nvfp4-2d": "nvfp4", "mxfp8-e4m3": "mxfp8-e4m3"}  # and the pipeline of its bytes
WIDTHS = (64, 96)
SIZES = (32, 64, 160)  # rows of a shard
USED = (("row",), ("column",), ("row", "column"))
KINDS = ("nvfp4", "nvfp4-2d", "nvfp4-rht", "float8")
MAXIMA = (3.0, 7.0, 0.0, None)  # None: without elements
GROUPS = [*permutations(MAXIMA, 2), *permutations(MAXIMA, 3)]


def _shard(spec: str, used: tuple[str, ...], rows: int, width: int, seed: int) -> Any:
    """Return a shard whose bytes are unlike in each direction."""
    import torch

    made = quantizer(spec)
    made.set_usage(rowwise="row" in used, columnwise="column" in used)
    shard = made(torch.zeros((rows, width)))
    model = filled(SENT[spec], (rows, width), seed).tensor
    for direction in used:
        for part in ("data", "scale_inv"):
            name = f"_{direction}wise_{part}"
            getattr(shard, name).copy_(getattr(model, name))
        if has_amax(spec):
            getattr(shard, f"_amax_{direction}wise").fill_(2.0)
    return shard


def _parts(spec: str, shard: Any, used: tuple[str, ...], rows: int) -> list[NDArray[np.uint8]]:
    """Return the codes and the compact scales of a shard's rows. Rules: TEL-15."""
    if has_amax(spec):
        return [shard._rowwise_data.numpy(), shard._rowwise_scale_inv.numpy()[:rows]]
    found = []
    for direction in used:
        data, scales = (getattr(shard, f"_{direction}wise_{part}").numpy() for part in ("data", "scale_inv"))
        found += [data, scales[: rows if direction == "row" else rows // 32]]
    return found


def _sendable() -> list[tuple[str, tuple[str, ...], int, int, int]]:
    """Return formats, directions, counts of shards, and their rows and columns, that are not refused. Rules: TEL-37."""
    return [
        (spec, used, members, rows, width)
        for spec, used, members, rows, width in product(SENT, USED, MEMBERS, SIZES, WIDTHS)
        if not has_amax(spec) or ("row" in used and (spec == "nvfp4-2d" or "column" not in used))
    ]


def sent(tell: Tell) -> Replayed:
    """Gather shards without a process group, and compare what they send and what it becomes."""
    import torch

    legal = _sendable()
    for count, (spec, used, members, rows, width) in enumerate(legal):
        said = f"{spec}, {' and '.join(used)}, {members} shards of [{rows}, {width}]"
        shards = [_shard(spec, used, rows, width, 7 * place) for place in range(members)]
        wanted = [_parts(spec, shard, used, rows) for shard in shards]
        shape = torch.Size((members * rows, width))
        given = [shard.fsdp_pre_all_gather(None, shape, None, None, None) for shard in shards]
        for place, ((mine, _), parts) in enumerate(zip(given, wanted, strict=True)):
            got = [part.numpy() for part in mine]
            if [part.shape for part in got] != [part.shape for part in parts]:
                return Replayed(count, f"{said}: {[list(part.shape) for part in got]} are sent")
            if not all(map(np.array_equal, got, parts)):
                return Replayed(count, f"{said}: shard {place} sends other bytes")
        gathered = tuple(torch.cat(parts) for parts in zip(*(mine for mine, _ in given), strict=True))
        tensor, _ = shards[0].fsdp_post_all_gather(gathered, given[0][1], torch.bfloat16)
        became = _parts(spec, tensor, used, members * rows)
        if not all(map(np.array_equal, became, map(np.concatenate, zip(*wanted, strict=True)))):
            return Replayed(count, f"{said}: the whole has other bytes than its shards")
        tell((count + 1) / len(legal))
    return Replayed(len(legal))


def _member(place: int, largest: float | None) -> NDArray[Any]:
    """Return a process's tensor of 32 rows with a largest magnitude, of whose transform the largest is another's."""
    import ml_dtypes

    if largest is None:
        return np.zeros((0, 64), ml_dtypes.bfloat16)
    x = np.sin(np.arange(32 * 64, dtype=np.float64) * (place + 1)).reshape(32, 64)
    x[place, 3 * place] = -1.0
    return (x * largest).astype(ml_dtypes.bfloat16)


def amaxes(tell: Tell) -> Replayed:
    """Quantize in groups, by each kind of quantizer, and compare with the golden model under the largest amax."""
    from fp4ref.te import Float8CurrentScalingQuantizer

    cases = [*product(KINDS, GROUPS)]
    for count, (kind, group) in enumerate(cases):
        inputs = [_member(place, largest) for place, largest in enumerate(group)]

        def run(x: NDArray[Any], kind: str = kind) -> Any:
            made = Float8CurrentScalingQuantizer() if kind == "float8" else quantizer(kind)
            made.with_amax_reduction, made.amax_reduction_group = True, "group"
            return made(whole._array(x, ClaimSubject.TORCH))

        said = f"{kind}, largest magnitudes {[*group]}"
        try:
            tensors = together([lambda x=x: run(x) for x in inputs])  # type: ignore[misc]
        except BlockedError as error:
            return Replayed(count, f"{said}: {error}")
        wrong = (_per_tensor if kind == "float8" else _per_block)(kind, inputs, tensors)
        if wrong:
            return Replayed(count, f"{said}: {wrong}")
        tell((count + 1) / len(cases))
    return Replayed(len(cases))


def _per_tensor(kind: str, inputs: list[NDArray[Any]], tensors: list[Any]) -> str:
    """Return the first member whose scale or codes are not the largest amax's; or empty. Rules: TEL-10, TEL-21."""
    largest = F(max(np.abs(x.astype(F)).max(initial=0) for x in inputs))
    scale = F(448) / largest if largest else F(1)
    for place, (x, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        if tensor._scale_inv.numpy().tobytes() != np.array([F(1) / scale], F).tobytes():
            return f"member {place} has the scale {1 / tensor._scale_inv.item()}"
        codes = resolve("mxfp8-e4m3").element.encode(x.astype(F) * scale)
        if not np.array_equal(tensor._data.numpy(), codes):
            return f"member {place} has other codes"
    return ""


def _per_block(kind: str, inputs: list[NDArray[Any]], tensors: list[Any]) -> str:
    """Return the first member with other bytes than the golden model's under the largest amax. Rules: TEL-10."""
    for direction in DIRECTIONS:
        alone = [api.quantize(x, kind, direction, backend="numpy").direction(direction)[0] for x in inputs if x.size]
        largest = max((part.amax[0] for part in alone), default=F(0))
        for place, (x, tensor) in enumerate(zip(inputs, tensors, strict=True)):
            amax = getattr(tensor, f"_amax_{direction}wise").item()
            if amax != largest:
                return f"member {place} has the amax {amax} of {direction}s, needs {largest}"
            if not x.size:
                continue
            q = api.quantize(x, kind, direction, "linear_padded", amax=largest, backend="numpy")
            want = q.direction(direction)[0]
            got = [getattr(tensor, f"_{direction}wise_{part}").numpy().tobytes() for part in ("data", "scale_inv")]
            if got != [want.data.tobytes(), want.scales.tobytes()]:
                return f"member {place} has other {direction}s"
    return ""


def claims() -> Iterator[ProofClaim]:
    """Yield the claims about processes."""
    shared: dict[str, Any] = {"method": Method.ARGUMENT, "subject": ClaimSubject.TORCH}
    yield ProofClaim(
        name="shards-sent/torch",
        rules=("TEL-15",),
        statement="A shard sends the codes and the scales of its rows; these, joined, are the whole's.",
        domain="three formats, the directions that each may have, up to three shards of three sizes, two widths",
        size=len(_sendable()),
        decide=sent,
        covers=(
            PADDED,
            *(
                f"fp4ref.te.{module}:{owner}.fsdp_{step}_all_gather"
                for module, owner in (("nvfp4_tensor", "NVFP4Tensor"), ("mxfp8_tensor", "MXFP8Tensor"))
                for step in ("pre", "post")
            ),
        ),
        reduction="buffers are sent whole, so shards whose buffers are unlike decide which ones are sent",
        **shared,
    )
    yield ProofClaim(
        name="group-amax/torch",
        rules=("TEL-10",),
        statement="Every member of a group quantizes with the largest amax of rows and of columns; one without "
        "elements joins with 0.",
        domain="four quantizers, two or three members of largest magnitude 3, 7, 0 or without elements, every order",
        size=len(KINDS) * len(GROUPS),
        decide=amaxes,
        covers=(
            PADDED,
            "fp4ref.te.nvfp4_quantizer:NVFP4Quantizer.fill",
            "fp4ref.te.float8_quantizer:Float8CurrentScalingQuantizer.make",
        ),
        reduction="a member only sees the largest amax of all, so members that have it at each place decide",
        **shared,
    )
