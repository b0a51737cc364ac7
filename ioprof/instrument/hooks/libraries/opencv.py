"""Observes OpenCV: `decode` spans of its decoders, `transform` spans of the functions that compute
new pixels of an image.
"""

from types import ModuleType
from typing import Final

from ioprof.instrument.hooks.libraries import decoders
from ioprof.instrument.hooks.observers import transforming
from ioprof.instrument.hooks.state import HookState

TRANSFORMS: Final = (
    "bilateralFilter",
    "blur",
    "boxFilter",
    "convertScaleAbs",
    "copyMakeBorder",
    "cvtColor",
    "equalizeHist",
    "filter2D",
    "flip",
    "GaussianBlur",
    "getRectSubPix",
    "LUT",
    "medianBlur",
    "normalize",
    "pyrDown",
    "pyrUp",
    "remap",
    "resize",
    "rotate",
    "sepFilter2D",
    "transpose",
    "undistort",
    "warpAffine",
    "warpPerspective",
)
"""Functions that are called for each sample, in a pipeline or by themselves."""


def observe(cv2: ModuleType, state: HookState) -> None:
    """Observe `cv2`."""
    decoders.observe(cv2, state)
    for name in TRANSFORMS:
        state.patches.wrap(cv2, name, transforming)
