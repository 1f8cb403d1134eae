"""Checks of shapes against the sizes of the model that its configuration declares."""

from __future__ import annotations

from collections.abc import Iterator

from fp4ref.checkpoints.check_presence import EXPERT_KEYS, numberless
from fp4ref.checkpoints.check_shapes import BY_HIDDEN, sound
from fp4ref.checkpoints.configuration import CONFIG
from fp4ref.checkpoints.findings import ERROR, LintFinding, finding
from fp4ref.checkpoints.groups import Recognized, TensorGroup

JOINED = (  # modules whose rows (-2) or columns (-1) are as many
    (("gate_proj", -2), ("up_proj", -2), ("down_proj", -1)),
    (("q_proj", -2), ("o_proj", -1)),
    (("k_proj", -2), ("v_proj", -2)),
)
VOCABULARIES = ("embed_tokens.weight", "lm_head.weight")
NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "model.norm.weight")
ROUTERS = (".mlp.gate.weight", ".router.weight", ".block_sparse_moe.gate.weight")


def check_geometry(found: Recognized) -> Iterator[LintFinding]:
    """Compare shapes with the declared sizes of the model, where most tensors agree with these. Rules: CKP-10."""
    experts = next((found.config.geometry.get(key) for key in EXPERT_KEYS if key in found.config.geometry), None)
    wrong = [
        group.parts["codes"].name
        for group in found.groups
        if isinstance(experts, int) and len(group.shape) == 3 and group.shape[0] != experts and sound(group)
    ]
    if wrong:
        yield finding("shape", ERROR, wrong, f"the number of matrices is not the declared {experts} experts")
    for ends, what, least in (
        (VOCABULARIES, "vocab_size", found.config.geometry.get("vocab_size")),
        (ROUTERS, "number of experts", experts),
    ):
        plain = {name: each.shape for name, each in found.plain.items() if name.endswith(ends) and len(each.shape) == 2}
        short = [name for name, shape in plain.items() if isinstance(least, int) and shape[0] < least]
        short = [name for name in short if not _has_as_many(found, name, plain[name][0])]
        if short and found.checkpoint.kind != ".gguf":
            yield finding("shape", ERROR, short, f"{plain[short[0]][0]} rows; the declared {what} is {least}")
    hidden = found.config.geometry.get("hidden_size")
    if not isinstance(hidden, int):
        return
    yield from _beside(found, hidden)
    reading = [group for group in found.groups if group.name.rpartition(".")[2] in BY_HIDDEN and len(group.shape) == 2]
    good = [group for group in reading if group.columns == hidden]
    yield from _declared_sizes(found, reading, hidden)
    bad = _like(good, [group for group in reading if group.columns != hidden and sound(group)])
    if bad and 2 * len(good) > len(reading):
        names = [group.parts["codes"].name for group in bad]
        yield finding("shape", ERROR, names, f"{bad[0].columns} columns; the declared hidden_size is {hidden}")
    yield from _rows(found, hidden)


def _beside(found: Recognized, hidden: int) -> Iterator[LintFinding]:
    """Yield norms and vocabularies of another width than the hidden state, where most of them have its width."""
    ends = (*NORMS, *VOCABULARIES)
    plain = {name: each for name, each in found.plain.items() if name.endswith(ends) and each.shape}
    wrong = [name for name, each in plain.items() if each.shape[-1] != hidden]
    if wrong and 2 * len(wrong) < len(plain) and found.checkpoint.kind != ".gguf":
        text = f"{plain[wrong[0]].shape[-1]} columns; the declared hidden_size is {hidden}"
        yield finding("shape", ERROR, wrong, text)


def _has_as_many(found: Recognized, router: str, experts: int) -> bool:
    """Return True if the experts beside a router are as many as its rows: then experts are missing, or declared."""
    head = router.rpartition(".weight")[0].rpartition(".")[0]
    numbers = {
        name.removeprefix(f"{head}.experts.").partition(".")[0]
        for name in found.checkpoint.tensors
        if name.startswith(f"{head}.experts.")
    }
    return len(numbers) == experts > 0


