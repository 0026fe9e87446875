"""From the nuclei as they are downloaded to a table, by the commands of docs/compare-and-claims.md."""

import json
import shlex
import shutil
import zipfile

import pytest

from ..silofl_papers.sets.test_nuclei_dsb2018 import GREY_DARK, GREY_LIGHT, ON_PURPLE, add_image
from ..test_docs import ROOT, fences, text_of
from .conftest import carried_out

pytestmark = pytest.mark.long

TITLE = "## A first comparison on real data"
SMALL = ["--seeds", "0", "--rounds", "2", "--set", "model.features=[4,4,4,4,4,4]"]
SMALL += ["--set", "guard=false", "--set", "data.transforms=[{Resize: {spatial_size: [32, 32]}}]"]
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
            add_image(tmp_path / "raw", f"{site}{number}", shape, look, nuclei)
    shutil.make_archive(str(tmp_path / "stage1_train"), "zip", tmp_path / "raw")
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def carry_out_page():
    """Carry out the section's commands, `compare` with small settings; returns what each printed."""
    (block,) = fences(text_of(ROOT / "docs" / "compare-and-claims.md").partition(TITLE)[2].partition("\n## ")[0])
    printed = []
    for line in block.splitlines():
        program, *arguments = shlex.split(line.removeprefix("python -m "), comments=True)
        assert program in ("zipfile", "silofl")
        if program == "zipfile":
            printed.append(zipfile.main(arguments))
        else:
            printed.append(carried_out(*arguments, *(SMALL if arguments[0] == "compare" else [])))
    return printed


def test_five_commands_lead_from_the_download_to_a_table(here):
    _, imported, advised, _, crossed = printed = carry_out_page()
    assert len(printed) == 5
    # 5 images: 1 test, round(4 * 0.2) = 1 validation, 3 training
    for site in KINDS:
        assert f"{site}: 3 training, 1 validation, 1 test, 5 patients" in imported
    assert "1 images fit no kind of microscopy and are left out: 1 of 300x300 light" in imported
    assert "look different" in advised and "histo_purple" in crossed
    table = json.loads((here / "runs" / "nuclei" / "table.json").read_text())
    assert [row["name"] for row in table["rows"]] == ["harmofl_nuclei", "local", "fedavg", "fedbn"]
    assert table["sites"] == sorted(KINDS) and (here / "runs" / "nuclei" / "comparison.html").is_file()
