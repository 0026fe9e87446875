import json
from pathlib import Path

import nibabel
import pytest

from tests.recipes.made_sets import CASES, write_camelyon17, write_prostate
from tests.recipes.run_recipes import run_recipe
from tests.recipes.written import read_written

EXPECTED = Path(__file__).parent / "expected"


@pytest.mark.parametrize("case", CASES)
def test_a_recipe_writes_what_version_0_4_imported(tmp_path, case):
    script, write, options = CASES[case]
    write(tmp_path / "source")
    run_recipe(script, tmp_path / "source", tmp_path / "target", *options)
    found, expected = read_written(tmp_path / "target"), json.loads((EXPECTED / f"{case}.json").read_text())
    assert found.keys() == expected.keys()
    for site, wanted in expected.items():
        assert found[site]["dataset"] == wanted["dataset"]
        assert found[site]["digest"] == wanted["digest"]


def count_slices(site, record):
    if "slices" in record:
        first, last = record["slices"]
        return last - first + 1
    return nibabel.load(site / record["image"]).shape[2] if record["image"].endswith(".gz") else 1


@pytest.mark.parametrize(
    ("script", "write"), [("prostate_saml", write_prostate), ("camelyon17_wilds", write_camelyon17)]
)
def test_truncation_cuts_the_training_to_the_smallest_site(tmp_path, script, write):
    write(tmp_path / "source")
    run_recipe(script, tmp_path / "source", tmp_path / "target")
    sizes, whole = [], read_written(tmp_path / "target")
    for site, found in whole.items():
        sizes.append(sum(count_slices(tmp_path / "target" / site, one) for one in found["dataset"]["training"]))
    run_recipe("truncate", tmp_path / "target")
    for site, found in read_written(tmp_path / "target").items():
        before, after = whole[site]["dataset"], found["dataset"]
        assert sum(count_slices(tmp_path / "target" / site, one) for one in after["training"]) == min(sizes)
        assert all(before[part] == after[part] for part in ("validation", "test"))
    assert max(sizes) > min(sizes)
