import hashlib
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

from silofl.core.calling import Calling
from silofl.data.domain import Domain, Range
from silofl.errors import ConfigError
from silofl.inference import directory
from silofl.inference.directory import (
    _compute_fingerprint,
    plain_study,
    read_fingerprint,
    read_model_folder,
    write_model_folder,
)
from silofl.settings import parse
from silofl.study import STORED, Study

DOMAIN = Domain(("volumes",), ("grey",), ("MR",), ("LPS", "RAS"), (Range("mean", 0.1, 0.4), Range("roughness", 0, 0.2)))


@pytest.fixture
def folder(tmp_path, make_contents):
    write_model_folder(tmp_path / "supermodel", make_contents())
    return tmp_path / "supermodel"


def as_before(folder):
    """Write model.json as format 2 had it: without the domain, which the fingerprint then did not hold."""
    facts = json.loads((folder / "model.json").read_text())
    study = parse(Study, facts["study"], "study")
    facts = {key: value for key, value in facts.items() if key not in ("domain", "content", "pages")} | {"format": 2}
    facts["fingerprint"] = directory._compute_fingerprint(facts, study)
    (folder / "model.json").write_text(json.dumps(facts))


def edit(folder, **changes):
    facts = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps(facts | changes))


def test_a_model_is_read_although_its_study_may_not_begin_any_more(tmp_path, make_contents):
    begun = plain_study(make_contents().study) | {"algorithm": {"name": "apfl"}}
    begun["training"] |= {"optimizer": "sgd", "momentum": 0.9}
    with pytest.raises(ConfigError, match=r"training.momentum must be 0 .* not 0.9"):
        parse(Study, begun, "study.yaml")
    study = parse(Study, begun, "study.yaml", STORED)
    write_model_folder(tmp_path / "supermodel", replace(make_contents(), study=study))
    assert read_model_folder(tmp_path / "supermodel").study == study


def test_the_fingerprint_knows_whose_model_is_beside(tmp_path, make_contents):
    contents = make_contents(beside="local")
    for name, beside in (("with", "local"), ("without", None)):
        write_model_folder(tmp_path / name, replace(contents, beside=beside))
    assert read_fingerprint(tmp_path / "with") != read_fingerprint(tmp_path / "without")
    # Who takes the word out, or gives it another share, has another super model, and is told so.
    for changes in ({"beside": None}, {"beside": "local", "beside_share": 0.6}):
        edit(tmp_path / "with", **changes)
        with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
            read_model_folder(tmp_path / "with")


def test_a_model_beside_of_an_earlier_super_model_has_half_of_every_answer(tmp_path, make_contents):
    write_model_folder(tmp_path / "old", make_contents(beside="local", beside_share=0.7))
    facts = json.loads((tmp_path / "old" / "model.json").read_text())
    del facts["beside_share"], facts["content"]
    facts["fingerprint"] = _compute_fingerprint(facts, make_contents().study)
    (tmp_path / "old" / "model.json").write_text(json.dumps(facts))
    assert read_model_folder(tmp_path / "old").beside_share == 0.5


def test_a_reading_comes_back_and_is_in_the_fingerprint(tmp_path, make_contents, make_study):
    contents = make_contents("only", study=make_study("classification"))
    read = replace(contents, calling=Calling(1.5, {1: 0.25}))
    for name, one in (("with", read), ("without", contents)):
        write_model_folder(tmp_path / name, one)
    assert read_model_folder(tmp_path / "with").calling == Calling(1.5, {1: 0.25})
    assert "calling" not in json.loads((tmp_path / "without" / "model.json").read_text())
    assert read_model_folder(tmp_path / "without").calling == Calling()
    assert read_fingerprint(tmp_path / "with") != read_fingerprint(tmp_path / "without")
    edit(tmp_path / "with", calling={"temperature": 1.5, "thresholds": {"tumour": 0.3}})
    with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
        read_model_folder(tmp_path / "with")


