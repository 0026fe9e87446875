import pytest

from silofl.algorithms.fedsm.paper import THRESHOLDS
from silofl.federation.outcome import finished_results
from silofl.inference.directory import read_model_folder
from silofl.models.roles import read_role
from silofl.parts.load import list_outbound_payloads
from silofl.parts.model import complete_state
from silofl.parts.task import Message

from ...conftest import assert_alike

INSTANCE = {"normalization": "instance"}
SITES = ("east", "north", "west")
ALL = {"global", *SITES}
FEDSM = {"name": "fedsm", "model": INSTANCE, "rounds": 1}


@pytest.fixture
def fedsm(play):
    """Begin a run that ends with a super model."""

    def start(sites=SITES, folder="state", **options):
        return play(sites, folder=folder, **FEDSM | options)

    return start


@pytest.fixture
def done(finished):
    """A run of two rounds with its tests, which is only read."""
    return finished(**FEDSM | {"rounds": 2})


def super_model_of(game):
    return game.server.parts["super_model"]


def sent_roles(game, task, site):
    return {read_role(name) for name in game.sent[task][site].of("super_model")}


def counting(**by_site):
    """Return a change of what sites say their validation cases come to by threshold."""

    def change(task, site, answer):
        if task != "assemble" or site not in by_site:
            return answer
        return Message(meta=answer.meta | {"super_model": {"by_threshold": by_site[site]}})

    return change


def test_the_threshold_comes_from_all_sites_counts(done):
    part, tests = super_model_of(done), done.tests.scores
    assert part.threshold in part.selector.thresholds and tests.keys() == set(SITES)
    for site, test in tests.items():
        assert sum(test.choices.values()) == 2
        assert set(test.models) == {*ALL, "ensemble", "super"}
        kept = read_model_folder(done.folder(site) / "supermodel")
        assert kept.threshold == part.threshold
        assert kept.models.keys() == ALL


def test_the_reported_rounds_models_travel_once(done):
    assert super_model_of(done).holders == set(SITES)
    assert done.sent["test_super_model"]["east"].arrays == {}
    assert sent_roles(done, "assemble", "east") == {*ALL, "selector"}
    sent = done.sent["assemble"]["east"]
    assert sent.meta["round"] == done.server.reported.round
    for site in SITES:
        personal = done.server.reported.parts["personal"].of(site)
        assert_alike({name: sent.of("super_model")[f"{site}/{name}"] for name in personal}, personal)


def test_the_server_writes_the_super_model_that_its_sites_hold(done):
    ours = super_model_of(done).outcome(done.server, {}).make_contents()
    theirs = read_model_folder(done.folder("east") / "supermodel")
    assert (ours.rule, ours.outputs, ours.threshold) == (theirs.rule, theirs.outputs, theirs.threshold)
    assert ours.rule == "selector" and ours.facts["run"] == "run"
    for name, state in ours.models.items():
        assert_alike(state, theirs.models[name])
    state = complete_state(done.study, (1, 32, 32), done.server.reported.parts["personal"].of("west"))
    assert_alike(ours.models["west"], {key: state[key] for key in ours.models["west"]})


def test_a_site_without_the_models_gets_them_with_the_test(fedsm):
    game = fedsm()
    tests = game.finish(change=lambda task, site, a: a.failed("no disk") if (task, site) == ("assemble", "west") else a)
    assert super_model_of(game).holders == {"east", "north"}
    assert game.sent["test_super_model"]["east"].arrays == {}
    assert sent_roles(game, "test_super_model", "west") == {*ALL, "selector"}
    assert tests.scores["west"].models.keys() == {*ALL, "ensemble", "super"}


# --- the threshold


def test_a_server_cannot_ask_for_thresholds_of_its_own(done):
    message = done.sent["assemble"]["east"]
    entry = message.meta["super_model"] | {"thresholds": [number / 99 for number in range(100)]}
    answer = done.sites["east"].answer("assemble", Message(message.arrays, message.meta | {"super_model": entry}))
    assert len(answer.meta["super_model"]["by_threshold"]) == len(THRESHOLDS)
    assert "by_threshold" not in str(done.answers["test_super_model"]["east"].meta)


