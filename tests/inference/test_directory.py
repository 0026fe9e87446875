import hashlib
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch

from silofl.base.errors import ConfigError
from silofl.base.settings import parse
from silofl.core.operating_point import OperatingPoint
from silofl.data.data_profile import DataProfile, Range
from silofl.inference import directory
from silofl.inference.directory import plain_study, read_fingerprint, read_model_folder, write_model_folder
from silofl.study import STORED, Study

DOMAIN = DataProfile(
    ("volumes",), ("grey",), ("MR",), ("LPS", "RAS"), (Range("mean", 0.1, 0.4), Range("roughness", 0, 0.2))
)
CALLING = OperatingPoint(1.5, {1: 0.25})


@pytest.fixture
def folder(tmp_path, make_contents):
    write_model_folder(tmp_path / "supermodel", make_contents())
    return tmp_path / "supermodel"


def read_facts(folder):
    return json.loads((folder / "model.json").read_text())


def sign(folder, facts):
    """Write facts with the fingerprint of what they say, as whoever makes a folder by hand can."""
    facts["fingerprint"] = directory._compute_fingerprint(facts, parse(Study, facts["study"], "study"))
    (folder / "model.json").write_text(json.dumps(facts))


def edit(folder, **changes):
    (folder / "model.json").write_text(json.dumps(read_facts(folder) | changes))


def assert_refused(folder, sentence):
    with pytest.raises(ConfigError, match=sentence):
        read_model_folder(folder)


def test_a_model_is_read_whose_study_may_not_begin_now(tmp_path, make_contents):
    begun = plain_study(make_contents().study) | {"algorithm": {"name": "apfl"}}
    begun["training"] |= {"optimizer": "sgd", "momentum": 0.9}
    with pytest.raises(ConfigError, match=r"training.momentum must be 0 .* not 0.9"):
        parse(Study, begun, "study.yaml")
    study = parse(Study, begun, "study.yaml", STORED)
    write_model_folder(tmp_path / "supermodel", replace(make_contents(), study=study))
    assert read_model_folder(tmp_path / "supermodel").study == study


@pytest.mark.parametrize("changes", [{"beside": "south"}, *({"format": number} for number in (1, 2, "2", None))])
def test_a_model_of_a_version_before_0_4_is_refused(folder, changes):
    edit(folder, **changes)
    assert_refused(folder, "supermodel/model.json is damaged, or was written by a version before 0.4. Copy the folder")


@pytest.mark.parametrize(
    ("task", "key", "value", "without", "changed"),
    [
        ("segmentation", "bias", 0.7, 0.0, 0.6),
        (
            "classification",
            "operating_point",
            CALLING,
            OperatingPoint(),
            {"temperature": 1.5, "thresholds": {"tumour": 0.3}},
        ),
    ],
)
def test_what_changes_every_answer_is_in_the_fingerprint(
    tmp_path, make_contents, make_study, task, key, value, without, changed
):
    contents = make_contents("only", study=make_study(task))
    for name, setting in (("with", value), ("without", without)):
        write_model_folder(tmp_path / name, replace(contents, **{key: setting}))
        assert getattr(read_model_folder(tmp_path / name), key) == setting
    assert read_facts(tmp_path / "without").get("calling" if key == "operating_point" else key) is None
    assert read_fingerprint(tmp_path / "with") != read_fingerprint(tmp_path / "without")
    # A model's file keeps the name that release 0.4 gave the operating point.
    edit(tmp_path / "with", **{"calling" if key == "operating_point" else key: changed})
    edit(tmp_path / "with", content=directory._hash_facts(read_facts(tmp_path / "with")))
    assert_refused(tmp_path / "with", "with/model.json was changed after it was written")


@pytest.mark.parametrize("rule", ["only", "mean", "selector"])
def test_what_was_written_is_read_back(tmp_path, make_contents, rule):
    contents = replace(make_contents(rule), data_profile=DOMAIN)
    write_model_folder(tmp_path / "supermodel", contents)
    read = read_model_folder(tmp_path / "supermodel")
    for name in ("study", "image_shape", "rule", "outputs", "threshold", "facts", "data_profile"):
        assert getattr(read, name) == getattr(contents, name)
    assert list(read.models) == list(contents.models)
    states = [*contents.models.values(), contents.selector or {}]
    for ours, theirs in zip([*read.models.values(), read.selector or {}], states, strict=True):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)


