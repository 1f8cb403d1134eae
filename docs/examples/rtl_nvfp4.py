"""A Verilog quantizer on trial.

fp4ref verify --kernel rtl_nvfp4.py:quantize --spec torchao.nvfp4_1lvl
"""

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

import fp4ref

SOURCE = Path(__file__).with_name("nvfp4_block.v")


@cache
def simulator() -> Path:
    """Compile the design once; Icarus Verilog is `apt-get install iverilog`."""
    program = Path(tempfile.mkdtemp()) / "nvfp4_block"
    subprocess.run(["iverilog", "-g2005", "-s", "bench", "-o", program, SOURCE], check=True)
    return program


@fp4ref.kernel(outputs=("data", "scales"), dtypes=("bfloat16",), multiple=(1, 16), leading=False, empty=False)
def quantize(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Simulate the design on every block of 16 elements."""
    rows, columns = x.shape
    blocks = np.ascontiguousarray(x).view(np.uint16).reshape(-1, 16)[:, ::-1].astype(">u2")  # element 0 in the low bits
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "in.txt", Path(folder) / "out.txt"
        source.write_text("".join(f"{block.tobytes().hex()}\n" for block in blocks))
        subprocess.run(["vvp", "-n", simulator(), f"+in={source}", f"+out={target}"], check=True, capture_output=True)
        lines = [line.split() for line in target.read_text().splitlines()]
    scales = np.array([int(scale, 16) for scale, _ in lines], np.uint8)
    codes = b"".join(bytes.fromhex(text)[::-1] for _, text in lines)
    return np.frombuffer(codes, np.uint8).reshape(rows, columns // 2), scales.reshape(rows, -1)
