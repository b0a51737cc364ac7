"""One colour for each cause, in every figure and table; told apart with any common colour vision (a test checks that)."""

from typing import Final

CAUSE_COLOURS: Final = {
    "compute": "#009E73",
    "communication": "#CC79A7",
    "h2d": "#0072B2",
    "storage": "#D55E00",
    "page_cache": "#E69F00",
    "decode": "#56B4E9",
    "transform": "#F0E442",
    "collate": "#7A5C14",
    "delivery": "#A17FD0",
    "loader": "#4F5D6B",
    "host": "#AEB8C2",
}
"""The first seven are Okabe and Ito's; the other four differ from their neighbours in lightness."""

SOURCE_COLOURS: Final = {"storage": CAUSE_COLOURS["storage"], "page_cache": CAUSE_COLOURS["page_cache"], "unknown": "#9C7A5B"}

KIND_CAUSES: Final = {
    "decode": "decode",
    "transform": "transform",
    "collate": "collate",
    "deliver": "delivery",
    "h2d": "h2d",
    "d2h": "h2d",
    "compute": "compute",
    "kernel": "compute",
    "comm": "communication",
}
"""The cause whose colour a kind of span wears."""

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
}
"""What a legend calls a kind where its own word is too short."""

FETCH_COLOUR: Final = "#D3D9DF"
WAIT_COLOUR: Final = "#4F5D6B"
OPEN_COLOUR: Final = "#7B8794"

RANK_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Lines of the ranks, which are also dashed differently."""


def kind_colour(kind: str, source: str | None = None) -> str:
    """The colour of a span in a timeline; a read wears its source."""
    if kind in ("read", "fault"):
        return SOURCE_COLOURS[source or "unknown"]
    special = {"fetch": FETCH_COLOUR, "wait": WAIT_COLOUR, "open": OPEN_COLOUR}
    return special.get(kind) or CAUSE_COLOURS[KIND_CAUSES[kind]]


DARK: Final = {
    "#4F5D6B": "#6F7D8A",
    "#7A5C14": "#B08A33",
    "#AEB8C2": "#C3CCD4",
    "#D3D9DF": "#303943",
    "#7B8794": "#A3AFBA",
    "#A17FD0": "#C4A6EC",
}
"""Colours that are another shade on a dark page, for contrast."""


def cause_styles() -> str:
    """The colours of the causes as CSS variables, for light and for dark pages."""
    light = "".join(f".cause-{cause}{{--cause:{colour}}}" for cause, colour in CAUSE_COLOURS.items())
    dark = "".join(f".cause-{cause}{{--cause:{DARK[colour]}}}" for cause, colour in CAUSE_COLOURS.items() if colour in DARK)
    return f"{light}@media screen and (prefers-color-scheme:dark){{{dark}}}"
