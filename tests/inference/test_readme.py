from types import SimpleNamespace

import pytest

from silofl.core.operating_point import MOST_PROBABLE, OperatingPoint
from silofl.inference.readme import bundle_readme
from silofl.study.sections import OperatingPointSettings


def bundled(study, members=("a",), shape=(1, 32, 32), operating_point=MOST_PROBABLE, rule="selector"):
    about = {
        "sites": members,
        "image_shape": shape,
        "operating_point": operating_point,
        "rule": rule,
        "facts": {},
        "own_operating_points": {},
    }
    return bundle_readme(SimpleNamespace(study=study, home_statistics="", **about), members)


def test_a_bundles_readme_names_its_members_and_commands(make_study):
    text = bundled(make_study(), ["global", "north"])
    assert "global, north" in text and "(n, 1, 32, 32)" in text and "monai.bundle run" in text
    assert "keeps no statistics" in bundled(make_study(model={"normalization": "batch_stateless"}))


def test_a_bundles_readme_says_how_a_classs_probabilities_are_read(make_study):
    study = make_study("classification").model_copy(update={"operating_point": OperatingPointSettings(specificity=0.9)})
    text = " ".join(bundled(study, operating_point=OperatingPoint(2.0, {1: 0.8})).split())
    assert "(p.log() / 2).softmax(dim=1)" in text and "before the temperature" in text
    # odds of 4 become 2
    assert "called tumour from a probability of 0.67 on, for a specificity of 0.9 in validation" in text
    assert "temperature" not in bundled(study)


@pytest.mark.parametrize(
    ("data", "shape", "words"),
    [
        ({"neighbours": 1}, (3, 32, 32), "An image holds 3 slices of its volume as channels"),
        ({"channels": 2, "channel_names": ["T1", "T2"]}, (2, 32, 32), "the contrasts T1, T2 as channels"),
        # A shell would part it.
        ({"channels": 2, "channel_names": ["T1", "T2 FLAIR"]}, (2, 32, 32), "`'T1=FILE,T2 FLAIR=FILE'`"),
    ],
)
def test_several_slices_or_contrasts_of_an_image_are_said(make_study, data, shape, words):
    assert words in bundled(make_study(data=data), shape=shape) and words not in bundled(make_study())


@pytest.mark.parametrize(
    ("rule", "words"),
    [("selector", "the selector is a classifier"), ("mean", "holds a model of each of these hospitals"), ("only", "")],
)
def test_a_readme_says_what_the_folder_tells_of_hospitals(make_study, rule, words):
    text = bundled(make_study(), ("federated",) if rule == "only" else ("federated", "local"), rule=rule)
    assert ("Give it to nobody" in text) == bool(words) and words in text
