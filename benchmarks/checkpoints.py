"""Measure the commands for checkpoints as ratios to `cat` of the same files, in one run.

Each command runs in a process of its own, from the page cache; its processor time and its largest resident memory are
those of that process and its children. Commands alternate with `cat`, A B A B, and the medians give the ratios.
`quantize` and `lint` are also compared with the cpu backend alone: by processor time, each without its start, which is
measured on a checkpoint of two small matrices, and each with the same number of threads, FP4REF_NUM_THREADS. "To
memory", the backend reads the same matrices and writes nothing. "Page cache to page cache", it gets them from mapped
files and writes its bytes to files; this is the measure of `quantize`. TMPDIR=/dev/shm leaves the disk out.
Modules are compiled once, as those of an installed package are. Where llm-compressor or modelopt is installed, its
conversion of the same files is measured too. Rates count the bytes of the checkpoint that is read.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from statistics import median
from typing import Any, NamedTuple

import click
import ml_dtypes
import numpy as np

import fp4ref
from fp4ref.files import write_tensors

MIB = 1 << 20
ROWS, COLUMNS = 4096, 4096
TOGETHER = 4  # matrices of a shard
PEERS = {  # by name: the package, and a script that converts the directory of its first argument into its second
    "llm-compressor, model_free_ptq": (
        "llmcompressor",
        """
import sys
from llmcompressor import model_free_ptq
model_free_ptq(sys.argv[1], sys.argv[2], scheme="NVFP4A16", ignore=["lm_head"], max_workers=1, device="cpu")
""",
    ),
    "modelopt, NVFP4QTensor": (
        "modelopt",
        """
import sys
from pathlib import Path
from modelopt.torch.quantization.qtensor import NVFP4QTensor
from safetensors.torch import load_file, save_file
Path(sys.argv[2]).mkdir()
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    tensors = {}
    for name, weight in load_file(path).items():
        quantized, scale, scale_2 = NVFP4QTensor.quantize(weight, 16)
        tensors |= {name: quantized._quantized_data, f"{name}_scale": scale, f"{name}_scale_2": scale_2}
    save_file(tensors, Path(sys.argv[2]) / path.name)
""",
    ),
}
INSTALLED = {"llmcompressor": "llmcompressor", "modelopt": "nvidia-modelopt", "numpy": "numpy"}  # beside torch
TWICE = ", 2 workers"
ALL, MAPPED = "cpu backend alone, to memory", "cpu backend alone, page cache to page cache"
COMPARED = ("quantize", "lint", ALL, MAPPED, *PEERS)
ALONE = """
import sys, fp4ref
from fp4ref.files import open_tensors
from pathlib import Path
for path in sorted(Path(sys.argv[1]).glob("*.safetensors")):
    with open_tensors(path) as file:
        for name in file.names:
            fp4ref.quantize(file.read(name), "modelopt.nvfp4", backend="cpu")
"""
ALONE_MAPPED = """
import json, struct, sys, fp4ref, ml_dtypes, numpy as np
from pathlib import Path
for number, path in enumerate(sorted(Path(sys.argv[1]).glob("*.safetensors"))):
    with path.open("rb") as file, open(f"{sys.argv[2]}-{number}", "wb", buffering=0) as out:
        (length,) = struct.unpack("<Q", file.read(8))
        header, mapped = json.loads(file.read(length)), np.memmap(file, np.uint8, "r")
        for name, entry in header.items():
            if name != "__metadata__":
                begin, end = (8 + length + place for place in entry["data_offsets"])
                values = mapped[begin:end].view(ml_dtypes.bfloat16).reshape(entry["shape"])
                row = fp4ref.quantize(values, "modelopt.nvfp4", backend="cpu").row
                out.write(row.data.data)
                out.write(row.scales.data)
