"""The tutorial that is a notebook: executed by a kernel, with few showers.

Its results on the page are those of `jupyter execute --inplace docs/tutorials/own-arrays.ipynb`.
"""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "docs" / "tutorials" / "own-arrays.ipynb"
FEW = """SHOWERS, EPOCHS = 96, 1
FEWER = ["data.simulation.engine=parametrised", "data.simulation.showersPerFile=32", "data.energyGev=[5, 10]",
         "train.batchPerReplica=16", "train.generatorUpdates=1", "model.latentSize=8", "validation.bootstraps=20",
         "validation.showers=64", "validation.energyBins=1"]
"""


@pytest.mark.integration
def test_every_cell_of_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # commands that ran in this process before set it
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    sized = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", ())]
    sized[0].source = FEW
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    texts = [data["text/plain"] for data in shown if "text/plain" in data]
    assert any(re.match(r"Run\(compact, 96 showers, 1 epochs, ", text) for text in texts)
    assert any(re.match(r"Evaluation\(.*; 32 generated, 32 held-out showers\)", text) for text in texts)
    assert any("image/png" in data for data in shown) and any("<svg" in data.get("text/html", "") for data in shown)
    assert (tmp_path / "runs/own/report.html").is_file()
