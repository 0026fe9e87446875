from types import SimpleNamespace

import pytest

from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.data.domain import Domain
from silofl.inference.readme import bundle_readme, super_model_readme
from silofl.study.sections import OperatingPointSettings


def readme(study, sites=(), shape=(1, 32, 32), domain=None, rule="selector", facts=()):
    about = {"sites": sites, "image_shape": shape, "domain": domain or Domain(), "rule": rule, "facts": dict(facts)}
    contents = SimpleNamespace(study=study, home_statistics="", **about)
    return super_model_readme(contents, "Somebody answers.")


def bundled(study, members=("a",), shape=(1, 32, 32), calling=MOST_PROBABLE, rule="selector", facts=()):
    about = {"sites": members, "image_shape": shape, "calling": calling, "rule": rule, "facts": dict(facts)}
    return bundle_readme(SimpleNamespace(study=study, home_statistics="", **about), members)


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
    assert "keeps no statistics" in readme(make_study(model={"normalization": "batch_stateless"}))
    # A label is no link.
    assert "1 = `[seen](https://example.org)`\n" in readme(make_study(labels={1: "[seen](https://example.org)"}))


def test_a_bundles_readme_names_its_members_and_commands(make_study):
    text = bundled(make_study(), ["global", "north"])
    assert "global, north" in text and "(n, 1, 32, 32)" in text and "monai.bundle run" in text


def test_a_bundles_readme_says_how_a_classs_probabilities_are_read(make_study):
    study = make_study("classification").model_copy(update={"operating_point": OperatingPointSettings(specificity=0.9)})
    text = " ".join(bundled(study, calling=OperatingPoint(2.0, {1: 0.8})).split())
    assert "(p.log() / 2).softmax(dim=1)" in text and "before the temperature" in text
    # odds of 4 become 2
    assert "called tumour from a probability of 0.67 on, for a specificity of 0.9 in validation" in text
    assert "temperature" not in bundled(study)


def test_neighbours_are_said_where_there_are_some(make_study):
    for neighbours in (0, 1):
        study = make_study(data={"neighbours": neighbours})
        for text in (readme(study), bundled(study)):
            assert ("An image holds 3 slices of its volume as channels" in text) == (neighbours == 1)


def test_contrasts_are_named_where_the_study_names_them(make_study):
    for names in ([], ["T1", "T2"]):
        study = make_study(data={"channels": 2, "channel_names": names})
        for text in (readme(study, shape=(2, 32, 32)), bundled(study, shape=(2, 32, 32))):
            assert ("the contrasts T1, T2 as channels" in text and "`T1=FILE,T2=FILE`" in text) == bool(names)
    # A shell would part it.
    study = make_study(data={"channels": 2, "channel_names": ["T1", "T2 FLAIR"]})
    assert "`'T1=FILE,T2 FLAIR=FILE'`" in readme(study, shape=(2, 32, 32))


@pytest.mark.parametrize(
    ("rule", "facts", "words"),
    [
        ("selector", {}, "the selector is a classifier"),
        ("mean", {}, "holds a model of each of these hospitals"),
        ("mean", {"candidate": "federated"}, "holds a model of each of these hospitals"),
        ("only", {}, None),
    ],
)
def test_a_readme_says_what_answers_and_what_the_folder_tells_of_hospitals(make_study, rule, facts, words):
    sites = ("federated",) if rule == "only" else ("federated", "local")
    text = readme(make_study(), sites, rule=rule, facts=facts)
    assert "Somebody answers. This is a research tool" in text
    for one in (text, bundled(make_study(), sites, rule=rule, facts=facts)):
        assert ("Give it to nobody" in one) == (words is not None) and (words or "") in one
