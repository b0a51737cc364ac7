"""One colour for each cause, in every figure and table; distinguishable with any common colour
vision (a test checks that).
"""

from collections.abc import Mapping
from typing import Final

CAUSE_COLOURS: Final = {
    "compute": "#469A6B",
    "exchange": "#B0489F",
    "straggler": "#8A1F4E",
    "h2d": "#2E4C9E",
    "storage": "#B02A00",
    "page_cache": "#BC7E00",
    "decode": "#0394CD",
    "transform": "#6F9631",
    "collate": "#503800",
    "delivery": "#7B4FE0",
    "loader": "#363953",
    "validation": "#3F7F78",
    "checkpoint": "#662422",
    "gc": "#FF3C6E",
    "host": "#8E8998",
}
"""Found by a search that began at colours of Okabe and Ito: each has a contrast of 3:1 to the page;
neighbours differ by 15 in CIELAB with any colour vision, and all colours of spans by 20, or by 7
where a cone is missing. Only `host` is grey."""

SOURCE_COLOURS: Final = {
    "storage": CAUSE_COLOURS["storage"],
    "page_cache": CAUSE_COLOURS["page_cache"],
    "unknown": "#97764B",
    "socket": CAUSE_COLOURS["storage"],
    "pipe": CAUSE_COLOURS["storage"],
}
"""What another program sent is charged to storage, and has its colour."""

KIND_CAUSES: Final = {
    "decode": "decode",
    "transform": "transform",
    "collate": "collate",
    "deliver": "delivery",
    "h2d": "h2d",
    "d2h": "h2d",
    "compute": "compute",
    "kernel": "compute",
    "comm": "exchange",
    "validate": "validation",
    "checkpoint": "checkpoint",
    "gc": "gc",
    "sampler": "loader",
}
"""The cause whose colour a kind of span has."""

KIND_NAMES: Final = {
    "fetch": "making a batch",
    "open": "open",
    "read": "read",
    "fault": "page fault",
    "deliver": "delivery",
    "wait": "waiting for a batch",
    "h2d": "copy to the device",
    "d2h": "copy from the device",
    "compute": "compute",
    "kernel": "kernel",
    "comm": "gradient exchange",
    "gc": "garbage collection",
    "phase": "phase of the job",
    "sync": "waiting for the device",
    "request": "request of HTTP",
}
"""What a legend calls a kind where its own word is too short."""

OTHER_CAUSES: Final = {
    "fetch": "loader",
    "wait": "loader",
    "sync": "host",
    "request": "storage",
    "step": "host",
}
"""Kinds that are no cause and have the colour of one: what a worker does between its stages, and
the wait for a batch, are `loader`; a thread that waits for its device is `host`."""

OTHER_COLOURS: Final = {
    "open": SOURCE_COLOURS["unknown"],
    "user": "#004237",
    "phase": "#526328",
    "stage": "#526328",
}
"""Kinds of spans that are no cause."""

CODE_COLOURS: Final = (
    ("#C6CCD2", "#3A434D"),
    ("#F2A65A", "#9C5312"),
    ("#7FC4B8", "#2A7267"),
    ("#E58FB1", "#9C3F68"),
    ("#B7A6E8", "#6250A8"),
    ("#D9C64A", "#75670F"),
    ("#8FBF5F", "#4C7A23"),
    ("#7FB2E5", "#2C6AA6"),
)
"""Of functions in stacks, for light and for dark pages: first that of libraries, then those that
the user's own functions have by turns. Names stand on them: in black, on dark pages in white."""

RANK_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Lines of the ranks, which are also dashed differently."""


def kind_colour(kind: str, source: str | None = None) -> str:
    """The colour of a span in a timeline; a read has that of its source."""
    if kind in ("read", "fault"):
        return SOURCE_COLOURS[source or "unknown"]
    cause = KIND_CAUSES.get(kind) or OTHER_CAUSES.get(kind)
    return CAUSE_COLOURS[cause] if cause else OTHER_COLOURS[kind]


DARK: Final = {
    "#469A6B": "#0D8858",
    "#B0489F": "#C25CB6",
    "#8A1F4E": "#FFB6DC",
    "#2E4C9E": "#7E6CE4",
    "#B02A00": "#C74400",
    "#BC7E00": "#FCA708",
    "#0394CD": "#03A8CF",
    "#6F9631": "#F6E81A",
    "#503800": "#B3930E",
    "#7B4FE0": "#8FA0FF",
    "#363953": "#857284",
    "#3F7F78": "#8CF8C5",
    "#662422": "#E67C4F",
    "#FF3C6E": "#F0205F",
    "#8E8998": "#A6B4AA",
    "#97764B": "#CBB880",
    "#004237": "#B5D5FF",
    "#526328": "#D4EF77",
}
"""Colours that are another shade on a dark page, for the same contrast there."""


def cause_styles() -> str:
    """The colours of the causes as CSS variables, for light and for dark pages."""
    return _styles("cause", "cause", _with_shades(CAUSE_COLOURS))


def code_styles() -> str:
    """The same of functions."""
    return _styles("code", "code", {str(place): both for place, both in enumerate(CODE_COLOURS)})


def source_styles() -> str:
    """The same of the sources of reads."""
    return _styles("source", "cause", _with_shades(SOURCE_COLOURS))


def _with_shades(colours: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    return {name: (colour, DARK.get(colour, colour)) for name, colour in colours.items()}


def _styles(kind: str, variable: str, colours: Mapping[str, tuple[str, str]]) -> str:
    light, dark = (
        "".join(f".{kind}-{name}{{--{variable}:{both[theme]}}}" for name, both in colours.items())
        for theme in range(2)
    )
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
