from types import SimpleNamespace

import pytest

from silofl.data.domain import Domain
from silofl.inference.readme import bundle_readme, super_model_readme


def readme(study, sites=(), shape=(1, 32, 32), domain=None, rule="selector", facts=()):
    about = {"sites": sites, "image_shape": shape, "domain": domain or Domain(), "rule": rule, "facts": dict(facts)}
    return super_model_readme(SimpleNamespace(study=study, **about), "Somebody answers.")


def test_a_readme_names_labels_sites_and_size(make_study):
    text = readme(make_study(), ("north", "south"), domain=Domain(("volumes",), modalities=("MR", "CT")))
    for part in (
        "1 = organ, 2 = lesion",
        "north, south",
        "1 x 32 x 32",
        "learnt from volumes, MR or CT",
        "predict THIS_FOLDER scan.nii.gz dicom_folder -o",
        "SuperModel.load",
    ):
        assert part in text
    assert "no statistics" not in text


def test_a_label_is_no_link_of_the_readme(make_study):
    text = readme(make_study(labels={1: "[seen](https://example.org)"}))
    assert "1 = `[seen](https://example.org)`\n" in text


def test_a_network_without_statistics_is_said(make_study):
    study = make_study(model={"normalization": "batch_stateless"})
    assert "keeps no statistics" in readme(study)


def test_a_bundles_readme_names_its_members_and_commands(make_study):
    text = bundle_readme(make_study(), ["global", "north"], (1, 32, 32))
    assert "global, north" in text and "(n, 1, 32, 32)" in text and "monai.bundle run" in text


def test_a_bundles_readme_says_how_predict_reads_the_programs_probabilities(make_study):
    for task, read in (("classification", "log() / 2.5).softmax"), ("multilabel", "logit() / 2.5).sigmoid")):
        study = make_study(task, labels={0: "slow", 1: "fast"})
        assert read in bundle_readme(study, ["a"], (1, 32, 32), 2.5)
        assert "temperature" not in bundle_readme(study, ["a"], (1, 32, 32))


def test_neighbours_are_said_where_there_are_some(make_study):
    for neighbours in (0, 1):
        study = make_study(data={"neighbours": neighbours})
        for text in (readme(study), bundle_readme(study, ["a"], (1, 32, 32))):
            assert ("An image holds 3 slices of its volume as channels" in text) == (neighbours == 1)


def test_contrasts_are_named_where_the_study_names_them(make_study):
    for names in ([], ["T1", "T2"]):
        study = make_study(data={"channels": 2, "channel_names": names})
        for text in (readme(study, shape=(2, 32, 32)), bundle_readme(study, ["a"], (2, 32, 32))):
            assert ("the contrasts T1, T2 as channels" in text and "`T1=FILE,T2=FILE`" in text) == bool(names)


@pytest.mark.parametrize(
    ("rule", "facts", "words"),
    [
        ("selector", {}, "the selector is a classifier"),
        ("mean", {}, "holds a model of each of these hospitals"),
        ("mean", {"candidate": "blend"}, None),
        ("only", {}, None),
    ],
)
def test_a_readme_says_what_answers_and_what_the_folder_tells_of_hospitals(make_study, rule, facts, words):
    sites = ("federated",) if rule == "only" else ("federated", "local")
    text = readme(make_study(), sites, rule=rule, facts=facts)
    assert "Somebody answers. This is a research tool" in text
    assert ("Give it to nobody" in text) == (words is not None) and (words or "") in text