def test_the_fingerprint_knows_the_decision_bias_and_an_earlier_super_model_has_none(tmp_path, make_contents):
    write_model_folder(tmp_path / "with", make_contents("only", bias=0.7))
    write_model_folder(tmp_path / "without", make_contents("only"))
    assert read_model_folder(tmp_path / "with").bias == 0.7
    assert "bias" not in json.loads((tmp_path / "without" / "model.json").read_text())
    assert read_model_folder(tmp_path / "without").bias == 0
    assert read_fingerprint(tmp_path / "with") != read_fingerprint(tmp_path / "without")
    edit(tmp_path / "with", bias=0.6)
    with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
        read_model_folder(tmp_path / "with")


@pytest.mark.parametrize(
    ("rule", "beside"), [("only", None), ("mean", None), ("selector", None), ("mean", "local"), ("selector", "local")]
)
def test_what_was_written_is_read_back(tmp_path, make_contents, rule, beside):
    contents = replace(make_contents(rule, beside=beside, beside_share=0.7 if beside else 0.5), domain=DOMAIN)
    write_model_folder(tmp_path / "supermodel", contents)
    found = read_model_folder(tmp_path / "supermodel")
    for name in ("study", "image_shape", "rule", "outputs", "threshold", "facts", "domain", "beside", "beside_share"):
        assert getattr(found, name) == getattr(contents, name)
    for ours, theirs in zip(
        [*found.models.values(), found.selector or {}],
        [*contents.models.values(), contents.selector or {}],
        strict=True,
    ):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert list(found.models) == list(contents.models)


def test_model_json_says_what_the_super_model_is(folder):
    facts = json.loads((folder / "model.json").read_text())
    assert facts["format"] == 3 and facts["sites"] == ["north", "south"] and facts["algorithm"] == "fedsm"
    assert facts["recipe"]["constants"]["softpull"] == {"self_weight": 0.7}
    assert facts["threshold"] == 0.6 and facts["outputs"] == ["north", "south"]
    assert set(facts["versions"]) == {"silofl", "torch", "monai", "numpy"}
    assert set(facts["weights"]) == {"global", "north", "south", "selector"}
    assert "SuperModel.load" in (folder / "README.md").read_text()


def test_a_study_with_transforms_is_plain_and_read_back(make_study):
    study = make_study(
        data={"transforms": [{"Resize": {"spatial_size": [32, 32]}}], "augment": [{"RandFlip": {"prob": 0.5}}]}
    )
    assert parse(Study, json.loads(json.dumps(plain_study(study))), "study") == study


def test_an_older_super_model_is_replaced_and_nothing_else_is_left(folder, make_contents):
    before = read_fingerprint(folder)
    write_model_folder(folder, make_contents("only"))
    assert read_model_folder(folder).rule == "only" and read_fingerprint(folder) != before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["supermodel"]
    assert sorted(path.name for path in (folder / "weights").iterdir()) == ["global.pt"]


def test_a_write_that_fails_leaves_the_older_one(folder, make_contents, monkeypatch):
    def fail(*_):
        raise OSError("disk full")

    before = read_fingerprint(folder)
    monkeypatch.setattr(directory, "write_json", fail)
    with pytest.raises(OSError, match="disk full"):
        write_model_folder(folder, make_contents("only"))
    assert read_fingerprint(folder) == before and read_model_folder(folder).rule == "selector"
    assert sorted(path.name for path in folder.parent.iterdir()) == ["supermodel"]


def test_a_place_that_holds_something_else_is_refused_and_kept(tmp_path, make_contents):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="photos must be free or an older super model"):
        write_model_folder(tmp_path / "photos", make_contents())
    assert (tmp_path / "photos" / "a.txt").read_text() == "mine"


def test_facts_that_are_no_plain_values_are_refused(tmp_path, make_contents):
    with pytest.raises(ConfigError, match="facts of a super model must be plain finite values"):
        write_model_folder(tmp_path / "supermodel", replace(make_contents(), facts={"dice": float("nan")}))
    assert list(tmp_path.iterdir()) == []


