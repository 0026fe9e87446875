"""The imports of docs/papers.md and some comparisons, as they are printed, on small made-up sets in their own form."""

import json
import re

import pytest

from silofl.data.site_data import load_site_data
from silofl.study import load_study
from silofl_desk.studies.runs.simulation import study_file

from ..recipes.made_sets import WRITERS
from ..recipes.run_recipes import run_recipe
from ..test_docs import ROOT, commands, text_of
from .conftest import carried_out

pytestmark = pytest.mark.usefixtures("decoded_here")
PRINTED = [arguments for _, arguments in commands(text_of(ROOT / "docs" / "papers.md"))]
# Recipe, SOURCE, TARGET and options; and the folders of which the training is cut to the smallest site's.
RECIPES = re.findall(r"python recipes/(\w+)\.py ([^#`\n]+(?:\n  [^#`\n]+)?)", text_of(ROOT / "docs" / "papers.md"))
IMPORTS = [[name, *rest.split()] for name, rest in RECIPES if name != "truncate"]
TRUNCATED = [rest.strip() for name, rest in RECIPES if name == "truncate"]


def sized(side):
    """Return the change of a study that brings its images to a size."""
    return ["--set", f"data.transforms=[{{Resize: {{spatial_size: [{side}, {side}]}}}}]"]


def carry_out_import(arguments, folder):
    """Import a made-up set as the page does, into a folder of a test; returns that of the sites."""
    recipe, source, target, *options = arguments
    WRITERS[recipe](folder / source)
    run_recipe(recipe, folder / source, folder / target, *options)
    if target in TRUNCATED:
        run_recipe("truncate", folder / target)
    return folder / target


def studies_of(target):
    """Return the studies of the page's jobs that take a folder of data."""
    jobs = {arguments[1] for arguments in PRINTED if target in re.split("[=, ]", " ".join(arguments[2:]))}
    return [load_study(study_file(ROOT / job)) for job in sorted(jobs) if job.startswith("jobs/")]


# What each site of a made-up set has for training, validation and test.
HALVES = {(2, 0, 2), (3, 0, 3), (4, 0, 4), (6, 0, 6)}
PARTS = {
    # The sets' own tests; of three or four other patients one for validation, of TNBC's four also one for the test.
    "data/nuclei": {(2, 1, 1)},
    # 5 or 6 volumes of 5 slices, one of 4: 1 test, 1 validation, training cut to the 3 volumes of the smallest.
    "data/prostate": {(14, 5, 5)},
    # round(5 * 0.25) = 1 or round(6 * 0.25) = 2 test, round(4 * 0.3334) = 1 validation
    "data/prostate_fedsm": {(14, 5, 5), (14, 5, 10)},
    # 5 patients: 1 test, 1 validation, 3 training of 2 patches each, or of 4 cut to as many
    "data/camelyon17": {(6, 2, 2), (6, 4, 4)},
    # 7 windows each, of which round(7 * 0.5) = 4 for the test
    "data/pamap2": {(3, 0, 4)},
    # 8 photographs: round(8 * 0.25) = 2 test, round(6 * 0.3334) = 2 validation
    "data/retina": {(4, 2, 2)},
}


@pytest.mark.parametrize("arguments", IMPORTS, ids=lambda arguments: arguments[2])
def test_the_jobs_read_what_a_printed_import_makes(arguments, tmp_path):
    data = carry_out_import(arguments, tmp_path)
    studies, sites = studies_of(arguments[2]), sorted(path.parent for path in data.glob("*/dataset.json"))
    assert studies and len(sites) in (5, 6, 20)
    for study in studies:
        # The twenty sites of a set that is dealt are all of one size.
        found = [load_site_data(site, study, tmp_path / "cache") for site in sites[:6]]
        parts = {(len(one.training), len(one.validation), len(one.test)) for one in found}
        assert parts == PARTS.get(arguments[2], parts & HALVES) and parts


SMALL = ["--seeds", "0", "--rounds", "2", "--in-process", "--set", "baseline_comparison=false"]
UNET = ["--set", "model.features=[4,4,4,4,4,4]"]
# The first comparison that the page prints of a job -> what makes it small: of its import, and of its studies.
RUNS = {
    "harmofl_histology": ([], [*UNET, *sized(32)]),
    "harmofl_prostate": ([], [*UNET, *sized(32)]),
    "harmofl_camelyon17": ([], sized(32)),
    "adafed_covid": (["--sites", "4"], sized(64)),
}


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("job", RUNS)
def test_a_printed_comparison_ends_with_its_page(job, tmp_path, monkeypatch):
    of_import, of_study = RUNS[job]
    (tmp_path / "jobs").symlink_to(ROOT / "jobs")
    monkeypatch.chdir(tmp_path)
    compared = next(found for found in PRINTED if found[:2] == ["compare", f"jobs/{job}"])
    data = compared[compared.index("--data") + 1]
    (imported,) = [found for found in IMPORTS if found[2] == data]
    carry_out_import([*imported, *of_import], tmp_path)
    for found in PRINTED:
        if found[:2] == ["pretrain", f"jobs/{job}"]:
            carried_out(*found, *of_study)
    carried_out(*compared, *SMALL, *of_study)
    table = json.loads((tmp_path / "OUT" / "table.json").read_text())
    methods = compared[compared.index("--methods") + 1].split(",")
    # And the job's own row, under its method's name.
    assert {*methods} < {row["name"] for row in table["rows"]}
    assert len(table["sites"]) == len(list((tmp_path / data).glob("*/dataset.json")))
    for row in table["rows"]:
        assert all(0 <= site["mean"] <= 1 for site in row["sites"].values()), row["name"]
    page = (tmp_path / "OUT" / "comparison.html").read_text()
    assert all(method in page for method in methods)
