"""study.yaml of every form, good or not: a study or one short sentence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from silofl.study import Study, load_study
from tests.conftest import JOBS

from .conftest import one_sentence

pytestmark = pytest.mark.fuzz
JOB_FILES = [path.read_bytes() for path in sorted(JOBS.glob("*/app/config/study.yaml"))]
NASTY = [b"[", b"{", b"&a ", b"*a", b"<<: ", b"!!int ", b"!!binary ", b"9" * 5000, b"1:2:3", b"2026-13-45", b"\0"]
NASTY += [b"\xff", b"- " * 5000, b"? ", b"1e999", b".nan", b'"\\ud800"', b"\n---\n", b"\t", b"x: 1\n" * 20_000]
NASTY += [b"{a: " * 500]


@given(st.data())
def test_a_damaged_study_is_read_or_refused(tmp_path_factory, data):
    text = bytearray(data.draw(st.sampled_from(JOB_FILES)))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(text) - 1))
        text[place : place + data.draw(st.integers(0, 8))] = data.draw(st.sampled_from(NASTY) | st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "study.yaml"
    path.write_bytes(text)
    with one_sentence() as refusals:
        assert isinstance(load_study(path), Study)
    assert not refusals or len(str(refusals[0])) < 1000
