"""Consumers: the programs that load checkpoints, and how each defect breaks them. Rules: CKP-13, CKP-32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from fp4ref.catalogue import add_kind
from fp4ref.checkpoints.findings import NOTE, WARNING, LintFinding
from fp4ref.names import Names

FUSES = "keeps one scale for the fused module, so that the other members decode wrongly"
HARMLESS = ("producer-bytes",)  # codes that break no consumer: the decoded values are the same
BREAKS = {  # how a defect breaks every consumer that loads the convention
    "header": "refuses the file",
    "truncated": "refuses the file, or reads past its end",
    "index": "fails while loading, or keeps the memory of the lost tensors as it was allocated",
    "duplicate-tensor": "takes the tensor of the shard that it reads last",
    "missing-tensor": "fails while loading, or computes with memory that nothing was loaded into",
    "orphan-tensor": "refuses the unexpected name, or drops the tensor",
    "dtype": "refuses the type, or converts the stored bytes as numbers",
    "shape": "refuses the shape, or broadcasts it over the wrong axis",
    "group-size": "applies scales to the wrong elements, or refuses the shape",
    "config": "chooses the loader of another format",
    "scale-nan": "computes NaN for every row with such a block",
    "scale-negative": "inverts the signs of these blocks, or drops the sign bit",
    "scale-zero": "computes zero for these blocks",
    "scale-layout": "applies scales to the wrong blocks",
    "scale-value-cast": "decodes values that are wrong by powers of two",
    "unwritten": "computes garbage for these rows",
    "bit-damage": "decodes single wrong values",
    "saturation": "computes with clipped weights",
    "range-unused": "computes with coarser weights than the format has",
    "value-factor": "computes every output of the module times that constant",
    "scale-direction": "decodes values that are wrong by many orders of magnitude",
    "global-scale-value": "computes zero, NaN or infinity for the whole module",
    "input-scale": "quantizes activations to zero, NaN or saturated values",
    "kv-scale": "quantizes keys or values with a wrong scale",
    "nibble-order": "exchanges the elements of every pair of columns",
    "element-order": "multiplies weights with the wrong inputs",
    "row-order": "writes outputs to the wrong places",
    "code-histogram": "decodes codes of another number format",
    "element-nan": "computes NaN for these rows",
    "padding": "adds stale values where its kernel reads whole tiles",
    "value-mismatch": "computes with other weights than the source's",
}


@dataclass(frozen=True, kw_only=True)
class Consumer:
    """A program that loads checkpoints.

    name: as `--consumer` takes it. loads: families or names of conventions. breaks: by code, how it breaks where that
    differs from other consumers.

    Rules: CKP-32.
    """

    name: str
    loads: tuple[str, ...]
    breaks: Mapping[str, str] = field(default_factory=dict, hash=False)

    def takes(self, convention: str) -> bool:
        """Return True if this consumer has a loader for a convention or family."""
        return bool({convention, convention.partition(".")[0]} & {*self.loads})

    def how(self, code: str) -> str:
        """Return how a defect breaks this consumer; "" if it does not."""
        return self.breaks.get(code, BREAKS.get(code, ""))


CONSUMERS: Names[Consumer] = Names("consumer")
add_kind(Consumer, CONSUMERS)
for _value, _source in (
    (
        Consumer(
            name="vllm",
            loads=("modelopt", "compressed-tensors", "gpt-oss.mxfp4", "deepseek", "torchao"),
            breaks={"fused-global-scale": FUSES, "kv-scale": "reads the cache with scale 1.0, or with the stored one"},
        ),
        "vllm 0.33.0 and its issue threads 54974, 55073, 7519 of verl",
    ),
    (
        Consumer(
            name="sglang",
            loads=("modelopt", "compressed-tensors", "gpt-oss.mxfp4", "deepseek"),
            breaks={"fused-global-scale": FUSES, "kv-scale": "loads it as it is and writes the cache with it"},
        ),
        "issue threads 27588, 29151, 40243 of sglang",
    ),
    (
        Consumer(
            name="tensorrt-llm",
            loads=("modelopt", "gpt-oss.mxfp4", "deepseek"),
            breaks={"fused-global-scale": "takes the maximum, so that members with smaller scales decode too large"},
        ),
        "issue thread 18772 of TensorRT-LLM",
    ),
    (
        Consumer(name="transformers", loads=("compressed-tensors", "gpt-oss.mxfp4", "deepseek.fp8", "torchao")),
        "transformers 5.23.0",
    ),
    (Consumer(name="gpt-oss", loads=("gpt-oss.original",)), "gpt-oss 7b58334 (2026-07-24)"),
    (Consumer(name="torchao", loads=("torchao",)), "torchao 0.18.0"),
    (Consumer(name="comfyui", loads=("comfy",)), "comfy-kitchen 0.2.40"),
    (Consumer(name="mlx", loads=("mlx",)), "mlx 0.32.4"),
    (Consumer(name="llama.cpp", loads=("gguf",)), "ggml d99724f2 (2026-08-21), gguf 0.19.0"),
    (Consumer(name="transformer-engine", loads=("te",)), "TransformerEngine d0067d0da (2026-08-22)"),
    (Consumer(name="fp4ref", loads=("fp4ref", "te")), "this standard"),
):
    CONSUMERS.register(_value, _source)


def with_consumers(each: LintFinding, conventions: list[str], chosen: str | None = None) -> LintFinding:
    """Return a finding with the consumers of some conventions that it breaks.

    chosen: this one alone. A warning that does not break it becomes a note, because the other consumers load it.

    Rules: CKP-32, CKP-38.
    """
    if each.code in HARMLESS:
        return each
    given = each.consumers if each.code == "exclude-list" and each.severity == WARNING else {}
    how = dict(given)
    for consumer in () if given else CONSUMERS.values():
        if any(map(consumer.takes, conventions)) and consumer.how(each.code):
            how[consumer.name] = each.consumers.get(consumer.name) or consumer.how(each.code)
    if chosen is not None:
        spared = each.severity == WARNING and how and chosen not in how
        return replace(
            each,
            severity=NOTE if spared else each.severity,
            consumers={name: text for name, text in how.items() if name == chosen},
        )
    return replace(each, consumers=how)
