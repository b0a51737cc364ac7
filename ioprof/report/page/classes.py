"""What a span can be in the page's timeline: its name and colour, and which spans lie inside
others.
"""

from dataclasses import dataclass
from typing import Final

from ioprof.format.schema import KINDS, SOURCES
from ioprof.report.palette import DARK, KIND_NAMES, kind_colour

READ_KINDS: Final = ("read", "fault")
_LEVELS: Final = {
    **dict.fromkeys(("fetch", "wait", "phase", "stage", "validate"), 0),
    **dict.fromkeys(("open", "read", "fault", "deliver", "gc"), 2),
}
"""What lies inside other spans of its lane has a higher level, and is drawn instead of them; all
others have level 1."""
_SOURCE_WORDS: Final = {
    "page_cache": "page cache",
    "unknown": "a source that is not known",
    "socket": "a socket",
    "pipe": "a pipe",
}


@dataclass(frozen=True)
class SpanClass:
    """Spans of one colour."""

    kind: str
    source: str | None
    name: str
    light: str
    dark: str
    level: int


def _class(kind: str, source: str | None = None) -> SpanClass:
    light = kind_colour(kind, source)
    name = KIND_NAMES.get(kind, kind)
    if source:
        name = f"{name} from {_SOURCE_WORDS.get(source, source)}"
    return SpanClass(kind, source, name, light, DARK.get(light, light), _LEVELS.get(kind, 1))


CLASSES: Final = (
    *(_class(kind) for kind in KINDS if kind not in READ_KINDS),
    *(_class(kind, source) for kind in READ_KINDS for source in SOURCES),
)
"""All classes; the number of a class in the page's data is its place here."""
_NUMBERS: Final = {(entry.kind, entry.source): number for number, entry in enumerate(CLASSES)}


def class_number(kind: str, source: str | None) -> int:
    """The class of spans of this kind and source."""
    return _NUMBERS[kind, (source or "unknown") if kind in READ_KINDS else None]