"""


class Cost(NamedTuple):
    """The cost of a process: seconds of wall and of processors, and its largest resident memory in bytes."""

    wall: float
    processor: float
    memory: int


def cost(command: Sequence[str]) -> Cost:
    """Run a command, and return its cost with that of its children."""
    begun = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise click.ClickException(f"{' '.join(command)[:200]} ended with {process.returncode}")
    return Cost(time.perf_counter() - begun, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)


def write_model(folder: Path, megabytes: int, shape: tuple[int, int] = (ROWS, COLUMNS)) -> int:
    """Write shards of bfloat16 matrices and a configuration; return the bytes of the matrices."""
    rng = np.random.default_rng(1)
    folder.mkdir()
    values = (rng.standard_normal(shape, np.float32) * np.float32(0.02)).astype(ml_dtypes.bfloat16)
    count = max(megabytes * MIB // values.nbytes, 2)
    index: dict[str, str] = {}
    names = [f"model.layers.{number}.mlp.down_proj.weight" for number in range(count)]
    for begin in range(0, count, TOGETHER):
        part = names[begin : begin + TOGETHER]
        file = f"model-{begin // TOGETHER + 1:05}-of-{-(-count // TOGETHER):05}.safetensors"
        entries = [(name, "BF16", values.shape) for name in part]
        write_tensors(
            folder / file, entries, {"format": "pt"}, [np.roll(values, 7 * (begin + n), 0) for n in range(len(part))]
        )
        index |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    sizes = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": count,
        "hidden_size": shape[0],
        "intermediate_size": shape[1],
        "num_attention_heads": 32,
        "vocab_size": 32,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
    }
    (folder / "config.json").write_text(json.dumps(sizes))
    return count * values.nbytes


def cases(source: Path, quantized: Path, folder: Path, number: int) -> dict[str, tuple[Path, list[str]]]:
    """Return commands by name, each with the checkpoint that it reads. folder: new, for what they write."""
    tool = [sys.executable, "-m", "fp4ref"]
    quantize = [*tool, "quantize", str(source), "--to", "modelopt", "--spec", "modelopt.nvfp4"]
    found = {
        "quantize": (source, [*quantize, "-o", str(folder / f"q{number}")]),
        "quantize, 2 workers": (source, [*quantize, "--workers", "2", "-o", str(folder / f"w{number}")]),
        ALL: (source, [sys.executable, "-c", ALONE, str(source)]),
        MAPPED: (source, [sys.executable, "-c", ALONE_MAPPED, str(source), str(folder / f"a{number}")]),
        "lint": (quantized, [*tool, "lint", str(quantized), "--consumer", "vllm"]),
        "lint --source": (quantized, [*tool, "lint", str(quantized), "--source", str(source)]),
        "lint, 2 workers": (quantized, [*tool, "lint", str(quantized), "--consumer", "vllm", "--workers", "2"]),
        "lint --header-only": (quantized, [*tool, "lint", str(quantized), "--header-only", "--consumer", "vllm"]),
        "convert": (quantized, [*tool, "convert", str(quantized), str(folder / f"c{number}"), "--to", "torchao"]),
        "convert to gguf": (quantized, [*tool, "convert", str(quantized), str(folder / f"g{number}"), "--to", "gguf"]),
    }
    for name, (package, script) in PEERS.items():
        if find_spec(package) is not None:
            found[name] = source, [sys.executable, "-c", script, str(source), str(folder / f"{package}{number}")]
    return found


@click.command()
@click.option("--megabytes", default=512, show_default=True, help="Size of the source in high precision.")
@click.option("--repeat", default=3, show_default=True)
@click.option("--only", multiple=True, help="Measure only cases whose name contains this text, or another one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(megabytes: int, repeat: int, only: tuple[str, ...], as_json: bool) -> None:
    """Measure lint, quantize and convert from the page cache."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
        shapes = {"": (megabytes, (ROWS, COLUMNS)), "start": (0, (64, 64))}
        for kind, (size, shape) in shapes.items():
            with get_context("spawn").Pool(1) as pool:  # this process stays small: children inherit its largest memory
                pool.apply(write_model, (folder / f"source{kind}", size, shape))
            tool = [sys.executable, "-m", "fp4ref", "quantize", str(folder / f"source{kind}"), "--to", "modelopt"]
            cost([*tool, "--spec", "modelopt.nvfp4", "-o", str(folder / f"quantized{kind}")])
        taken: dict[str, list[tuple[Cost, Cost, int]]] = {}
        for number in range(repeat):
            for kind in shapes:
                out = folder / f"out{kind}{number}"
                out.mkdir()
                for name, (read, command) in cases(
                    folder / f"source{kind}", folder / f"quantized{kind}", out, number
                ).items():
                    if any(text in name for text in only or ("",)) and (not kind or name in COMPARED):
                        files = sorted(map(str, read.glob("*.safetensors")))
                        size = sum(Path(each).stat().st_size for each in files)
                        runs = taken.setdefault(f"{name}, {kind}" if kind else name, [])
                        runs.append((cost(["cat", *files]), cost(command), size))
                rmtree(out)
        results = {name: summary(runs) for name, runs in taken.items()}
    if as_json:
        rows = [{"case": name, **each} for name, each in results.items()]
        record = {"setting": facts(megabytes, repeat), "ratios": ratios(results), "results": rows}
        click.echo(json.dumps(record, indent=1))
        return
    click.echo(f"fp4ref {fp4ref.__version__}, {megabytes} MB in bfloat16, medians of {repeat}")
    for name, each in results.items():
        times = f"{each['wall']:.1f} s, {each['processor']:.1f} s of processors ({each['cat']:.0f} x cat)"
        click.echo(f"{name:32} {each['rate']:6.2f} GB/s  {times}, {each['memory'] / MIB:.0f} MiB")
    for text, ratio in ratios(results).items():
        click.echo(f"{text}: {ratio:.2f}")


