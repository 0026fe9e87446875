import json

import pytest

from silofl.importing.options import ImportOptions
from silofl.importing.site_files import CaseFiles, plan_pairs

OPTIONS = ImportOptions(test=0.25, validation=0.0)


def file(name):
    return name, lambda target: target.write_text(name)


def contrasts(case, *names):
    """A case with a file for each contrast, None for one that it lacks."""
    images = tuple(None if name is None else file(f"{case}/{name}.nii") for name in names)
    return CaseFiles(case, case, images, file(f"{case}/seg.nii"))


@pytest.fixture
def plan():
    """A site with four patients, of whom the first has no T2."""
    pairs = [contrasts("a", "t1", None), *(contrasts(case, "t1", "t2") for case in "bcd")]
    return plan_pairs("north", pairs, {1: "tumour"}, OPTIONS, ("T1", "T2"))


def test_a_case_of_one_image_is_recorded_as_before():
    pairs = [CaseFiles(case, case, (file(f"{case}.png"),), file(f"{case}-mask.png")) for case in "ab"]
    content = plan_pairs("north", pairs, {1: "tumour"}, OPTIONS).dataset
    # without channel_names, and the image is no list
    assert list(content) == ["task", "labels", "split_unit", "training", "validation", "test"]
    records = content["training"] + content["test"]
    assert {"image": "a.png", "label": "a-mask.png", "patient": "a", "case": "a"} in records


def test_a_case_of_several_images_lists_them_and_null_for_a_missing_one(plan):
    content = json.loads(json.dumps(plan.dataset))
    assert content["channel_names"] == ["T1", "T2"]
    images = {record["case"]: record["image"] for part in ("training", "test") for record in content[part]}
    assert images == {"a": ["a/t1.nii", None], **{case: [f"{case}/t1.nii", f"{case}/t2.nii"] for case in "bcd"}}
    wanted = {f"{case}/{name}.nii" for case in "abcd" for name in ("t1", "t2", "seg")} - {"a/t2.nii"}
    assert set(plan.files) == wanted
