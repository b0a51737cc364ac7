"""The notebooks run, from the first cell to the last, on a run that was really made."""

import pytest
from repository import ROOT

nbclient = pytest.importorskip("nbclient", reason="running notebooks needs nbclient and ipykernel")
nbformat = pytest.importorskip("nbformat", reason="running notebooks needs nbformat")
pytest.importorskip("ipykernel", reason="running notebooks needs nbclient and ipykernel")


@pytest.mark.filterwarnings("default")  # the kernel's own libraries warn of each other
@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_runs_on_a_recorded_run(path, tmp_path, monkeypatch):
    """Every cell runs, and every one that ends in a value shows it."""
    monkeypatch.setenv("IOPROF_RUN", str(ROOT / "tests" / "data" / "demo" / "files"))
    notebook = nbformat.read(path, as_version=4)

    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()

    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    assert any("plotly" in mime for cell in code for output in cell.outputs for mime in output.get("data", {}))


@pytest.mark.parametrize("path", sorted(ROOT.glob("notebooks/*.ipynb")), ids=lambda path: path.stem)
def test_a_notebook_computes_nothing_that_the_package_lacks(path):
    """Cells hold no functions or classes, and are short."""
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]

    assert not [source for source in sources if "def " in source or "class " in source]
    assert all(len(source.splitlines()) <= 17 for source in sources)
