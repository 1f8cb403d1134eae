from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from fp4ref.cli import main
from fp4ref.conformance.dumps.cases import parse
from fp4ref.files import open_tensors

pytestmark = [pytest.mark.real, pytest.mark.slow]

# Relative error ||y - x|| / ||x|| of the weights of a trained model, as a fence against nonsense: a normal
# distribution gives about 0.095 for NVFP4 and 0.026 for MXFP8 E4M3.
ERROR = {"nvfp4": (0.08, 0.11), "mxfp8-e4m3": (0.02, 0.035)}


def run(*arguments: object, status: int = 0) -> str:
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert result.exit_code == status, result.output
    return result.stdout


def matrices(path: Path) -> list[str]:
    with open_tensors(path) as file:
        return [name for name in file.names if len(file.entry(name)[1]) == 2 and file.entry(name)[0] == "F32"]


@pytest.fixture(scope="module", params=[*ERROR])
def dumped(request: pytest.FixtureRequest, real_model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Name of the specification, and a dump of every matrix of the model."""
    target = tmp_path_factory.mktemp("real") / "q.safetensors"
    chosen = [word for name in matrices(real_model_path) for word in ("--tensors", name)]
    run("quantize", real_model_path, "-o", target, "--spec", request.param, "--layout", "tiled_128x4", *chosen)
    return request.param, target


def test_every_matrix_conforms(dumped: Any, real_model_path: Path) -> None:
    record = json.loads(run("verify", dumped[1], "--input", real_model_path, "--json"))
    tensors = record["files"][0]["tensors"]
    assert [tensor["tensor"] for tensor in tensors if not tensor["equal"]] == []
    assert sorted(tensor["tensor"] for tensor in tensors) == sorted(matrices(real_model_path))
    assert sum(np.prod(tensor["shape"]) for tensor in tensors) > 10_000_000


def test_dequantized_matrices_are_near(dumped: Any, real_model_path: Path, tmp_path: Path) -> None:
    spec, dump = dumped
    run("dequantize", dump, "-o", tmp_path / "y.safetensors")
    low, high = ERROR[spec]
    with open_tensors(real_model_path) as model, open_tensors(tmp_path / "y.safetensors") as result:
        for name in matrices(real_model_path):
            x, y = model.read(name), result.read(name)
            error = float(np.linalg.norm(y - x) / np.linalg.norm(x))
            assert low < error < high, (name, error)


@pytest.mark.heavy  # diagnoses a large tensor
def test_one_wrong_bit_in_the_model_is_found(dumped: Any, real_model_path: Path, tmp_path: Path) -> None:
    _, dump = dumped
    names = matrices(real_model_path)
    name = names[len(names) // 2]
    with open_tensors(dump) as file:
        right = file.read(f"{name}.row.data").tobytes()
    contents = bytearray(dump.read_bytes())
    at = contents.index(right) + len(right) // 3
    contents[at] ^= 0x04
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(contents)
    report = json.loads(run("verify", broken, "--input", real_model_path, "--json", status=1))["files"][0]
    assert report["verdict"] == "wrong"
    wrong = [tensor for tensor in report["tensors"] if not tensor["equal"]]
    assert [(tensor["tensor"], tensor["counts"]) for tensor in wrong] == [(name, {"codes": 1})]
    (found,) = wrong[0]["differences"]
    assert parse(found["case"]).tensor == name
    case = tmp_path / "case.npz"
    run("verify", broken, "--input", real_model_path, "--case", found["case"], "--save-case", case, status=1)
    (again,) = json.loads(run("verify", case, "--json", status=1))["files"][0]["tensors"][0]["differences"]
    assert [again[key] for key in ("bits", "got", "expected")] == [found[key] for key in ("bits", "got", "expected")]
