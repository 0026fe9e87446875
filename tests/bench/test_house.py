import json
import subprocess
from pathlib import Path

import house
import pytest

PART = "class Part:\n    a: int\n    def b(self): ...\n    def _c(self): ...\n\nclass Run: ...\n"
SOURCE = '''"""A docstring of more than six words is none of the sentences."""
text = "This sentence has as many words as it takes"
if text:
    raise ValueError(f"text must be short, not {text!r}; choose another")
'''


def test_each_figure_has_a_ceiling_and_no_ceiling_is_left_over():
    assert house.figures(house.of_tree()).keys() == json.loads((house.ROOT / house.CEILINGS).read_text()).keys()


def test_a_figure_above_its_ceiling_and_one_without_a_ceiling_are_named():
    ceilings = {"lines of a": {"now": 1, "goal": 1}}
    assert house.exceed({"lines of a": 1}, ceilings) == []
    first, second = house.exceed({"lines of a": 2, "lines of b": 1}, ceilings)
    assert first.startswith("lines of a must be at most 1, not 2;") and "lines of b must be at most 0, not 1" in second


def test_a_ceiling_falls_with_its_figure_and_does_not_rise_with_it():
    ceilings = {"a": {"now": 3, "goal": 1}, "b": {"now": 3, "goal": 1}, "gone": {"now": 3, "goal": 1}}
    expected = {"a": {"now": 2, "goal": 1}, "b": {"now": 3, "goal": 1}, "new": {"now": 5, "goal": 5}}
    assert house.lower({"a": 2, "b": 4, "new": 5}, ceilings) == expected


def test_statements_sentences_and_refusals_are_counted_without_docstrings():
    # The assignment, the if and the raise; the refusal's words are no sentence.
    assert house.count(SOURCE) == {"lines": 4, "statements": 3, "sentences": 1, "refusals": 1}


def test_what_is_bounded_is_counted():
    sources = {
        "custom/silofl/recipes.py": "a\nb\n",
        "custom/silofl/parts/part.py": PART,
        "custom/silofl/federation/results.py": "class Results:\n    a: int\n    b: int\n    def c(self): ...\n",
        "custom/silofl_desk/studies/comparisons/tune.py": "a\n",
        "tests/test_cli.py": "a\n",
        "bench/house.py": "a\n",
        "docs/study.md": "two words\n- `name` (name): Part.\n    - `inner`: Part.\n",
        "provisioning/site.lock": "# a\nb==1 --hash\n",
    }
    figures = house.figures(sources)
    assert (figures["statements of silofl/*.py"], figures["statements of silofl_desk"]) == (2, 1)
    assert (figures["lines of all wheels"], figures["lines of tests"], figures["lines of bench"]) == (13, 1, 1)
    assert (figures["members of Part"], figures["fields of Results"], figures["keys of study.yaml"]) == (2, 2, 2)
    assert (figures["words of the pages"], figures["packages of a site"]) == (9, 1)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with a release and the first ceilings after it."""
    monkeypatch.setattr(house, "ROOT", tmp_path)
    house.git("init", "--quiet")
    commit(tmp_path, {house.VERSION: '__version__ = "1"\n', house.CEILINGS: '{"lines of tests": 9}\n'})
    raise_to(tmp_path, 5)
    return tmp_path


def raise_to(repository: Path, lines: int, **beside: str):
    ceilings = {"lines of tests": {"now": lines, "goal": 1}}
    commit(repository, {house.CEILINGS: house.write_ceilings(ceilings)} | beside)


def commit(repository: Path, files: dict[str, str]):
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    person = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(["git", "add", "."], cwd=repository, check=True)
    subprocess.run(["git", *person, "commit", "--quiet", "--message", "Change"], cwd=repository, check=True)


def test_a_raise_beside_other_changes_is_named_and_one_alone_is_not(repository):
    raise_to(repository, 4)
    raise_to(repository, 5)
    assert house.check_history() == []
    raise_to(repository, 3, other="text")
    raise_to(repository, 4, other="more text")
    (sentence,) = house.check_history()
    assert sentence.endswith("raises lines of tests beside other changes; raise it in a commit of its own")


def test_what_has_grown_since_the_last_release_is_named_though_each_raise_was_alone(repository):
    raise_to(repository, 6)
    assert house.check_history() == ["lines of tests must not be larger than at the last release; take something out"]
    # The next release begins to count anew.
    commit(repository, {house.VERSION: '__version__ = "2"\n'})
    raise_to(repository, 6, other="text")
    assert house.check_history() == []


def test_a_copy_without_history_says_that_only_now_is_checked(repository, tmp_path, monkeypatch, capsys):
    raise_to(repository, 6)
    house.git("clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    monkeypatch.setattr(house, "ROOT", tmp_path / "shallow")
    assert house.check_history() == []
    assert capsys.readouterr().out == "bench/house.json: only now is checked, for this copy has no history\n"
