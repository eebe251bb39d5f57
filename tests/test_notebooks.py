"""The notebooks in examples/ run, and are stored without outputs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import pytest

ROOT = Path(__file__).parent.parent
SMALL: dict[str, dict[str, Any]] = {  # instead of the values in the cell that is tagged "parameters"
    "first_steps": {"STEPS": 5_500, "MORE": 6_000, "HIDDEN": 8},
    "comparing_algorithms": {"SEEDS": range(2), "BUDGET": 1_000, "DRAWS": 20, "RESULTS": ROOT / "results"},
}
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


def cells(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def is_parameters(cell: dict[str, Any]) -> bool:
    return "parameters" in cell["metadata"].get("tags", [])


def run(notebook: Path, values: dict[str, Any]) -> dict[str, Any]:
    """Run the code cells in one namespace, without Jupyter; `values` replace those of the parameters."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(cells(notebook)):
        if cell["cell_type"] != "code":
            continue
        code = compile("".join(cell["source"]), f"{notebook.name}, cell {number}", "exec", dont_inherit=True)
        exec(code, namespace)
        if is_parameters(cell):
            assert set(values) <= set(namespace)
            namespace.update(values)
    return namespace


def test_each_notebook_is_tried() -> None:
    assert {notebook.stem for notebook in NOTEBOOKS} == set(SMALL)


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
@pytest.mark.parametrize("name", SMALL)
def test_every_cell_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matplotlib.use("agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)  # so that the variable is read again
    monkeypatch.setattr("offrank.lab.statistics.RESAMPLES", 100)
    run(ROOT / "examples" / f"{name}.ipynb", SMALL[name])
    plt.close("all")


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_stored_without_outputs(notebook: Path) -> None:
    code = [cell for cell in cells(notebook) if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert sum(map(is_parameters, code)) == 1


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_form_is_that_of_jupyter(notebook: Path) -> None:
    form = json.loads(notebook.read_text(encoding="utf-8"))
    assert (form["nbformat"], form["nbformat_minor"]) == (4, 5)
    assert set(form["metadata"]) == {"kernelspec", "language_info"}  # nothing about the machine that saved it
    ids = [cell["id"] for cell in form["cells"]]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_text_is_wrapped_and_its_links_lead_to_files(notebook: Path) -> None:
    text = "\n".join("".join(cell["source"]) for cell in cells(notebook) if cell["cell_type"] == "markdown")
    assert not [line for line in text.split("\n") if len(line) > 120 and not line.startswith("|")]
    for target in re.findall(r"\]\(([^)\s#]+)[^)]*\)", text):
        assert re.match(r"[a-z]+:", target) or (notebook.parent / target).exists(), target