def test_counts_that_do_not_fit_have_no_say(fedsm):
    game = fedsm()
    thresholds = super_model_of(game).selector.thresholds
    best_at_half = [[27.0 if threshold == 0.5 else 3.0, 30] for threshold in thresholds]
    game.finish(change=counting(east=best_at_half, north=[[1.5, 1]] * 11, west="nothing"))
    part = super_model_of(game)
    assert part.threshold == 0.5 and set(part.refused) == {"north", "west"}
    assert part.refused["north"] == "a sum of by_threshold of site 'north', 1.5, is above 1 for each of its 1 cases"
    assert part.refused["west"] == "the answer of site 'west': super_model: by_threshold must be a list, not 'nothing'"
    assert f"site 'west' has no say in the threshold: {part.refused['west']}" in game.warnings
    # What they hold is not known, so the test brings the others the models once more.
    assert part.holders == {"east"}


def test_a_selector_that_learns_the_best_model_needs_no_threshold(fedsm):
    game = fedsm(selector={"labels": "best_model"}, extra_rounds=2)
    tests = game.finish().scores
    part = super_model_of(game)
    assert game.server.parts["selector"].outputs == ("global", *SITES)
    assert part.selector.thresholds == () and part.outcome(game.server, {}).make_contents().threshold is None
    assert tests.keys() == set(SITES)
    # All models before its rounds; the selector, which learnt in them, with the test.
    assert sent_roles(game, "assemble", "east") == ALL
    assert sent_roles(game, "test_super_model", "east") == {"selector"}


@pytest.mark.parametrize("labels", ["best_model", "ensemble"])
def test_a_late_site_is_chosen_at_every_site(fedsm, labels):
    options = {"selector": {"labels": labels}, "super_model": {"answer": "ensemble"}, "extra_rounds": 2}
    game, late = fedsm(("east", "west"), **options), fedsm(("north",), folder="late", **options)
    game.rounds(2)
    game.server.join("north")
    game.sites["north"] = late.sites["north"]
    tests = game.finish().scores
    assert tests.keys() == set(SITES) and game.server.ledger[-1].answered == list(SITES)
    assert set(read_model_folder(game.folder("east") / "supermodel").models) == ALL
    # Every model and their ensemble are measured on every case.
    test = tests["west"]
    assert test.models.keys() == {*ALL, "ensemble", "super"}
    assert test.value == test.models["ensemble"] == test.models["super"]


# --- the test


def test_a_test_that_lacks_a_part_is_refused(fedsm):
    def change(task, site, answer):
        if (task, site) == ("test_super_model", "west"):
            del answer.meta["metrics"]["test"]["choices"]
        return answer

    tests = fedsm().finish(change=change)
    assert tests.missing == {"west": "the answer of site 'west': metrics.test.choices is missing"}


def test_the_result_says_whom_the_selector_chose(done):
    tests, part = done.tests.scores, super_model_of(done)
    found = part.outcome(done.server, tests).results["super_model"]
    assert found.threshold == part.threshold and found.threshold_without == {}
    assert found.outputs == SITES
    assert {sum(tests[site].selector.cases.values()) for site in SITES} == {2}
    told = finished_results(done.server, done.tests).sites["east"]
    assert (told.models, told.choices) == (tests["east"].models, tests["east"].choices)


def test_a_site_keeps_scores_and_pictures(done):
    folder = done.folder("west")
    assert (folder / "scores.csv").is_file() and (folder / "pictures.npz").is_file()


def test_only_numbers_leave_a_site_for_it(done):
    for task, roles in (("assemble", set()), ("test_super_model", {"usual"})):
        assert all({*map(read_role, answer.arrays)} <= roles for answer in done.answers[task].values())
        assert "test0" not in str(done.answers[task]["east"].meta)
    assert not [kind for kind in list_outbound_payloads(done.study) if kind.role == "super_model"]
    assert sent_roles(done, "assemble", "west")
