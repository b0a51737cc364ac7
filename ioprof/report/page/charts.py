"""A chart of a page: its figures, and the sentences below that say what was chosen and thinned."""

from dataclasses import dataclass

import plotly.graph_objects as go


@dataclass(frozen=True)
class Chart:
    """A figure of the page, with one view or several to choose from."""

    name: str
    label: str
    """What it shows, for those who cannot see it."""
    figures: dict[str, go.Figure]
    """By the words of the selector; the first is shown first."""
    notes: dict[str, tuple[str, ...]]
    """What was chosen and thinned, for each view."""
