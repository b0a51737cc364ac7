"""Reads files in the folder of the argument whose names are hostile: markup, control characters,
invalid UTF-8."""

import os
import sys

NAMES = (
    b"\xff\xfe<img src=x onerror=alert(1)>",
    b"a\x1b[31mred\r\nnew line",
    "\u202egpj.txt".encode(),
    b"%{x}" + b"y" * 240,
)

folder = os.fsencode(sys.argv[1])
for name in NAMES:
    path = os.path.join(folder, name)
    with open(path, "wb") as file:
        file.write(b"x" * 100_000)
    with open(path, "rb") as file:
        file.read()
