"""Reads a file COUNT times in calls of SIZE bytes, says so, and waits for a line on standard input.
Arguments: FILE SIZE COUNT."""

import os
import sys

path, size, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
descriptor = os.open(path, os.O_RDONLY)
for _ in range(count):
    os.pread(descriptor, size, 0)
os.write(1, b"read\n")
sys.stdin.readline()
