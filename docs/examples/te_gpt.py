"""Train a small GPT on the text of the standard, in bfloat16, MXFP8 and NVFP4, and plot the losses.

    python docs/examples/te_gpt.py --steps 200 --plot losses.png

Every run starts from the same weights and sees the same batches. NVFP4 is trained four ways: with the recipe's
defaults, without the Hadamard transform, without stochastic rounding, and without both.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from fp4ref import te
from fp4ref.spec_root import spec_root

WIDTH, HEADS, LAYERS, CONTEXT, BATCH = 64, 4, 1, 64, 4
RECIPES = {
    "bf16": None,
    "mxfp8": te.recipe.MXFP8BlockScaling(),
    "nvfp4": te.recipe.NVFP4BlockScaling(),
    "nvfp4, no Hadamard": te.recipe.NVFP4BlockScaling(disable_rht=True),
    "nvfp4, no stochastic rounding": te.recipe.NVFP4BlockScaling(disable_stochastic_rounding=True),
    "nvfp4, neither": te.recipe.NVFP4BlockScaling(disable_rht=True, disable_stochastic_rounding=True),
}


class Block(torch.nn.Module):
    """Attention and an MLP, both on a residual stream."""

    def __init__(self) -> None:
        super().__init__()

        def initialize(weight: torch.Tensor) -> None:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)

        options: dict[str, Any] = {"params_dtype": torch.bfloat16, "device": "cpu", "init_method": initialize}
        self.qkv = te.LayerNormLinear(WIDTH, 3 * WIDTH, normalization="RMSNorm", **options)
        self.proj = te.Linear(WIDTH, WIDTH, **options)
        self.mlp = te.LayerNormMLP(WIDTH, 4 * WIDTH, normalization="RMSNorm", activation="swiglu", **options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x: [batch, time, width]."""
        heads = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.proj(mixed.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class GPT(torch.nn.Module):
    """Bytes in, logits of the next byte out. Embeddings and logits stay in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(256, WIDTH, dtype=torch.bfloat16)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH, dtype=torch.bfloat16)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, 256, bias=False, dtype=torch.bfloat16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [batch, time]."""
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(torch.nn.functional.rms_norm(x, (WIDTH,))).float()


def train(recipe: Any, text: torch.Tensor, steps: int) -> list[float]:
    """Return the loss of every step."""
    torch.manual_seed(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    batches = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH,), generator=batches)
        window = text[starts[:, None] + torch.arange(CONTEXT + 1)]
        with te.autocast(enabled=recipe is not None, recipe=recipe):
            logits = model(window[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def plot(losses: dict[str, list[float]], path: Path) -> None:
    """Smoothed loss curves, and below them their distance to the first."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (axes, below) = plt.subplots(2, figsize=(7, 6), sharex=True, height_ratios=(3, 2))
    window = max(1, len(next(iter(losses.values()))) // 15)
    curves = {name: torch.tensor(values).unfold(0, window, 1).mean(-1) for name, values in losses.items()}
    base = next(iter(curves.values()))
    for name, curve in curves.items():
        steps = range(window, window + len(curve))
        axes.plot(steps, curve, label=name, linewidth=1)
        below.plot(steps, curve - base, linewidth=1)
    axes.set(ylabel=f"loss, mean of {window} steps")
    below.set(xlabel="step", ylabel=f"minus {next(iter(losses))}")
    axes.legend()
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Train by every recipe, print the losses at the end, and plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", type=Path, help="file of the plot; needs matplotlib")
    parser.add_argument("--json", type=Path, help="file of all losses")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # matrices this small are not worth a second thread
    raw = b"".join(path.read_bytes() for path in sorted(spec_root().rglob("*.md")))
    text = torch.frombuffer(bytearray(raw), dtype=torch.uint8).long()
    losses = {}
    for name, recipe in RECIPES.items():
        losses[name] = train(recipe, text, arguments.steps)
        last = losses[name][-max(1, arguments.steps // 10) :]
        print(f"{name:30} {losses[name][0]:.3f} -> {sum(last) / len(last):.3f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(losses))
    if arguments.plot:
        plot(losses, arguments.plot)


if __name__ == "__main__":
    main()
