"""A figure as notebooks keep it: for the notebook's own display, and as HTML for what is made of
the notebook, such as `jupyter nbconvert --to html`, which does not know plotly's own type.
"""

import json
from typing import Any, Final
from uuid import uuid4

import plotly.graph_objects as go

_MIME: Final = "application/vnd.plotly.v1+json"
_MISSING: Final = (
    "This figure needs plotly.js, which the first figure of a session carries: restart the kernel,"
    " and run all cells of the notebook."
)


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure of plotly that is displayed in both forms."""

    _carrier: tuple[str, int] | None = None
    """The cell whose output has plotly.js, which takes 5 MB; see `_running_cell`. None: no cell of
    this session."""

    def _ipython_display_(self) -> None:
        from IPython.display import display

        display(self._both_forms(), raw=True)  # type: ignore[no-untyped-call]

    def show(self, *arguments: Any, **options: Any) -> None:
        """As of any figure of plotly; within a notebook, and without a renderer, in both forms."""
        import plotly.io

        is_notebook = "plotly_mimetype" in str(plotly.io.renderers.default)
        if is_notebook and not arguments and not options:
            self._ipython_display_()
        else:
            super().show(*arguments, **options)

    def _both_forms(self) -> dict[str, Any]:
        carrier, cell = NotebookFigure._carrier, _running_cell()
        # a cell that runs again replaces its output
        carries = carrier is None or (carrier[0] == cell[0] and carrier != cell)
        NotebookFigure._carrier = cell if carries else carrier
        place = str(uuid4())
        html = self.to_html(full_html=False, include_plotlyjs=carries, div_id=place)
        html += (
            "<script>window.Plotly || (document.getElementById("
            f'"{place}").textContent = "{_MISSING}")</script>'
        )
        return {_MIME: json.loads(self.to_json()), "text/html": html}


def _running_cell() -> tuple[str, int]:
    """The cell's id, where the front end sends it, else its source; and the number of its
    execution.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None:
        return "", 0
    request = shell.get_parent() if hasattr(shell, "get_parent") else {}
    name = request.get("metadata", {}).get("cellId") or shell.user_ns["In"][-1]
    return name, shell.execution_count
