import pytest

from silofl.hospital.check_site import CHECKS, check_site
from silofl.hospital.switch import check_pause

from .conftest import change_site


@pytest.fixture
def found(candidate, kit):
    """Return what site check says of the pause with some names under ``check_pause``."""

    def check(*names):
        change_site(kit, paused=list(names))
        return check_pause(candidate())

    return check


def test_a_paused_study_is_a_warning_so_that_the_site_may_join_and_nobody_overlooks_it(found, candidate):
    answer = found("other", "small")
    assert (answer.status, answer.facts) == ("warning", {"paused": True})
    assert answer.sentence.startswith("study small is paused in site.yaml") and "remove its name" in answer.sentence
    assert check_site(candidate(), set(CHECKS) - {"paused"}).may_join


def test_a_study_that_nobody_has_paused_is_well_and_a_slip_of_the_pen_is_told(found):
    assert found().status == found("other").status == "ok"
    answer = found("smal")
    assert (answer.status, answer.facts) == ("warning", {"paused": False})
    assert "'small', not 'smal'" in answer.sentence
