"""Train a small model with Hugging Face accelerate and its Transformer Engine configuration, on a CPU.

    pip install 'fp4ref[torch]' accelerate
    python docs/examples/te_accelerate.py --steps 20
    python docs/examples/te_accelerate.py --recipe delayed

accelerate is imported as it is: it finds the emulation as the installed Transformer Engine, replaces the linear layers,
and runs the model under the recipe.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch import nn

from fp4ref import te

# Arguments of accelerate's TERecipeKwargs; its default is delayed scaling.
RECIPES: dict[str, dict[str, Any]] = {
    "mxfp8": {"fp8_format": "E4M3", "use_mxfp8_block_scaling": True},
    "delayed": {},
}


def train(steps: int, recipe: str = "mxfp8") -> list[float]:
    """Return the losses of a regression."""
    te.install_alias()
    from accelerate import Accelerator
    from accelerate.utils import TERecipeKwargs

    torch.manual_seed(0)
    handler = TERecipeKwargs(**RECIPES[recipe])
    accelerator = Accelerator(mixed_precision="fp8", kwargs_handlers=[handler], cpu=True)
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    x = torch.randn(64, 64)
    target = x[:, :32].sin()
    losses = []
    for _ in range(steps):
        with accelerator.autocast():
            loss = (model(x).float() - target).square().mean()
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train, and print what was quantized."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--recipe", choices=RECIPES, default="mxfp8")
    options = parser.parse_args()
    losses = train(options.steps, options.recipe)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, quantized {te.debug.operation_counts()['quantize']}")


if __name__ == "__main__":
    main()
