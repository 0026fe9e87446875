"""dataset.json of every form, good or not: a manifest or one sentence."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silofl.base.settings import parse
from silofl.data.manifest import Manifest, read_manifest
from silofl.study import Study
from silofl_desk.studies.plans.data_survey import survey_sites

from .conftest import files_opened, one_sentence

pytestmark = pytest.mark.fuzz
STUDY = {"name": "small", "task": "segmentation", "labels": {1: "nucleus"}, "rounds": 1}
RECORD = {"image": "a.png", "label": "m.png", "patient": "p"}
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
SCALARS |= st.sampled_from([10**30, -1, 1e30, "a.png", "../b.png", "/etc/passwd", "C:\\a", "a.npz", "b\0", "\ud800"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner))
RECORD_KEYS = ("image", "label", "patient", "case", "slices", "index", "recording", "imag")
SLICES = st.lists(st.integers(-1, 8) | st.sampled_from([65535, 65536, 10**30, 1e30]), max_size=4)
RECORDS = st.builds(
    lambda changes, slices, drop: {key: value for key, value in (RECORD | changes | slices).items() if key != drop},
    st.dictionaries(st.sampled_from(RECORD_KEYS), VALUES, max_size=3),
    st.just({}) | SLICES.map(lambda values: {"slices": values}),
    st.sampled_from([None, *RECORD]),
)
KEYS = ("task", "labels", "split_unit", "training", "validation", "test", "Training")


@pytest.fixture
def read(tmp_path):
    folder = tmp_path / "north"
    folder.mkdir()
    for name in ("a.png", "m.png", "a.npz"):
        (folder / name).write_bytes(b"x")
    (tmp_path / "b.png").write_bytes(b"secret")
    study = parse(Study, STUDY | {"algorithm": {"name": "fedavg"}}, "study.yaml")

    def read_both(content):
        (folder / "dataset.json").write_bytes(content)
        with one_sentence(str(tmp_path)), files_opened() as opened:
            assert isinstance(read_manifest(folder, study), Manifest)
        with one_sentence(str(tmp_path)):
            survey_sites(folder)
        assert not [name for name in opened if name.startswith("/etc") or name.endswith("b.png")]

    return read_both


@given(
    records=st.lists(RECORDS, max_size=4),
    changes=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=2),
    has_test=st.booleans(),
)
def test_built_records_are_read_or_refused(read, records, changes, has_test):
    content = {"task": "segmentation", "labels": {"1": "nucleus"}, "training": records}
    content |= {"test": [RECORD | {"patient": "q", "case": "other", "slices": [9, 9]}]} if has_test else {}
    read(json.dumps(content | changes).encode())


@given(st.data())
def test_damaged_text_is_read_or_refused(read, data):
    whole = {"task": "segmentation", "labels": {"1": "nucleus"}, "training": [RECORD], "test": [RECORD]}
    text = bytearray(json.dumps(whole).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 4))] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"[", b"{", b'"', b"1e999", b"NaN", b"\\ud800", b"9" * 5000])
        )
    read(bytes(text))
