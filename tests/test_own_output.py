"""What a conversion writes has no finding that its source has not, unless the conversion said so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints_corpus import of_layers
from fp4ref.checkpoints import lint
from fp4ref.checkpoints.convention import families
from fp4ref.checkpoints.transfer.converting import request_to_convert
from fp4ref.checkpoints.transfer.running import run
from fp4ref.errors import DomainError

corpus = of_layers(1)
QUICK = ("modelopt-nvfp4", "compressed-nvfp4", "gpt-oss-original", "comfy-nvfp4", "gguf-mxfp4", "mlx-mxfp8")
EXPORTS = [
    pytest.param(name, marks=[] if name in QUICK else [pytest.mark.heavy]) for name in corpus.CLEAN if name != "source"
]


def with_a_dead_row(export: Any) -> Any:
    """Return an export in which a row of a quantized weight is zero."""
    for name, (_, array) in export.tensors.items():
        if array.dtype == np.uint8 and array.ndim == 2 and "weight" in name and "scale" not in name:
            array[17] = 0
            break
    return export


def findings(path: Path) -> set[tuple[str, str]]:
    return {(each.code, each.severity) for each in lint(path).findings}


@pytest.mark.rule("CNV-1", "CKP-13", "CKP-27")
@pytest.mark.parametrize("export", EXPORTS)
def test_what_is_written_is_not_blamed(export: str, tmp_path: Path) -> None:
    source = with_a_dead_row(corpus.CLEAN[export]()).write(tmp_path / "source")
    source = next(source.glob("*.gguf"), source)
    before, written = findings(source), 0
    for to in families():
        try:
            manifest = run(request_to_convert(source, tmp_path / to, to=to, lossy=True))
        except DomainError:
            continue
        assert manifest is not None
        written += 1
        said = " ".join(manifest["remarks"])
        known = {
            "fused-global-scale": "members with different global scales" in said,
            "exclude-list": "for excluded" in said,
            "missing-tensor": "have no input scale" in said,
        }
        new = findings(tmp_path / to) - before
        assert not {each for each in new if not known.get(each[0])}, to
    assert written > 1


@pytest.mark.rule("CNV-14")
def test_a_conversion_says_what_a_loader_lacks(tmp_path: Path) -> None:
    """Input scales of some weights; a module whose name has an excluded one in it."""
    export = corpus.CLEAN["modelopt-nvfp4"]()
    some = [name for name in export.tensors if name.endswith(".input_scale")]
    export.drop(*some[1:])
    export.put("down.weight", "BF16", np.ones((16, 16)))
    source = export.write(tmp_path / "source")
    manifest = run(request_to_convert(source, tmp_path / "out", to="modelopt"))
    assert manifest is not None
    assert any(f"{len(some) - 1} of {len(some)} weights in modelopt.nvfp4" in each for each in manifest["remarks"])
    assert any("reads 'down' as" in each and "down_proj" in each for each in manifest["remarks"])
    assert {"missing-tensor", "exclude-list"} <= {code for code, _ in findings(tmp_path / "out")}