def facts(megabytes: int, repeat: int) -> dict[str, Any]:
    """Return where and of what the numbers were measured."""
    from setting import LOAD, load, setting  # imports torch; the children have run by now

    others = {module: name for module, name in INSTALLED.items() if find_spec(module)}
    return {
        **setting("cpu"),
        "megabytes": megabytes,
        "repeat": repeat,
        "threads": os.environ.get("FP4REF_NUM_THREADS", "one for each processor"),
        "folder": tempfile.gettempdir(),
        LOAD: load(),
        "packages": ", ".join(f"{name} {version(name)}" for name in others.values()),
    }


def ratios(results: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return the ratios that the goals are about, each without the starts of both sides, by text."""

    def own(name: str) -> float:
        base, starts = name.removesuffix(TWICE), 2 if name == f"quantize{TWICE}" else 1  # lint's workers are copies
        return results[name]["processor"] - starts * results[f"{base}, start"]["processor"]

    found = {}
    for name, against in (("quantize", (MAPPED, ALL)), ("lint", (ALL,))):
        for other in against:
            if {name, other} <= results.keys():
                found[f"{name}: rate by processor time / {other}"] = own(other) / own(name)
        twice = f"{name}{TWICE}"
        if {name, twice} <= results.keys():
            found[f"{name}: clock of 1 worker / of 2"] = results[name]["wall"] / results[twice]["wall"]
            found[f"{name}: processor time of 2 workers / of 1"] = own(twice) / own(name)
    for name in PEERS:
        if {name, "quantize"} <= results.keys():
            found[f"{name}: processor time / quantize"] = own(name) / own("quantize")
    return found


def summary(runs: list[tuple[Cost, Cost, int]]) -> dict[str, float]:
    """Return the medians of some runs: times, bytes per second, memory, and the ratio of processor times to `cat`."""
    own = [run for _, run, _ in runs]
    wall, processor = median(each.wall for each in own), median(each.processor for each in own)
    plain = median(max(each.processor, 1e-3) for each, _, _ in runs)
    size, memory = runs[0][2], float(max(each.memory for each in own))
    rate = size / wall / 1e9
    return {"wall": wall, "processor": processor, "rate": rate, "cat": processor / plain, "memory": memory}


if __name__ == "__main__":
    main()
