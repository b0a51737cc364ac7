"""A figure as notebooks keep it: for the notebook's own display, and as HTML for what is made of
the notebook, such as `jupyter nbconvert --to html`, which does not know plotly's own type.
"""

import json
from typing import Any, Final

import plotly.graph_objects as go

_MIME: Final = "application/vnd.plotly.v1+json"
_MISSING: Final = (
    "<p>This figure needs plotly.js, which the first figure of a session carries: run all cells of"
    " the notebook again.</p>"
)


class NotebookFigure(go.Figure):  # type: ignore[misc]  # plotly has no types
    """A figure of plotly that is displayed in both forms."""

    _has_library = False
    """Whether a figure of this session has carried plotly.js, which takes 5 MB."""

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
        carries, NotebookFigure._has_library = not NotebookFigure._has_library, True
        html = self.to_html(full_html=False, include_plotlyjs=carries)
        if not carries:
            html = f'<script>window.Plotly || document.write("{_MISSING}")</script>{html}'
        return {_MIME: json.loads(self.to_json()), "text/html": html}
