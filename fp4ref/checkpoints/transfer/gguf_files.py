"""GGUF files as llama.cpp loads them: the names of their tensors, and the metadata.

Rules: CNV-14, CNV-19, CNV-20.
"""

from __future__ import annotations

import json
from typing import Any

from fp4ref.checkpoints.gguf_header import ALIGNMENT
from fp4ref.checkpoints.gguf_names import (
    ARCHITECTURES,
    SCALINGS,
    GgufArchitecture,
    model_numbers,
    rope_scaling,
    why_not,
)
from fp4ref.checkpoints.gguf_views import DTYPES_KEPT
from fp4ref.checkpoints.gguf_vocabulary import Vocabulary, vocabulary_of
from fp4ref.checkpoints.groups import Recognized
from fp4ref.checkpoints.origins import ORIGIN
from fp4ref.checkpoints.transfer.gguf_units import GgufUnit, for_llama_cpp
from fp4ref.checkpoints.transfer.plan import ConversionPlan
from fp4ref.checkpoints.transfer.shard_files import gguf_array, gguf_value
from fp4ref.checkpoints.transfer.units import Unit

QUANTIZATION_VERSION = 2  # of ggml's block types
FILE_TYPES = {"gguf.mxfp4": 38, "gguf.nvfp4": 39}  # of llama.cpp
NO_VOCABULARY = (
    "the GGUF has no vocabulary: llama.cpp loads the model, which then takes and returns numbers of tokens, no text; "
)
AS_THEY_ARE = (
    "the GGUF holds tensors under the source's names, without hyperparameters and vocabulary: ggml's readers take "
    "them, llama.cpp loads no model from it"
)


def named_for_gguf(plan: ConversionPlan, found: Recognized, units: list[Unit]) -> list[Unit]:
    """Return units with the names that llama.cpp asks for; as they are, with a remark, where none are known.

    Rules: CNV-19.
    """
    if found.checkpoint.kind == ".gguf":
        return units
    config = found.checkpoint.config
    architecture = architecture_of(found)
    if config is None or architecture is None:
        plan.remarks.append(f"{AS_THEY_ARE}: {why_not(config)}")
        return units
    return for_llama_cpp(units, architecture, config)


def architecture_of(found: Recognized) -> GgufArchitecture | None:
    """Return llama.cpp's architecture of a model; None if none is known."""
    config = found.checkpoint.config
    return None if config is None or why_not(config) else ARCHITECTURES[config["model_type"]]


def carried(plan: ConversionPlan, found: Recognized) -> dict[str, bytes]:
    """Return the metadata that one GGUF made of one keeps: all of it, with its types. Rules: CNV-36."""
    if found.checkpoint.kind != ".gguf" or len(found.checkpoint.shards) + len(plan.shards) > 2:
        return {}
    (shard,) = found.checkpoint.shards
    kept = {key: place for key, place in shard.entries.items() if key not in {ORIGIN, ALIGNMENT}}
    return {key: shard.read(start, count) for key, (start, count) in kept.items()}


def gguf_metadata(plan: ConversionPlan, found: Recognized) -> dict[str, str | bytes]:
    """Return the metadata of a GGUF: the source's if that is one, else what every reader requires. Rules: CNV-71."""
    own: dict[str, str | bytes] = {
        "general.architecture": str((found.checkpoint.config or {}).get("model_type", "unknown")),
        "general.quantization_version": gguf_value(QUANTIZATION_VERSION),
    }
    architecture = architecture_of(found)
    if architecture is not None and found.checkpoint.kind != ".gguf":
        own |= model_metadata(architecture, found.checkpoint.config or {})
        own["general.file_type"] = gguf_value(FILE_TYPES[plan.conventions.most_common(1)[0][0]])
        own[DTYPES_KEPT] = json.dumps(_narrowed(plan), sort_keys=True)
    return own | carried(plan, found)


def model_metadata(architecture: GgufArchitecture, config: dict[str, Any]) -> dict[str, str | bytes]:
    """Return the hyperparameters of a model with llama.cpp's keys. Rules: CNV-19."""
    name, numbers = architecture.name, model_numbers(config)
    found: dict[str, str | bytes] = {
        "general.architecture": name,
        "general.type": "model",
    }
    for each in architecture.numbers:
        value = next(numbers[key] for key in each.config if numbers.get(key) is not None)
        found[f"{name}.{each.key}"] = gguf_value(value, each.form)
    scaling = rope_scaling(config)
    if scaling and SCALINGS[scaling["rope_type"]]:
        found[f"{name}.rope.scaling.type"] = scaling["rope_type"]
        for key, own, form in SCALINGS[scaling["rope_type"]]:
            value = float(scaling[own]) if form == "f" else int(scaling[own])
            found[f"{name}.rope.scaling.{key}"] = gguf_value(value, form)
    return found


def vocabulary_metadata(plan: ConversionPlan, found: Recognized) -> dict[str, str | bytes]:
    """Return the vocabulary of a model with llama.cpp's keys, which the first file has; say where there is none.

    Rules: CNV-20.
    """
    if architecture_of(found) is None or found.checkpoint.kind == ".gguf":
        return {}
    made = vocabulary_of(found.checkpoint.path, found.checkpoint.config or {})
    if isinstance(made, str):
        plan.remarks.append(NO_VOCABULARY + made)
        return {"tokenizer.ggml.model": "no_vocab"}
    plan.remarks += made.remarks
    return vocabulary_keys(made)


def vocabulary_keys(vocabulary: Vocabulary) -> dict[str, str | bytes]:
    """Return a vocabulary as metadata of GGUF. Rules: CNV-20."""
    found: dict[str, str | bytes] = {
        "model": vocabulary.model,
        "pre": vocabulary.pre,
        "tokens": gguf_array(vocabulary.tokens),
        "token_type": gguf_array(vocabulary.types, "i"),
    }
    if vocabulary.scores:
        found["scores"] = gguf_array(vocabulary.scores, "f")
    if vocabulary.model == "gpt2":
        found["merges"] = gguf_array(vocabulary.merges)
    found |= {key: gguf_value(number) for key, number in vocabulary.special.items()}
    found |= {key: gguf_value(flag, "?") for key, flag in vocabulary.flags.items()}
    keys = {f"tokenizer.ggml.{key}": value for key, value in found.items()}
    return keys | ({"tokenizer.chat_template": vocabulary.template} if vocabulary.template else {})


def split_metadata(plan: ConversionPlan, number: int) -> dict[str, str | bytes]:
    """Return the metadata of one of several GGUF files: its number, their count, all tensors. Rules: CNV-39."""
    if len(plan.shards) == 1:
        return {}
    tensors = sum(len(unit.tensors()) for shard in plan.shards for unit in shard.units)
    return {
        "split.no": gguf_value(number, "H"),
        "split.count": gguf_value(len(plan.shards), "H"),
        "split.tensors.count": gguf_value(tensors, "i"),
    }


def _narrowed(plan: ConversionPlan) -> dict[str, str]:
    """Return the element types, as the source has them, of tensors that became float32, by the names in GGUF.

    Rules: CNV-63.
    """
    units = (unit for shard in plan.shards for unit in shard.units if isinstance(unit, GgufUnit))
    return {each.name: each.source.dtype for unit in units for each in unit.made if each.widened}