def _declared_sizes(found: Recognized, reading: list[TensorGroup], hidden: int) -> Iterator[LintFinding]:
    """Yield a declared size that no tensor has, where all of them agree on another one."""
    if any(not sound(group) for group in reading):
        return
    widths = {group.columns for group in reading}
    norms = {tensor.shape for name, tensor in found.plain.items() if name.endswith("layernorm.weight")}
    if len(widths) == 1 and norms == {(*widths,)} and hidden not in widths:
        names = [CONFIG, *(group.parts["codes"].name for group in reading)]
        yield finding("shape", ERROR, names, f"all have {widths.pop()} columns; the declared hidden_size is {hidden}")
        return
    sizes = found.config.geometry
    heads, keys, width = (sizes.get(key) for key in ("num_attention_heads", "num_key_value_heads", "head_dim"))
    if not (isinstance(heads, int) and isinstance(keys, int) and heads > 0):
        return
    width = width if isinstance(width, int) else hidden // heads
    rows = {
        last: {group.rows for group in reading if group.name.endswith(last)} for last in ("q_proj", "k_proj", "v_proj")
    }
    alike = rows["k_proj"] == rows["v_proj"] and len(rows["k_proj"]) == 1
    if rows["q_proj"] == {heads * width} and alike and keys * width not in rows["k_proj"]:
        (stored,) = rows["k_proj"]
        names = [group.parts["codes"].name for group in reading if group.name.endswith(("k_proj", "v_proj"))]
        text = f"all have {stored} rows; {keys} key and value heads of {width} are declared"
        yield finding("shape", ERROR, [CONFIG, *names], text)


def _rows(found: Recognized, hidden: int) -> Iterator[LintFinding]:
    """Compare rows with the declared sizes, and columns with the rows of the modules that these read.

    Another module of the same name must agree with the number. A module that does not is of another size if the
    modules around it are: then some key of the model's own says so.
    """
    sizes = found.config.geometry
    heads, width = sizes.get("num_attention_heads"), sizes.get("head_dim")
    if isinstance(heads, int) and heads > 0 and not isinstance(width, int):
        width = hidden // heads
    keys = sizes.get("num_key_value_heads", heads)
    declared = {
        "gate_proj": sizes.get("intermediate_size"),
        "up_proj": sizes.get("intermediate_size"),
        "o_proj": hidden,
        "down_proj": hidden,
        "q_proj": heads * width if isinstance(heads, int) and isinstance(width, int) else None,
        "k_proj": keys * width if isinstance(keys, int) and isinstance(width, int) else None,
    }
    declared["v_proj"] = declared["k_proj"]
    read = {"o_proj": declared["q_proj"], "down_proj": declared["up_proj"]}
    for what, axis, numbers in (("rows", -2, declared), ("columns", -1, read)):
        for last, number in numbers.items():
            groups = [each for each in found.groups if each.name.rpartition(".")[2] == last and len(each.shape) == 2]
            good = [group for group in groups if group.shape[axis] == number]
            wrong = [group for group in groups if group.shape[axis] != number and ".experts." not in group.name]
            wrong = [group for group in _like(good, wrong) if sound(group) and not _agreed(found, group, last, axis)]
            bad = [group.parts["codes"].name for group in wrong]
            if good and bad and len(good) >= len(bad):
                yield finding("shape", ERROR, bad, f"the number of {what} is not the declared {number}")


def _like(good: list[TensorGroup], others: list[TensorGroup]) -> list[TensorGroup]:
    """Return the groups whose names differ from some good one's in numbers only; experts and towers have own sizes."""
    patterns = {numberless(group.name) for group in good}
    return [group for group in others if numberless(group.name) in patterns]


def _agreed(found: Recognized, group: TensorGroup, last: str, axis: int) -> bool:
    """Return True if all modules of the same block that share a size with this one have its size."""
    joined = next((each for each in JOINED if (last, axis) in each), ())
    head = group.name.removesuffix(last)
    beside = {each.name: each for each in found.groups if each.name.startswith(head) and len(each.shape) == 2}
    sizes = [beside[head + other].shape[way] for other, way in joined if other != last and head + other in beside]
    return bool(sizes) and all(size == group.shape[axis] for size in sizes)
