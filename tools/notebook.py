"""Execute the tutorial notebook at its full size and keep its results: `python -m tools.notebook`."""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).resolve().parents[1] / "docs" / "tutorials" / "own-arrays.ipynb"


def execute() -> None:
    """Progress and messages on the standard error stream are not kept."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=None, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if one.output_type == "execute_result" or "data" in one]
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    execute()
