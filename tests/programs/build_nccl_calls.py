"""Compiles nccl_calls.c into calls.so in the folder that is its argument."""

import subprocess
import sys
from pathlib import Path

import ioprof

HERE = Path(__file__).parent
NATIVE = Path(ioprof.__file__).parent / "native"

if __name__ == "__main__":
    flags = [
        "-std=gnu11",
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{NATIVE / 'nccl'}",
        f"-I{NATIVE / 'ring'}",
    ]
    subprocess.run(
        [
            "cc",
            *flags,
            str(HERE / "nccl_calls.c"),
            "-o",
            str(Path(sys.argv[1], "calls.so")),
            "-ldl",
        ],
        check=True,
    )
