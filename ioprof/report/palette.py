"""One colour for each cause, in every figure and table; distinguishable with any common colour
vision (a test checks that).
"""

from typing import Final

CAUSE_COLOURS: Final = {
    "compute": "#009E73",
    "exchange": "#C9609E",
    "straggler": "#7D2550",
    "h2d": "#0072B2",
    "storage": "#B03A06",
    "page_cache": "#B48000",
    "decode": "#2487BC",
    "transform": "#7F8A1A",
    "collate": "#5E4A18",
    "delivery": "#9273D6",
    "loader": "#4F5D6B",
    "validation": "#3F8F80",
    "checkpoint": "#70301A",
    "gc": "#3F2F9E",
    "host": "#7C8894",
}
"""After Okabe and Ito, darker: each has a contrast of 3:1 to the page, and differs from its
neighbours with any colour vision."""

SOURCE_COLOURS: Final = {
    "storage": CAUSE_COLOURS["storage"],
    "page_cache": CAUSE_COLOURS["page_cache"],
    "unknown": "#8B6A4C",
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
}
"""What a legend calls a kind where its own word is too short."""

FETCH_COLOUR: Final = "#838D97"
WAIT_COLOUR: Final = "#4F5D6B"
OPEN_COLOUR: Final = "#6B7783"

OTHER_COLOURS: Final = {
    "user": "#557A9C",
    "phase": "#808A94",
    "stage": "#8F7C55",
    "sampler": "#4F5D6B",
    "step": "#7C8894",
    "sync": "#838D97",
}
"""Kinds of spans that are no cause."""

RANK_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Lines of the ranks, which are also dashed differently."""


def kind_colour(kind: str, source: str | None = None) -> str:
    """The colour of a span in a timeline; a read has that of its source."""
    if kind in ("read", "fault"):
        return SOURCE_COLOURS[source or "unknown"]
    special = {"fetch": FETCH_COLOUR, "wait": WAIT_COLOUR, "open": OPEN_COLOUR}
    return special.get(kind) or CAUSE_COLOURS[KIND_CAUSES[kind]]


DARK: Final = {
    "#C9609E": "#CC79A7",
    "#7D2550": "#F2CFE3",
    "#0072B2": "#3389CF",
    "#B03A06": "#D55E00",
    "#B48000": "#E69F00",
    "#2487BC": "#56B4E9",
    "#7F8A1A": "#F0E442",
    "#5E4A18": "#B08A33",
    "#9273D6": "#CFA9E6",
    "#4F5D6B": "#8B99A6",
    "#3F8F80": "#8FD0BB",
    "#70301A": "#C4632F",
    "#3F2F9E": "#8F78DD",
    "#7C8894": "#C3CCD4",
    "#838D97": "#76828E",
    "#6B7783": "#A3AFBA",
    "#557A9C": "#7FA6C9",
    "#808A94": "#8E99A3",
    "#8F7C55": "#B9A88A",
    "#8B6A4C": "#B08D6C",
}
"""Colours that are another shade on a dark page, for the same contrast there."""


def cause_styles() -> str:
    """The colours of the causes as CSS variables, for light and for dark pages."""
    light = "".join(
        f".cause-{cause}{{--cause:{colour}}}" for cause, colour in CAUSE_COLOURS.items()
    )
    dark = "".join(
        f".cause-{cause}{{--cause:{DARK[colour]}}}"
        for cause, colour in CAUSE_COLOURS.items()
        if colour in DARK
    )
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def source_styles() -> str:
    """The colours of the sources of reads as CSS variables, for light and for dark pages."""
    light = "".join(
        f".source-{source}{{--cause:{colour}}}" for source, colour in SOURCE_COLOURS.items()
    )
    dark = "".join(
        f".source-{source}{{--cause:{DARK[colour]}}}"
        for source, colour in SOURCE_COLOURS.items()
        if colour in DARK
    )
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
