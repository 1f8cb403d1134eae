"""Write Qwen3-small/: two layers of a Qwen3 model in bfloat16, with random weights."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np

HIDDEN, WIDE, WORDS = 128, 256, 96
SHAPES = {
    "self_attn.q_proj": (HIDDEN, HIDDEN),
    "self_attn.k_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.v_proj": (HIDDEN // 2, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HIDDEN),
    "mlp.gate_proj": (WIDE, HIDDEN),
    "mlp.up_proj": (WIDE, HIDDEN),
    "mlp.down_proj": (HIDDEN, WIDE),
}
NORMS = {
    "input_layernorm": (HIDDEN,),
    "post_attention_layernorm": (HIDDEN,),
    "self_attn.q_norm": (64,),
    "self_attn.k_norm": (64,),
}
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": HIDDEN,
    "intermediate_size": WIDE,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "vocab_size": WORDS,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}

random = np.random.default_rng(0)
shapes = {"model.embed_tokens": (WORDS, HIDDEN), "lm_head": (WORDS, HIDDEN), "model.norm": (HIDDEN,)}
for layer in range(2):
    shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in (SHAPES | NORMS).items()}
header, body = {}, b""
for name, shape in shapes.items():
    data = (random.standard_normal(shape) / 16).astype(ml_dtypes.bfloat16).tobytes()
    header[f"{name}.weight"] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(body), len(body) + len(data)]}
    body += data
folder = Path("Qwen3-small")
folder.mkdir()
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
(folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + body)
(folder / "config.json").write_text(json.dumps(CONFIG))
