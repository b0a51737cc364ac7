"""Runs somebody else's script as it is: run_example.py SCRIPT ARGUMENTS

torchvision's library, as package indexes have it, is built for CUDA and cannot be loaded beside a
torch for CPUs; its Python part then misses operators at import, which are declared here. The
scripts do not use them.
"""

import runpy
import sys

import torch

if torch.version.cuda is None:
    operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