def test_a_super_model_of_the_format_before_is_read_and_its_domain_is_not_known(tmp_path, make_contents):
    write_model_folder(tmp_path / "supermodel", replace(make_contents(), domain=DOMAIN))
    as_before(tmp_path / "supermodel")
    assert read_model_folder(tmp_path / "supermodel").domain == Domain()


def test_a_domain_that_was_taken_out_is_refused(tmp_path, make_contents):
    write_model_folder(tmp_path / "supermodel", replace(make_contents(), domain=DOMAIN))
    edit(tmp_path / "supermodel", format=2)
    with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
        read_model_folder(tmp_path / "supermodel")


@pytest.mark.parametrize(
    ("facts", "wrong"),
    [
        ([], "facts must be keys and values, not \\[\\]; copy the folder again"),
        (None, "facts must be keys and values, not None"),
        (["x"], "facts must be keys and values, not \\['x'\\]; copy the folder again"),
        ({"test": 3}, "facts.test must be keys and values, not 3"),
        ({"validation": {"north": [0.5]}}, "facts.validation.north must be keys and values"),
        ({"test": {"north": {"value": 0.5, "labels": [0.5]}}}, "facts.test.north.labels must be keys and values"),
        ({"test": {"north": {"value": "0.5"}}}, "facts.test.north must have a number for value, not '0.5'"),
        ({"test": {"north": {"labels": {"1": None}}}}, "facts.test.north must have a number for 1, not None"),
    ],
)
def test_facts_of_another_kind_in_an_older_super_model_are_one_sentence(folder, facts, wrong):
    as_before(folder)
    edit(folder, facts=facts)
    with pytest.raises(ConfigError, match=wrong):
        read_model_folder(folder)


@pytest.mark.parametrize("name", ["weights/north.pt", "weights/selector.pt"])
def test_a_missing_file_is_refused(folder, name):
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=f"supermodel must hold {name}; it is missing"):
        read_model_folder(folder)


def test_a_changed_file_is_refused(folder):
    content = bytearray((folder / "weights" / "north.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "weights" / "north.pt").write_bytes(content)
    with pytest.raises(ConfigError, match="weights/north.pt must be the file that was written"):
        read_model_folder(folder)


def test_models_that_changed_places_are_refused(folder):
    shutil.copy(folder / "weights" / "north.pt", folder / "weights" / "south.pt")
    with pytest.raises(ConfigError, match="weights/south.pt must be the file that was written"):
        read_model_folder(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 0.1},
        {"rule": "mean"},
        {"outputs": ["south", "north"]},
        {"image_shape": [1, 48, 48]},
        {"domain": {"kinds": ["pictures"]}},
    ],
)
def test_a_changed_decision_is_refused(folder, changes):
    edit(folder, **changes)
    with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
        read_model_folder(folder)


def test_a_change_of_how_images_are_prepared_is_refused(folder):
    study = json.loads((folder / "model.json").read_text())["study"]
    study["data"]["intensity"] = "raw"
    edit(folder, study=study)
    with pytest.raises(ConfigError, match="must have the fingerprint of what it says"):
        read_model_folder(folder)


@pytest.mark.parametrize("changes", [{"facts": {"test": {}}}, {"facts": []}, {"sites": ["east"]}, {"note": 1}])
def test_a_change_of_what_decides_nothing_is_refused_too(folder, changes):
    edit(folder, **changes)
    with pytest.raises(ConfigError, match="supermodel/model.json must be as it was written; it was changed"):
        read_model_folder(folder)


@pytest.mark.parametrize("name", ["README.md", "MODEL_CARD.md"])
def test_a_page_that_is_gone_or_was_changed_is_refused(folder, name):
    (folder / name).write_text((folder / name).read_text() + "Approved.\n")
    sentence = f"supermodel/{name} must be the file that was written; it is missing or was changed: copy the folder"
    with pytest.raises(ConfigError, match=sentence):
        read_model_folder(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=sentence):
        read_model_folder(folder)