def test_an_older_super_model_is_replaced_without_a_trace(folder, make_contents):
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


def test_taken_folders_and_facts_that_are_not_plain_are_refused(tmp_path, make_contents):
    with pytest.raises(ConfigError, match="hold other things than plain finite values"):
        write_model_folder(tmp_path / "supermodel", replace(make_contents(), facts={"dice": float("nan")}))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("mine")
    with pytest.raises(ConfigError, match="photos already exists and is no super model"):
        write_model_folder(tmp_path / "photos", make_contents())
    assert (tmp_path / "photos" / "a.txt").read_text() == "mine"


def flip(path):
    """Change one bit of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by(make):
    """Return what puts something else in a file's place, that has no end."""
    return lambda path: (path.unlink(), make(path))


@pytest.mark.parametrize("name", ["weights/north.pt", "weights/selector.pt", "MODEL_CARD.md"])
@pytest.mark.parametrize(
    "damage",
    [
        os.unlink,
        flip,
        lambda path: shutil.copy(path.parent / "south.pt" if path.suffix == ".pt" else "/dev/null", path),
        replace_by(os.mkfifo),
        replace_by(lambda path: path.symlink_to("/dev/zero")),
    ],
    ids=["missing", "changed", "another", "pipe", "device"],
)
def test_a_file_that_is_not_the_written_one_is_refused(folder, name, damage):
    damage(folder / name)
    assert_refused(folder, f"supermodel/{name} is missing or was changed; copy")


# These decide answers: their change is refused by the fingerprint, whoever has signed the rest.
DECIDING = [
    {"threshold": 0.1},
    {"rule": "mean"},
    {"outputs": ["south", "north"]},
    {"image_shape": [1, 48, 48]},
    {"domain": {"kinds": ["pictures"]}},
    {"study": {"data": {"intensity": "raw"}}},
]


@pytest.mark.parametrize("changes", [*DECIDING, {"facts": {"test": {}}}, {"sites": ["east"]}, {"note": 1}])
def test_a_change_is_refused(folder, changes):
    is_signed = changes in DECIDING
    if "study" in changes:
        study = read_facts(folder)["study"]
        changes = {"study": study | {"data": study["data"] | changes["study"]["data"]}}
    edit(folder, **changes)
    if is_signed:
        edit(folder, content=directory._hash_facts(read_facts(folder)))
    assert_refused(folder, "supermodel/model.json was changed after it was written")


def test_the_readme_of_version_0_4_is_not_read(folder):
    pages = read_facts(folder)["pages"] | {"README.md": "0"}
    edit(folder, pages=pages)
    edit(folder, content=directory._hash_facts(read_facts(folder)))
    assert read_model_folder(folder).rule == "selector"


def test_a_broken_or_missing_model_json_is_refused(tmp_path, folder):
    weights = read_facts(folder)["weights"]
    weights["north"]["file"] = "../../north.pt"
    edit(folder, weights=weights)
    edit(folder, content=directory._hash_facts(read_facts(folder)))
    assert_refused(folder, "must name weights by their models")
    for text in ("{", "[]", '{"format": 1}', '{"format": 3, "study": 3}'):
        (folder / "model.json").write_text(text)
        assert_refused(folder, "supermodel/model.json")
    for path in (folder / "weights", tmp_path / "missing"):
        assert_refused(path, "has no model.json of a super model")


def test_equal_contents_have_equal_fingerprints_whatever_their_facts(tmp_path, make_contents):
    contents = make_contents()
    write_model_folder(tmp_path / "a", contents)
    write_model_folder(tmp_path / "b", replace(contents, facts={"rounds": 9}))
    assert read_fingerprint(tmp_path / "a") == read_fingerprint(tmp_path / "b")


@pytest.mark.parametrize(
    "content", [{7: torch.zeros(1)}, {"w": torch.zeros(1).to_sparse()}, {"w": torch.empty(1, device="meta")}, [1]]
)
def test_signed_weights_that_are_none_are_refused(folder, content):
    torch.save(content, folder / "weights" / "north.pt")
    facts = read_facts(folder)
    facts["weights"]["north"]["sha256"] = hashlib.sha256((folder / "weights" / "north.pt").read_bytes()).hexdigest()
    sign(folder, facts)
    edit(folder, content=directory._hash_facts(read_facts(folder)))
    assert_refused(folder, "supermodel/weights/north.pt holds no weights")
