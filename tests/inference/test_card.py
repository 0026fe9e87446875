from dataclasses import replace

import pytest

from silofl.core.operating_point import OperatingPoint
from silofl.data.data_profile import DataProfile, Range, VoxelSizes
from silofl.inference.card import model_card
from silofl.study.sections import CardSettings, DoNotUseSettings, OperatingPointSettings

SECTIONS = ["General description", "Intended use", "Algorithm", "Training data", "Results"]
SECTIONS += ["What each site chose", "Limits", "Privacy"]
PART = {"cases": 4, "patients": None, "examples": 31}
FACTS = {
    "run": "small-1",
    "rounds": 3,
    "reported_round": 2,
    "test": {"north": {"value": 0.81249, "num_cases": 4, "num_patients": 3, "num_excluded": 1}},
    "mean": 0.81249,
    "spread": 0.0,
    "data": {"north": {"training": PART, "validation": PART, "test": PART | {"patients": 2}}},
    "joining": {"north": {"chosen": "local", "verdict": "keeps its own model"}},
    "left": [{"name": "weights", "purpose": "what the training changed"}],
}


def card_of(contents):
    return model_card(contents, {"silofl": "1.2"}, "f1")


def test_a_card_has_the_values_of_findings_and_their_absences(make_contents, make_study):
    study = make_study("multilabel", labels={0: "effusion", 1: "nodule"})
    labels = {"0": 0.25, "no effusion": 0.75, "no nodule": 1.0}
    north = {"value": 0.5, "num_cases": 4, "num_excluded": 0, "labels": labels}
    facts = FACTS | {"test": {"north": north, "south": north | {"labels": {"1": 0.125}}}}
    text = card_of(replace(make_contents("only", study=study), facts=facts))
    (head,) = (line for line in text.splitlines() if "no effusion" in line)
    (row,) = (line for line in text.splitlines() if line.startswith("| north") and "0.250" in line)
    for line, wanted in (
        (head, ["effusion", "no effusion", "nodule", "no nodule"]),
        (row, ["0.250", "0.750", "not known", "1.000"]),
    ):
        assert [cell.strip() for cell in line.split("|")][3:7] == wanted
    assert "the value of a finding is its sensitivity, the value of its absence the specificity" in text


def test_a_card_says_what_the_run_recorded(make_contents):
    data_profile = DataProfile(("volumes",), ("grey",), ("MR",), ("LPS",), (Range("mean", 0.1, 0.4),))
    data_profile = replace(data_profile, voxels=VoxelSizes((0.5, 0.5, 2.0), (1.0, 1.0, 5.0)))
    contents = replace(make_contents(), facts=FACTS, data_profile=data_profile)
    text = card_of(contents)
    for part in (
        "arXiv:2203.10144",
        "- Network: monai.networks.nets.UNet, normalization batch, from random weights",
        "| north | 0.812 | 4     | 3        | 1              |",
        "| north | not known / 4 / 31 ",
        "| north | its local model | keeps its own model ",
        "an image of another kind than volumes, grey, MR.",
        "mean 0.1 to 0.4",
        "voxels of half to twice 0.5 x 0.5 x 2 to 1 x 1 x 5 mm",
        "score for it is above 0.6, else the global model",
        "- weights: what the training changed",
        "`f1`",
        contents.study.digest,
        "small-1",
        "Volumes, grey, MR, LPS",
    ):
        assert part in text
    assert "What left the sites is not recorded" not in text


def test_a_card_says_which_answers_must_not_be_used(make_contents):
    contents = make_contents()
    assert "- The study has no rule (`do_not_use`) that forbids answers." in card_of(contents)
    rule = DoNotUseSettings(on_fallback=True, label_below=0.7)
    study = contents.study.model_copy(update={"do_not_use": rule})
    sentence = (
        "- By the study's rule an answer must not be used where the selector falls back to the global model, or where "
        "the Dice of a label is below 0.70 or not known."
    )
    assert sentence in card_of(replace(contents, study=study))


@pytest.mark.parametrize(
    ("annotated", "sentence"),
    [
        (([1, 2], [2]), "annotated: south: organ\n"),
        (([1], [2]), "annotated: north: `le|sion`; south: organ\n"),
        (([1, 2], [1, 2]), "annotated: none at any site\n"),
        # One was counted by an older version.
        (([1, 2], None), "annotated: not known; it is not recorded\n"),
    ],
)
def test_the_card_says_which_labels_a_site_has_not_annotated(make_contents, make_study, annotated, sentence):
    data = dict(zip(("north", "south"), annotated, strict=True))
    counts = {site: FACTS["data"]["north"] | {"labels_annotated": numbers} for site, numbers in data.items()}
    study = make_study(labels={1: "organ", 2: "le|sion"})
    assert sentence.replace("|", "/") in card_of(replace(make_contents(), study=study, facts={"data": counts}))


