"""Perplexity and per-layer signal-to-noise ratio of a language model with quantized linear layers.

    python docs/examples/inference_quality.py                   a small model of bytes, trained here first
    python docs/examples/inference_quality.py --spec mxfp4 --activations mxfp8-e4m3
    python docs/examples/inference_quality.py --model FOLDER    a causal model of transformers, or an encoder

The small model is trained on the text, which is the rules of this standard unless a file is given, and judged on the
last tenth of it. SQNR of a layer in decibels is 10 log10 of the power of its output over that of its error, on the
input that the layer has in the unquantized model. An encoder has no perplexity: the SQNR of its output is printed.
"""

from __future__ import annotations

import argparse
import copy
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from fp4ref.torch_modules import QuantizedLinear, quantize_linears

WIDTH, HEADS, LAYERS, CONTEXT = 128, 4, 3, 128
Logits = Callable[[Tensor], Tensor]


class Block(nn.Module):
    """Causal attention and an MLP, each behind a normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """x: [texts, tokens, width]."""
        heads = [part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first_norm(x)).chunk(3, -1)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mix(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.widen(self.second_norm(x))))


class Model(nn.Module):
    """A language model of bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [texts, tokens, 256]."""
        x = self.token(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.norm(self.blocks(x)))


def trained(tokens: Tensor, steps: int) -> Model:
    """Return a model trained on random places of a text."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(steps):
        starts = torch.randint(len(tokens) - CONTEXT - 1, (16,))
        batch = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return model.eval()


def loss_of(logits: Logits, batch: Tensor) -> Tensor:
    """Return the mean cross entropy of each token after the first."""
    return functional.cross_entropy(logits(batch[:, :-1]).flatten(0, 1).float(), batch[:, 1:].flatten())


@torch.no_grad()
def perplexity(logits: Logits, windows: list[Tensor]) -> float:
    """Return exp of the mean loss over windows of tokens."""
    return math.exp(sum(loss_of(logits, window).item() for window in windows) / len(windows))


@torch.no_grad()
def signal_to_noise(
    model: nn.Module, quantized: nn.Module, logits: Logits, window: Tensor
) -> Iterator[tuple[str, float]]:
    """Yield the name of each quantized layer and its SQNR in decibels on the unquantized model's own inputs."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    layers = {name: layer for name, layer in quantized.named_modules() if isinstance(layer, QuantizedLinear)}

    def note(name: str) -> Any:
        return lambda layer, inputs, output: seen.update({name: (inputs[0], output)})

    hooks = [model.get_submodule(name).register_forward_hook(note(name)) for name in layers]
    logits(window[:, :-1])
    for hook in hooks:
        hook.remove()
    for name, layer in layers.items():
        x, exact = seen[name]
        yield name, _decibels(exact, layer(x))


def _decibels(exact: Tensor, other: Tensor) -> float:
    error = other.double() - exact.double()
    return 10 * math.log10(exact.double().square().sum() / error.square().sum())


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", default="nvfp4", help="profile of the weights")
    parser.add_argument(
        "--activations", default="nvfp4", help="profile of the activations; none leaves them as they are"
    )
    parser.add_argument("--select", default=None, help='layers by a pattern of names, such as "*.mlp.*"')
    parser.add_argument("--model", type=Path, help="folder of a causal model of transformers")
    parser.add_argument("--text", type=Path, help="text to judge on")
    parser.add_argument("--windows", type=int, default=8, help="windows of text that are judged")
    parser.add_argument("--steps", type=int, default=200, help="training steps of the small model")
    options = parser.parse_args()
    text = options.text.read_text("utf-8") if options.text else _rules()
    if options.model:
        from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

        named = " ".join(AutoConfig.from_pretrained(options.model).architectures or [])
        causal = "CausalLM" in named or "LMHead" in named
        kind = AutoModelForCausalLM if causal else AutoModel
        model: nn.Module = kind.from_pretrained(options.model).eval()
        tokens = torch.tensor(AutoTokenizer.from_pretrained(options.model)(text).input_ids)
        held, length = tokens, min(1024, model.config.max_position_embeddings)
    else:
        causal, tokens = True, torch.tensor(list(text.encode()))
        cut = len(tokens) * 9 // 10
        model, held, length = trained(tokens[:cut], options.steps), tokens[cut:], CONTEXT
    if len(held) < length:
        raise SystemExit(f"the text has {len(held)} tokens to judge on, fewer than one window of {length}: --text FILE")
    windows = [window[None] for window in held.unfold(0, length, length)[: options.windows]]
    quantized = copy.deepcopy(model)
    activations = None if options.activations == "none" else options.activations
    quantize_linears(quantized, options.spec, activations, options.select)
    exact, other = (_logits(m) for m in (model, quantized))
    print(f"{'layer':40} SQNR dB")
    for name, decibels in signal_to_noise(model, quantized, exact, windows[0]):
        print(f"{name:40} {decibels:7.2f}")
    if causal:
        print(f"perplexity: {perplexity(exact, windows):.4f}, quantized {perplexity(other, windows):.4f}")
    else:
        with torch.no_grad():
            pairs = [(exact(window), other(window)) for window in windows]
        print(f"{'output':40} {_decibels(*map(torch.cat, zip(*pairs, strict=True))):7.2f}")


def _logits(model: nn.Module) -> Logits:
    def result(tokens: Tensor) -> Tensor:
        output = model(tokens)
        return output if isinstance(output, Tensor) else output[0]  # logits, or the last hidden state

    return result


def _rules() -> str:
    return "\n".join(path.read_text("utf-8") for path in sorted((Path(__file__).parents[2] / "spec").glob("*.md")))


if __name__ == "__main__":
    main()