def test_a_super_model_without_a_digest_of_its_facts_is_read(folder):
    facts = json.loads((folder / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({k: v for k, v in facts.items() if k not in ("content", "pages")}))
    (folder / "README.md").unlink()
    assert read_model_folder(folder).sites == ("north", "south")


@pytest.mark.parametrize("number", [0, 1, "2", None])
def test_an_unknown_format_is_refused(folder, number):
    edit(folder, format=number)
    with pytest.raises(ConfigError, match="model.json must have format 3 or 2"):
        read_model_folder(folder)


def test_a_file_outside_of_the_folder_is_refused(folder):
    weights = json.loads((folder / "model.json").read_text())["weights"]
    weights["north"]["file"] = "../../north.pt"
    edit(folder, weights=weights)
    with pytest.raises(ConfigError, match="must name weights by their models"):
        read_model_folder(folder)


@pytest.mark.parametrize("text", ["{", "[]", '{"format": 1}', '{"format": 1, "study": 3}'])
def test_a_broken_model_json_is_refused(folder, text):
    (folder / "model.json").write_text(text)
    with pytest.raises(ConfigError, match="supermodel/model.json"):
        read_model_folder(folder)


def test_a_folder_that_is_no_super_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be a super model with a model.json"):
        read_model_folder(tmp_path)
    with pytest.raises(ConfigError, match="must be a super model with a model.json"):
        read_model_folder(tmp_path / "missing")


def test_the_folder_of_a_runs_last_models_is_answered_with_its_super_model(tmp_path, make_contents):
    write_model_folder(tmp_path / "supermodel", make_contents())
    (tmp_path / "model").mkdir()
    with pytest.raises(ConfigError, match="did you mean .*/supermodel[?]"):
        read_model_folder(tmp_path / "model")


def test_a_monai_bundle_is_answered_with_what_it_lacks_and_where_that_is(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "metadata.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a MONAI bundle, .*; name the super model that silofl export made it of"):
        read_model_folder(tmp_path)


@pytest.mark.parametrize("given", ["", "supermodel"])
def test_where_each_site_has_its_own_super_model_a_runs_folder_is_answered_with_one(tmp_path, make_contents, given):
    write_model_folder(tmp_path / "sites" / "north" / "small-1" / "supermodel", make_contents())
    with pytest.raises(ConfigError, match="did you mean .*sites/north/small-1/supermodel[?]"):
        read_model_folder(tmp_path / given)


def test_equal_contents_have_equal_fingerprints_and_training_facts_do_not_count(tmp_path, make_contents):
    contents = make_contents()
    write_model_folder(tmp_path / "a", contents)
    write_model_folder(tmp_path / "b", replace(contents, facts={"rounds": 9}))
    assert read_fingerprint(tmp_path / "a") == read_fingerprint(tmp_path / "b")


@pytest.mark.parametrize(
    "content", [{7: torch.zeros(1)}, {"w": torch.zeros(1).to_sparse()}, {"w": torch.empty(1, device="meta")}, [1]]
)
def test_a_folder_made_by_hand_with_weights_that_are_none_is_refused_in_one_sentence(folder, content):
    torch.save(content, folder / "weights" / "north.pt")
    facts = json.loads((folder / "model.json").read_text())
    digest = hashlib.sha256((folder / "weights" / "north.pt").read_bytes()).hexdigest()
    facts["weights"]["north"]["sha256"] = digest
    facts["fingerprint"] = directory._compute_fingerprint(facts, parse(Study, facts["study"], "study"))
    edit(folder, **facts | {"content": directory._hash_facts(facts)})
    with pytest.raises(ConfigError, match="supermodel/weights/north.pt must hold weights"):
        read_model_folder(folder)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_weights_without_an_end_are_refused_and_not_waited_for(folder, make):
    path = folder / "weights" / "north.pt"
    path.unlink()
    make(path)
    with pytest.raises(ConfigError, match="must hold weights/north.pt; it is missing or unreadable"):
        read_model_folder(folder)
