"""The notebooks run completely on real runs, and use nothing but the public names."""

import re
import resource

import pytest
from repository import ROOT

nbclient = pytest.importorskip("nbclient", reason="running notebooks needs nbclient and ipykernel")
nbformat = pytest.importorskip("nbformat", reason="running notebooks needs nbformat")
pytest.importorskip("ipykernel", reason="running notebooks needs nbclient and ipykernel")

NOTEBOOKS = sorted(ROOT.glob("notebooks/*.ipynb"))
DEMO = ROOT / "tests" / "data" / "demo"


@pytest.mark.system(every=3)
@pytest.mark.filterwarnings("default")  # libraries of the Jupyter kernel emit warnings
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_within_a_minute(path, tmp_path, monkeypatch):
    """Every cell runs, every cell that ends in a value displays it, the run is a card, and figures
    are drawn."""
    monkeypatch.setenv("IOPROF_RUN", str(DEMO / "files"))
    monkeypatch.setenv("IOPROF_RUNS", str(DEMO))
    notebook = nbformat.read(path, as_version=4)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)

    nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # a busy machine makes no difference
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 60
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.outputs for cell in code)
    data = [output.get("data", {}) for cell in code for output in cell.outputs]
    assert any("plotly" in mime for shown in data for mime in shown)
    assert any('class="ioprof"' in "".join(shown.get("text/html", "")) for shown in data)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_computes_nothing_that_the_package_lacks(path):
    """Cells define no functions or classes, are short, import nothing from inside of ioprof, and
    are committed without outputs."""
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    sources = [re.sub(r'""".*?"""', "", cell.source, flags=re.DOTALL) for cell in cells]

    assert not [source for source in sources if "def " in source or "class " in source]
    assert all(len(source.splitlines()) <= 17 for source in sources)
    assert {"import ioprof"} == {
        line
        for source in sources
        for line in source.splitlines()
        if "import" in line and "ioprof" in line
    }
    assert not [cell for cell in cells if cell.outputs or cell.execution_count]


CELL = """%%ioprof --out run
import torch
data = torch.utils.data.DataLoader([torch.ones(4) * each for each in range(64)], 4)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for batch in data:
    optimizer.zero_grad(); model(batch).sum().backward(); optimizer.step()
"""


@pytest.mark.job(every=3)
@pytest.mark.filterwarnings("default")  # libraries of the Jupyter kernel emit warnings
def test_a_cell_is_recorded_and_figures_stay_in_what_nbconvert_makes(tmp_path):
    """The magic shows the card of its run, of a cell that fails its error alone; each figure is in
    the HTML, which carries plotly.js once."""
    nbconvert = pytest.importorskip("nbconvert", reason="needs nbconvert")
    sources = [
        "import ioprof",
        "%load_ext ioprof",
        CELL,
        "_.steps.height",
        f"run = ioprof.load({str(DEMO / 'files')!r})",
        "run.by_cause()",
        "run.timeline().show()",
        "%%ioprof --out failed\nraise ValueError('of the cell')",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}, allow_errors=True
    )
    client.execute()
    outputs = [cell.outputs for cell in notebook.cells]
    assert 'class="ioprof"' in outputs[2][0]["data"]["text/html"]
    assert outputs[3][0]["data"]["text/plain"] == "16"
    for shown in (outputs[5], outputs[6]):
        assert {"application/vnd.plotly.v1+json", "text/html"} == shown[0]["data"].keys()
    assert [each["ename"] for each in outputs[7]] == ["ValueError"]
    assert (tmp_path / "failed" / "run.json").exists()
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    assert page.count("Plotly.newPlot(") == 2
    assert page.count("* plotly.js v") == 1


@pytest.mark.job
@pytest.mark.filterwarnings("default")  # libraries of the Jupyter kernel emit warnings
@pytest.mark.parametrize("has_ids", [False, True])
def test_cells_that_run_again_carry_the_library_again(has_ids, tmp_path):
    """Once in the notebook, in its first figure: when all cells run a second time, and when one of
    the others does; in a front end that sends the ids of cells, also when its source has changed.
    No figure writes into a page that is there."""
    figure = "ioprof.report.notebook_figure.NotebookFigure()"
    sources = [
        "import ioprof.report.notebook_figure",
        f"{figure}.show(); {figure}",
        f"{figure}  # another",
    ]
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, sources)))
    client = nbclient.NotebookClient(
        notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )

    def run(*places):
        for place in places:
            client.kc.session.metadata = {"cellId": str(place)} if has_ids else {}
            client.execute_cell(notebook.cells[place], place)
        found = [each["data"]["text/html"] for cell in notebook.cells[1:] for each in cell.outputs]
        assert all("needs plotly.js" in each for each in found)
        return ["* plotly.js v" in each for each in found]

    with client.setup_kernel():
        for places in ((0, 1, 2), (0, 1, 2), (2,), (1,)):
            assert [True, False, False] == run(*places)
        notebook.cells[1].source += " # changed"
        assert [has_ids, False, False] == run(1)
    small = notebook.cells[2].outputs[0]["data"]["text/html"]
    assert "document.write" not in small
