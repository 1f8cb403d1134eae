"""The origin of a layout: its owner, the version that was looked at, how, and who reads buffers of it."""

from __future__ import annotations

from typing import NamedTuple

from fp4ref.layout.value import Layout

RUN, TRANSCRIBED, READ = "its code was run", "its code was run after a transcription", "its source was read"


class Owner(NamedTuple):
    """A project, and the version of it whose layouts are recorded here."""

    project: str
    version: str


OWNERS = {
    "aiter": Owner("ROCm/aiter", "e4048607a (2026-08-22)"),
    "comfy": Owner("Comfy-Org/comfy-kitchen", "7d86acf"),
    "cuda": Owner("NVIDIA CUDA driver API", "13"),
    "cutlass": Owner("NVIDIA/cutlass", "7107b0553 (2026-08-20)"),
    "deepgemm": Owner("deepseek-ai/DeepGEMM", "54e226124 (2026-06-23)"),
    "flashinfer": Owner("flashinfer-ai/flashinfer", "fb28d7242 (2026-08-22)"),
    "ggml": Owner("ggml-org/ggml", "d99724f2 (2026-08-21)"),
    "rocm": Owner("ROCm/rocm-libraries", "337e7289"),
    "te": Owner("NVIDIA/TransformerEngine", "d0067d0da (2026-08-22)"),
    "torchao": Owner("pytorch/ao", "36027d82d (2026-08-21)"),
    "triton": Owner("triton-lang/triton", "2026"),
    "vllm": Owner("vllm-project/vllm", "0.33.0"),
}


class Origin(NamedTuple):
    """The provenance of a layout. checked: how it was compared with its owner; note: the function that stores so."""

    owner: str
    version: str
    checked: str
    note: str
    consumer: str

    def __str__(self) -> str:
        return f"{self.owner} {self.version}; {self.checked}"


class Listed(NamedTuple):
    """A line of the catalogue: a layout and its origin.

    owner: a key of `OWNERS`; after an @, another version than the owner's.
    """

    name: str
    text: str
    owner: str
    checked: str
    note: str
    consumer: str
    rule: str = "LAY-18"

    @property
    def layout(self) -> Layout:
        """The layout."""
        return Layout(self.name, self.text, self.rule)

    @property
    def origin(self) -> Origin:
        """Its origin."""
        key, _, version = self.owner.partition("@")
        project, usual = OWNERS[key]
        return Origin(project, version or usual, self.checked, self.note, self.consumer)
