"""The notebook of the documentation runs, and its stored outputs are those of a whole run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.nightrank.conftest import World
from tests.processes import ROOT

pytestmark = pytest.mark.processes
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs_of(notebook: Any) -> str:
    return "\n".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in code_cells(notebook)
        for output in cell.outputs
    )


def test_there_is_a_notebook_and_a_page_that_links_to_it() -> None:
    assert NOTEBOOKS
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    assert all(f"(notebooks/{path.name})" in page for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_runs(path: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NIGHTRANK_NOTEBOOK_LAKE", world.root)
    monkeypatch.setenv("NIGHTRANK_NOTEBOOK_CONFIG", str(world.config))
    notebook = nbformat.read(path, as_version=4)
    for cell in code_cells(notebook):
        cell.outputs = []
    ran = NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    assert f"{world.lake.recommendations().rows} rows for" in outputs_of(ran)
    pictures = [o for cell in code_cells(ran) for o in cell.outputs if "image/png" in o.get("data", {})]
    assert len(pictures) == 2
    (auc,) = [line for line in outputs_of(ran).split("\n") if line.startswith("AUC on")]
    assert float(auc.rsplit(" ", 1)[1]) > 0.5


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_its_outputs_are_those_of_one_run_in_order(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = code_cells(notebook)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert kinds <= {"execute_result", "display_data", "stream"}  # no errors
    assert str(ROOT) not in path.read_text(encoding="utf-8")
