"""The notebooks: with outputs, by public names alone, and carried out from top to bottom."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from silofl import read_results

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PUBLIC = (ROOT / "docs" / "site" / "pages" / "api.md").read_text(encoding="utf-8")


def read_code(path):
    """Return the code of a notebook's cells, with lines that begin with ! as calls of ``run_line``."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return re.sub(r"(?m)^!(.+)$", lambda line: f"run_line({line[1]!r})", code)


def carry_out(name):
    """Carry out a notebook in the current folder, as Jupyter in this environment does; a command must succeed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    def run_line(line):
        subprocess.run(line, shell=True, check=True, env=os.environ | {"PATH": path})

    names = {"run_line": run_line}
    exec(compile(read_code(ROOT / "docs" / "notebooks" / f"{name}.ipynb"), name, "exec"), names)
    return names


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_has_its_outputs_and_imports_public_names_alone(path):
    text = path.read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, 1 + len(cells))]
    assert any(cell["outputs"] for cell in cells)
    # Of a terminal's bars and of the machine that ran it nothing stays.
    assert not re.search(r"\\u001b|\\r|Traceback|/home/|/root/|/tmp/", text)
    imports = [node for node in ast.walk(ast.parse(read_code(path))) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, name.name) for node in imports if node.module.startswith("silofl") for name in node.names]
    # The reference names a function, or its module with the members that are public.
    documented = [name for module, name in ours if f"::: {module}.{name}\n" in PUBLIC or f"::: {module}\n" in PUBLIC]
    assert documented == [name for _, name in ours]


def test_the_papers_steps_learn_and_like_sites_listen_to_each_other():
    names = carry_out("paper_step")
    losses, weights = names["losses"], names["weights"]
    assert sum(losses[-3:]) < sum(losses[:3])
    assert weights.sum(axis=1) == pytest.approx([1, 1, 1])
    assert weights[0, 1] > weights[0, 2] and weights[1, 0] > weights[1, 2]


@pytest.mark.long
def test_an_own_folder_becomes_a_report_and_a_model_that_finds_what_was_drawn(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = carry_out("own_folder")
    assert Path("my-run/report.html").is_file() and {*names["results"].joining} == {"north", "south"}
    drawn = names["np"].asarray(names["Image"].open("my-images/north/masks/0.png")) > 0
    found = names["prediction"].label_map > 0
    assert (drawn & found).sum() > 0.8 * (drawn | found).sum()


@pytest.mark.long
def test_a_model_is_evaluated_at_a_hospital_that_took_no_part(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = carry_out("evaluate_at_hospital")
    assert {*read_results("run").values} == {"north", "south", "east"}
    scores = names["evaluation"]["scores"][""]
    # What the page says of this model.
    assert scores["accuracy"]["value"] < 0.6 and scores["auroc"]["value"] > 0.8
    assert [answers["small"] for answers in names["evaluation"]["confusion"].values()] == [0, 0]
    assert Path("west/evaluation.html").is_file() and names["prediction"].label == 1
