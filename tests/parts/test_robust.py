from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import silofl
from silofl.base.errors import AggregationError, ConfigError
from silofl.parts import load, work
from silofl.parts.part import OutboundPayload, Part
from silofl.parts.task import ArraySpec, Message, PayloadSpec
from silofl.parts.work import SitePart
from silofl.study import Study


def scaled(factor, **meta):
    def attack(task, site, answer):
        if (task, site) != ("train", "west"):
            return answer
        # Without variances, which would fall below 0, so that the answer would be refused.
        of = [name for name in answer.arrays if not name.endswith("running_var")]
        return Message(answer.arrays | {name: factor * answer.arrays[name] for name in of}, answer.meta | meta)

    return attack


def test_unlikely_examples_count_up_to_the_factor(play):
    record = play(robust={"rule": "clipped", "factor": 3}).round(change=scaled(1, num_examples=400))
    # The others have 5 and 4 examples: 3 * 4.5 = 13.5 of 22.5 in all. The ledger keeps what the site said.
    assert record.weights["east"]["west"] == pytest.approx(13.5 / 22.5) and record.examples["west"] == 400


@pytest.mark.parametrize(
    ("options", "said", "most"),
    [
        ({}, {"num_examples": 400, "steps": 200}, 2),
        ({"weights": "uniform"}, {"num_examples": 1, "num_patients": 1, "steps": 1}, 1.2),
    ],
    ids=["more steps and examples than the others", "few examples where sites count alike"],
)
def test_what_a_site_says_of_itself_allows_no_longer_update(play, options, said, most):
    honest, attacked = (play(robust="clipped", folder=folder, **options) for folder in ("honest", "attacked"))
    before = honest.models("east")
    honest.round()
    attacked.round(change=scaled(20, **said))
    moved = [sum(np.square(game.models("east")[n] - before[n]).sum() for n in before) for game in (honest, attacked)]
    # It pulls no further than the median site, so that the mean moves about as far as without it.
    assert moved[1] ** 0.5 < most * moved[0] ** 0.5


def test_statistics_that_all_others_keep_back_are_nobodys_to_move(play):
    def attack(task, site, answer):
        buffers = [name for name in answer.arrays if "running" in name or "batches" in name]
        if site != "west":
            return Message({name: one for name, one in answer.arrays.items() if name not in buffers}, answer.meta)
        means = {name: 50 + answer.arrays[name] for name in buffers if name.endswith("running_mean")}
        return Message(answer.arrays | means, answer.meta)

    game = play(robust="clipped")
    before = game.models("east")
    game.round(change=lambda task, site, answer: attack(task, site, answer) if task == "train" else answer)
    after = game.models("east")
    names = [name for name in after if name.endswith("running_mean")]
    assert names and all(np.array_equal(after[name], before[name]) for name in names)
    assert any(not np.array_equal(after[name], before[name]) for name in after)


def test_updates_of_too_few_sites_are_not_clipped(play):
    plain, clipped = play(("east", "west"), "plain"), play(("east", "west"), robust="clipped")
    records = [game.round(change=scaled(20)) for game in (plain, clipped)]
    notes = ["algorithm.robust bounds no update, as 2 sites answered and it takes more"]
    assert [list(record.notes) for record in records] == [[], notes]
    for name, array in plain.models("east").items():
        np.testing.assert_array_equal(array, clipped.models("east")[name])


def test_too_few_sites_for_the_rule_are_refused(make_study):
    with pytest.raises(ConfigError, match=r"federation.min_sites must be at least 5 with algorithm.robust multi_krum"):
        make_study(robust="multi_krum", federation={"min_sites": 4})
    with pytest.raises(ConfigError, match=r"at least 3 with algorithm.robust median, .* not 1; raise it, or take"):
        make_study(robust="median")
    assert make_study(robust={"rule": "trimmed_mean", "attackers": 2}, federation={"min_sites": 5}).recipe.robust


@dataclass(frozen=True)
class Prototypes(Part):
    """A part of a researcher's own: the sites' mean prototype of a class."""

    study: Study
    mean: float = 0.0
    role: str = "prototypes"
    outbound = (OutboundPayload("prototypes", "", "", "prototypes"),)

    def payload_spec(self, site, exchange, run):
        return PayloadSpec({"prototypes/mean": ArraySpec(())} if exchange.task == "train" else {})

    def merged(self, exchange, site_results, weights_of, run):
        sent = [arrays["mean"] for arrays in site_results.updates_of("prototypes").values()]
        return replace(self, mean=float(np.mean(sent)))


class BoundedPrototypes(Prototypes):
    outbound = (replace(Prototypes.outbound[0], is_bounded=True),)

    def payload_spec(self, site, exchange, run):
        return replace(super().payload_spec(site, exchange, run), averaged=[["mean"]])


class SitePrototypes(SitePart):
    def finish(self, results):
        return Message({"prototypes/mean": np.array(0.46, np.float32)})


def send_far_prototype(task, site, answer):
    if (task, site) == ("train", "west"):
        answer.arrays["prototypes/mean"] *= 1e4
    return answer


@pytest.fixture
def with_prototypes(monkeypatch):
    """Give each study a part more."""
    known = load.load_modules

    def add(part):
        module = SimpleNamespace(PART=part, SITE=SitePrototypes)
        for user in (load, work):
            monkeypatch.setattr(user, "load_modules", lambda study: [*known(study), module])

    return add


def test_unbounded_arrays_go_with_no_robust_rule(with_prototypes, play):
    with_prototypes(Prototypes)
    game = play()
    game.round(change=send_far_prototype)
    # (0.46 + 0.46 + 4600) / 3
    assert game.server.parts["prototypes"].mean == pytest.approx(1533.6, rel=0.001)
    with pytest.raises(ConfigError, match=r"'prototypes' does not say how algorithm.robust bounds what one site sends"):
        play(folder="robust", robust="clipped")


def test_a_part_that_names_its_arrays_is_bounded(with_prototypes, play):
    with_prototypes(BoundedPrototypes)
    game = play(robust="median", federation={"min_sites": 3})
    game.round(change=send_far_prototype)
    assert game.server.parts["prototypes"].mean == pytest.approx(0.46)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[0.5, 0.5, 0]] * 3, ""),
        (
            [[0.5, 0.4, 0]] * 3,
            r"row for site '\w+' in the aggregation weights of part 'prototypes' sums to 0.9 in place",
        ),
        ([[0.5, 0.5]] * 3, r"weights of part 'prototypes' have shape \(3, 2\) in place of \(3, 3\)"),
    ],
)
def test_a_part_answers_for_its_weights_and_may_leave_a_site_out(with_prototypes, play, rows, message):
    class Weighing(Prototypes):
        def weights(self, role, number, sites, run):
            return np.array(rows)

    with_prototypes(Weighing)
    game = play()
    with pytest.raises(AggregationError, match=message) if message else nullcontext():
        game.round()
        # The last site weighs nothing; the others' means are as those of a round without it.
        assert game.server.ledger[-1].weights["east"] == {"east": 0.5, "north": 0.5, "west": 0}


def test_every_bounded_part_says_how():
    """A kind that is only said to be bounded would be mixed as it comes."""
    sources = {path: path.read_text(encoding="utf-8") for path in Path(silofl.__file__).parent.rglob("*.py")}
    saying = {path for path, text in sources.items() if "is_bounded=True" in text}
    assert {path.stem for path in saying} == {"model", "amplitude", "selector", "scaffold", "statistics"}
    ways = ("averaged=", "find_bounding_rule(", "min_sites_for_ratio")
    assert [path for path in saying if not any(way in sources[path] for way in ways)] == []
