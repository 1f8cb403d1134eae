from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path

import numpy as np
import pytest

import fp4ref
from fp4ref.model.dequantize import dequantize
from fp4ref.model.quantize import quantize
from scripts import load

SCRIPT = Path(__file__).parents[1] / ".ci" / "peers"
if not SCRIPT.exists():
    pytest.skip("the script is part of the checkout, not of the wheel", allow_module_level=True)
script = load(SCRIPT, "peers_script")


def results(x: np.ndarray, profile: str, where: str) -> dict[str, np.ndarray]:
    q = quantize(x, fp4ref.profiles[profile])
    return {f"{where}/{profile}/data": q.data, f"{where}/{profile}/scales": q.scales}


@pytest.mark.rule("PRO-1")
def test_equal_and_different_bytes_are_counted_by_promise():
    x = np.random.default_rng(5).standard_normal((2, 32)).astype(np.float32)
    nan = x.copy()
    nan[0, 0] = np.nan
    given = {"0/float32/32": x.view(np.uint32), "1/float32/32": nan.view(np.uint32)}
    made = results(x, "compressed_tensors.mxfp4", "0/float32/32")
    made |= results(nan, "compressed_tensors.mxfp4", "1/float32/32")
    (line,) = script.lines("peer", "1.0", given, made)
    assert (line.equal, line.claimed, line.equal_others, line.others) == (1, 1, 1, 1)
    assert line.kept
    made["1/float32/32/compressed_tensors.mxfp4/data"] ^= 1  # no promise for NaN
    (line,) = script.lines("peer", "1.0", given, made)
    assert line.kept
    made["0/float32/32/compressed_tensors.mxfp4/data"] ^= 1
    (line,) = script.lines("peer", "1.0", given, made)
    assert not line.kept


def test_the_exit_status_tells_a_broken_promise(monkeypatch, tmp_path, capsys):
    kept = script.Line("mlx", "1", "mlx.mxfp4", 3, 3, 0, 0)
    broken = script.Line("mlx", "1", "mlx.mxfp8", 2, 3, 0, 1)
    monkeypatch.setattr(script, "inputs", lambda seed: {})
    for found, status in (([kept], 0), ([kept, broken], 1)):
        monkeypatch.setattr(script, "execute", lambda *arguments, found=found: found)
        assert script.main(["--only", "mlx", "--page", str(tmp_path / "page.md")]) == status
    assert "| `mlx.mxfp8` | 2 of 3 | 0 of 1 | mlx | 1 |" in capsys.readouterr().out
    assert "2 of 3" in (tmp_path / "page.md").read_text("utf-8")


def test_a_peer_that_does_not_install_leaves_the_others(monkeypatch, tmp_path, capsys):
    def fails(*arguments):
        raise subprocess.CalledProcessError(1, "pip")

    monkeypatch.setattr(script, "inputs", lambda seed: {})
    monkeypatch.setattr(script, "install", fails)
    only = ["--only", "mlx", "--only", "microxcaling", "--only", "gguf"]
    assert script.main([*only, "--page", str(tmp_path / "page.md"), "--work", str(tmp_path)]) == 2
    said = capsys.readouterr().out
    rows = {row.split("|")[4].strip(): row for row in said.splitlines() if row.startswith("| not executed")}
    assert rows.keys() == {"mlx", "gguf", "microxcaling"}
    assert rows["mlx"].startswith("| not executed: CalledProcessError")
    assert rows["microxcaling"].startswith("| not executed: it is not on PyPI")
    assert said in (tmp_path / "page.md").read_text("utf-8")
    assert script.main(["--only", "microxcaling"]) == 0
    broken = script.Line("mlx", "1", "mlx.mxfp8", 2, 3, 0, 1)
    assert script.status([broken, script.NotRun("gguf", "why")]) == 1
    with pytest.raises(SystemExit):
        script.main(["--source", f"microxcaling={tmp_path / 'no'}"])


@pytest.mark.rule("PRO-1")
def test_values_of_a_peer_without_bytes_are_counted():
    x = np.random.default_rng(5).standard_normal((2, 32)).astype(np.float32)
    spec, given = fp4ref.profiles["microxcaling.mxint8_even"], {"0/float32/32": x.view(np.uint32)}
    values = dequantize(quantize(x, spec), x.shape, spec, np.float32, np.float32)
    made = {"0/float32/32/microxcaling.mxint8_even/values": np.where(values == 0, np.float32(-0.0), values)}
    (line,) = script.lines("microxcaling", "7bc41952", given, made)
    assert (line.equal, line.claimed) == (1, 1)
    next(iter(made.values()))[0, 0] += 1
    (line,) = script.lines("microxcaling", "7bc41952", given, made)
    assert not line.kept


@pytest.mark.heavy
def test_inputs_are_matrices_of_whole_blocks(monkeypatch):
    cases = script.inputs(1)
    assert {key.split("/")[1] for key in cases} == {"float32", "bfloat16", "float16"}
    for key, x in cases.items():
        assert x.ndim == 2
        assert x.shape[1] % int(key.rsplit("/", 1)[1]) == 0
    other = script.inputs(2)
    assert any(not np.array_equal(other[key], x) for key, x in cases.items() if key in other)


def test_the_page_has_date_and_seed():
    text = script.page([], 7, dt.date(2026, 11, 22), "")
    assert text.startswith("# Peers, executed on 2026-11-22\n")
    assert "seed (7)" in text
    assert "torch" not in text
    assert "ran with torch 2.15.0." in script.page([], 7, dt.date(2026, 11, 22), "2.15.0")


def test_torch_is_installed_once_and_for_the_first_peer_that_needs_it(monkeypatch, tmp_path):
    installed = []

    def environment(home):
        packages = home / "packages"
        packages.mkdir(parents=True)
        return home / "python", packages

    def pip(python, *wheels):
        installed.append((python.parent.name, *wheels))
        for name in {"torch", "mlx-cpu", "torchao"} & set(wheels):
            metadata = python.parent / "packages" / f"{name.replace(chr(45), chr(95))}-1.5.dist-info"
            metadata.mkdir()
            (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")

    monkeypatch.setattr(script, "environment", environment)
    monkeypatch.setattr(script, "pip", pip)
    torch = script.Torch(tmp_path, None)
    assert script.install(script.PEERS["mlx"], tmp_path / "mlx", torch, None) == "1.5"
    assert torch.version == ""
    assert script.install(script.PEERS["torchao"], tmp_path / "torchao", torch, None) == "1.5"
    assert torch.version == "1.5"
    assert (tmp_path / "torchao" / "packages" / "torch.pth").read_text() == f"{tmp_path / 'torch' / 'packages'}\n"
    assert torch.packages() == tmp_path / "torch" / "packages"
    assert [name for name, *_ in installed] == ["mlx", "torch", "torchao"]


@pytest.mark.rule("PRO-1")
def test_values_are_compared_in_the_type_of_the_input():
    x = np.zeros((1, 32), np.float16)
    x[0, 0] = 65504  # its scale is 2^14 and its code 4, which stands for 2^16: too much for the type
    values = np.zeros((1, 32), np.float32)
    values[0, 0] = np.inf
    given, made = {"0/float16/32": x.view(np.uint16)}, {"0/float16/32/quark.mxfp4_even/values": values}
    (line,) = script.lines("quark", "0.13", given, made)
    assert (line.equal, line.claimed) == (1, 1)
    values[0, 0] = 57344
    (line,) = script.lines("quark", "0.13", given, made)
    assert not line.kept
