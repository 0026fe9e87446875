import json

import house
import pytest

PART = "class Part:\n    a: int\n    def b(self): ...\n    def _c(self): ...\n\nclass Run: ...\n"


def test_each_figure_has_a_ceiling_and_no_ceiling_is_left_over():
    assert house.bounded_figures(house.of_tree()).keys() == json.loads(house.CEILINGS.read_text()).keys()


def test_a_figure_above_its_ceiling_and_one_without_a_ceiling_are_named():
    assert house.exceed({"lines of a": 1}, {"lines of a": 1}) == []
    first, second = house.exceed({"lines of a": 2, "lines of b": 1}, {"lines of a": 1})
    assert first.startswith("lines of a must be at most 1, not 2;") and "lines of b must be at most 0, not 1" in second


def test_a_commit_that_is_none_is_one_sentence():
    with pytest.raises(SystemExit, match="COMMIT must be one of this repository, not 'nosuch': git log lists them"):
        house.of_commit("nosuch")


def test_what_is_bounded_is_counted():
    sources = {
        "custom/silofl/cli.py": "a\nb\n",
        "custom/silofl/parts/part.py": PART,
        "custom/silofl/parts/work.py": "class SitePart: ...\n",
        "custom/silofl/core/algorithm_option.py": "class AlgorithmOption: ...\n",
        "tests/test_cli.py": "a\n",
        "docs/index.md": "two words\n",
        "provisioning/site.lock": "# a\nb==1 --hash\n",
    }
    found = house.bounded_figures(sources)
    assert (found["lines of silofl"], found["lines of silofl/*.py"], found["lines of tests"]) == (10, 2, 1)
    assert (found["members of Part"], found["words of the pages"], found["packages of a site"]) == (2, 2, 1)
