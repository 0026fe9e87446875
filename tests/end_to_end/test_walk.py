"""The walks of the pages, by their commands: from downloaded nuclei to a table, and a head trained on a frozen body."""

import json
import shlex
import shutil
import zipfile

import pytest
import torch

from silofl_desk.phantoms import stains

from ..conftest import SMALL_UNET
from ..recipes.made_sets import GREY_DARK, GREY_LIGHT, ON_PURPLE, add_nuclei
from ..recipes.run_recipes import run_recipe
from ..test_docs import ROOT, commands, fences, text_of
from .conftest import carried_out

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("decoded_here", "undrawn")]

TITLE = "## A first comparison on real data"
SMALL = ["--seeds", "0", "--rounds", "2", "--set", f"model={json.dumps(SMALL_UNET)}"]
SMALL += ["--set", "baseline_comparison=false", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
# Site -> size and look of its images; the last kind is none of the import's.
KINDS = {
    "fluo_256": ((256, 256), GREY_DARK),
    "fluo_360": ((360, 360), GREY_DARK),
    "histo_purple": ((256, 320), ON_PURPLE),
}
NONE = ((300, 300), GREY_LIGHT)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Stand where the reader does: in a folder with the jobs and the download, of which each image has its nuclei."""
    for site, (shape, look) in {**KINDS, "none": NONE}.items():
        for number in range(5 if site in KINDS else 1):
            nuclei = [(60 + 9 * number, 110), (130, 150 + 7 * number)]
            add_nuclei(tmp_path / "raw", f"{site}{number}", shape, look, nuclei)
    shutil.make_archive(str(tmp_path / "stage1_train"), "zip", tmp_path / "raw")
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def carry_out_page():
    """Carry out the section's commands, `compare` with small settings; returns what each printed."""
    (block,) = fences(text_of(ROOT / "docs" / "compare-and-claims.md").partition(TITLE)[2].partition("\n## ")[0])
    printed = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line.removeprefix("python ").removeprefix("-m "), comments=True)
        assert program in ("zipfile", "silofl", "recipes/nuclei_dsb2018.py")
        if program == "zipfile":
            printed.append(zipfile.main(arguments))
        elif program != "silofl":
            printed.append(run_recipe("nuclei_dsb2018", *arguments))
        else:
            printed.append(carried_out(*arguments, *(SMALL if arguments[0] == "compare" else [])))
    return printed


def test_five_commands_lead_from_the_download_to_a_table(here):
    _, imported, surveyed, _, crossed = printed = carry_out_page()
    assert len(printed) == 5
    # 5 images: 1 test, round(4 * 0.2) = 1 validation, 3 training
    for site in KINDS:
        assert f"{site}: 3 training, 1 validation, 1 test, 5 patients" in imported
    assert "1 images fit no kind of microscopy and are left out: 1 of 300x300 light" in imported
    assert "All can supply: nucleus." in surveyed and "histo_purple" in crossed
    table = json.loads((here / "runs" / "nuclei" / "table.json").read_text())
    assert [row["name"] for row in table["rows"]] == ["harmofl", "local", "fedavg", "fedbn"]
    assert table["sites"] == sorted(KINDS) and (here / "runs" / "nuclei" / "comparison.html").is_file()


# In the place of the page's DenseNet-121, with the same names.
DENSENET = "model={network: monai.networks.nets.DenseNet169, normalization: batch, arguments: "
DENSENET += "{init_features: 8, growth_rate: 4, block_config: [2, 2]}}"


def test_a_head_alone_travels_once_its_body_is_everywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stains, "PATIENTS", {"training": 3, "validation": 3, "test": 3})
    text = text_of(ROOT / "docs" / "own-data.md")
    (block,) = [one for one in fences(text) if "training.frozen" in one]
    said = []
    for _, arguments in commands(f"```\n{block}```\n"):
        small = {"rounds=10": "rounds=3"} | {one: DENSENET for one in arguments if one.startswith("model=")}
        alone = ["--in-process", "--set", "baseline_comparison=false"] if arguments[0] == "simulate" else []
        said.append(carried_out(*(small.get(one, one) for one in arguments), *alone))
    assert len(said) == 4 and "everybody starts from weights.pt" in said[2]
    bytes_to, bytes_from = {}, {}
    for run in ("whole", "head"):
        rounds = json.loads((tmp_path / run / "ledger.json").read_text())
        bytes_to[run] = [one["bytes_to"]["west"] for one in rounds]
        bytes_from[run] = [one["bytes_from"]["west"] for one in rounds]
    files = (tmp_path / "head" / name for name in ("job/app/config/weights.pt", "model/last.pt"))
    begun, trained = (torch.load(path, weights_only=True) for path in files)
    learns = {name for name, one in trained.items() if not name.startswith("network.features.")}
    body = sum(one.nbytes for name, one in trained.items() if name not in learns and one.is_floating_point())
    # The whole body in the first round alone
    assert bytes_to["head"] == [bytes_to["whole"][0], *[bytes_to["whole"][0] - body] * 2]
    assert bytes_from["head"] == [bytes_from["whole"][0] - body] * 3
    assert {name for name, one in trained.items() if not one.equal(begun[name])} <= learns
    # The estimate says the same of the rounds, in MiB.
    rows = [line.split() for line in said[3].splitlines()]
    for name, to in (("1", bytes_to["head"][0]), ("2-3", bytes_to["head"][1])):
        assert [name, f"{to / 2**20:.2f}", f"{bytes_from['head'][0] / 2**20:.2f}"] in rows
