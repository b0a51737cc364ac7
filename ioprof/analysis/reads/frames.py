"""Frames of videos that were decoded, and those of them that were made arrays or images.

Of PyAV each item of `container.decode` is a frame, and each conversion uses one; of OpenCV `grab`
decodes a frame that nobody sees until it is retrieved. Other libraries do not say what they decode
on the way to a frame.
"""

from typing import Final

import polars as pl

from ioprof.format.run_record import FrameUse
from ioprof.format.trace import Trace

_WAYS: Final = {
    "PyAV": (
        ("av.InputContainer.decode",),
        ("av.VideoFrame.to_ndarray", "av.VideoFrame.to_rgb", "av.VideoFrame.to_image"),
    ),
    "OpenCV": (
        ("cv2.VideoCapture.read", "cv2.VideoCapture.grab"),
        ("cv2.VideoCapture.read", "cv2.VideoCapture.retrieve"),
    ),
}
"""By library: calls that decode a frame, and calls that use one."""
_FEWEST: Final = 100
"""Frames, below which nothing is said: of a few seconds of video."""


def frame_use(trace: Trace) -> FrameUse | None:
    """Of the library that decoded most frames; None: too few, or none was used, as far as is
    known.

    A call of less than 5 us has no span of its own, and is not counted.
    """
    if trace.sums.filter(pl.col("kind") == "decode").is_empty():
        return None
    names = {name for ways in _WAYS.values() for names in ways for name in names}
    name = pl.col("name").cast(pl.String)
    counts = trace.summed(
        lambda spans: (
            spans.filter(
                pl.col("kind") == "decode", pl.col("rank").is_not_null(), name.is_in(list(names))
            )
            .group_by(name)
            .agg(calls=pl.len())
        ),
        ["name"],
    )
    calls = dict(counts.iter_rows())
    found = [
        FrameUse(library, *(sum(calls.get(each, 0) for each in names) for names in ways))
        for library, ways in _WAYS.items()
    ]
    most = max(found, key=lambda use: use.decoded)
    return most if most.decoded >= _FEWEST and most.used else None
