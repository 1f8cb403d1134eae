"""The help of `fp4ref verify`: its options in sections, and examples."""

from __future__ import annotations

import click

SECTIONS = {
    "Bytes": "spec profile layout dtype nibbles packing input tensors amax case backend",
    "Kernels": "kernel library signature signatures direction device",
    "Inputs of a kernel": "level family require seed forever weights repeat huge exhaustive resume",
    "Time": "timeout start-timeout time-limit no-diagnosis diagnosis-seconds",
    "Text and files": "limit json junit html statement subject-version known-failures save-case force",
}


EPILOG = """\b
Examples:
  fp4ref verify
  fp4ref verify dump.npz
  fp4ref verify model.nvfp4.safetensors --input model.safetensors --tensors '*weight'
  fp4ref verify kernel.npz --spec nvfp4 --layout tiled_128x4
  fp4ref verify dump.npz --case row:0:0
  fp4ref verify dump.npz --case row:0:0 --save-case case.npz
  fp4ref verify dump.npz --json
  fp4ref verify dump.npz --junit verify.xml --html verify.html
  fp4ref verify --kernel mykernels.nvfp4:quantize --spec nvfp4
  fp4ref verify --kernel kernel.py:quantize --spec mxfp4 --device cuda --level 2
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --device cuda --huge
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --exhaustive bfloat16
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --exhaustive float32 --resume sweep.json
  fp4ref verify --kernel kernel.py:gemm --spec nvfp4
  fp4ref verify --library ./libmine.so:quantize --signature quantize.toml --spec mxfp4
  fp4ref verify --library ./libmine.so:quantize_nvfp4 --signature flashinfer-nvfp4 --spec nvfp4 --device cuda
  fp4ref verify --signatures
  fp4ref verify dump.npz --statement statement.json
  fp4ref verify --kernel kernel.py:quantize --spec nvfp4 --statement statement.json --subject-version 1.2
  fp4ref gen nvfp4 --level 1 | ./my_kernel | fp4ref verify nvfp4
"""


class SectionedCommand(click.Command):
    """A command whose help lists its options by section, those of no section last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options."""
        options = [each for each in self.get_params(ctx) if isinstance(each, click.Option)]
        records = {each.opts[0]: each.get_help_record(ctx) for each in options}
        left = {flag: record for flag, record in records.items() if record is not None}
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([left.pop(f"--{name}") for name in names.split()])
        with formatter.section("Options"):
            formatter.write_dl([*left.values()])