@pytest.mark.parametrize("rule", ["only", "mean", "selector"])
def test_every_section_without_facts_says_that_nothing_is_known(make_contents, rule):
    text = card_of(replace(make_contents(rule), facts={}))
    assert [line[3:] for line in text.splitlines() if line.startswith("## ")] == [*SECTIONS, "Use", "Versions"]
    for part in (
        "each site trained with is not known",
        "Not known: no result was recorded",
        "Not known: no choice of a site",
        "What left the sites is not recorded",
        "No kind of image is refused: none is known.",
        "- labels that a site has not annotated: not known",
    ):
        assert part in text
    assert "None" not in text and "{" not in text


CHOSEN = {"value": 0.5, "num_cases": 2, "num_excluded": 0}


def test_the_card_of_what_a_site_chose_says_so(make_contents):
    counts = {"patients": 4, "cases": 5, "examples": 50}
    data = {"north": dict.fromkeys(("training", "validation", "test"), counts)}
    facts = CHOSEN | {"candidate": "federated", "data": data}
    text = card_of(replace(make_contents("mean"), facts=facts, bias=0.7))
    assert "How does it answer? The mean of all sites' models answers." in text
    assert "by its own validation data: the federated model." in text and "no choice of a site" not in text
    assert "| this site | 0.500 | 2     | not known | 0 " in text
    assert "The foreground's log-odds are shifted by +0.7, decision threshold 0.33." in text
    assert "| north | 4 / 5 / 50" in text and "About the other sites nothing is known here." in text


def test_a_label_makes_no_link_tag_or_cell(make_contents, make_study):
    name = '<img src="https://example.org"> | [seen](https://example.org)'
    test = FACTS["test"]["north"] | {"labels": {"1": 0.5, "2": 0.25}}
    contents = replace(make_contents(), study=make_study(labels={1: name, 2: "organ"}), facts={"test": {"north": test}})
    shown = '`<img src="https://example.org"> / [seen](https://example.org)`'
    text = card_of(contents)
    assert text.count("<img") == text.count("[seen]") == text.count(shown) == 3 and name not in text
    head = next(line for line in text.splitlines() if "`<img" in line and line.startswith("|"))
    assert [cell.strip() for cell in head.split("|")[2:5]] == ["value", shown, "organ"]


def test_a_card_says_how_a_classs_probabilities_are_read(make_contents, make_study):
    study = make_study("classification").model_copy(update={"operating_point": OperatingPointSettings(specificity=0.9)})
    contents = replace(make_contents("only", study=study), operating_point=OperatingPoint(2.0, {1: 0.8}))
    # odds of 4 become 2
    sentence = "A case is called tumour from a probability of 0.67 on, for a specificity of 0.9 in validation."
    assert f"One model answers. Its probabilities go through a temperature of 2.00. {sentence}" in card_of(contents)
    assert "temperature" not in card_of(replace(contents, operating_point=OperatingPoint()))
    own = replace(contents, own_operating_points={"global": OperatingPoint(1.0, {1: 0.3})})
    assert "Where a hospital's own model answers, its own threshold counts: 0.30 for global." in card_of(own)


def test_a_card_says_what_people_stated_and_what_is_missing(make_contents, make_study):
    study = make_study().model_copy(
        update={"card": CardSettings(version="1.2.0", responsible="A. Doe, Coast Hospital")}
    )
    text = card_of(replace(make_contents("only"), study=study))
    assert "- version of the model: 1.2.0\n" in text and "- responsible: A. Doe, Coast Hospital\n" in text
    assert "- licence: not known to the program: card.licence of study.yaml" in text


def test_the_card_names_voxels_and_patches(make_contents, make_study):
    study = make_study(data={"dimensions": 3, "patches": {"size": [32, 32, 16]}})
    text = card_of(replace(make_contents("only"), image_shape=(1, 32, 32, 16), study=study))
    assert "- patches: 32 x 32 x 16 voxels\n" in text
    assert "- spacing of the voxels: not known" in card_of(make_contents())
