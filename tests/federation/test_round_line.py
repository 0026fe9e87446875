"""The line on a round, which server, terminal and watcher share."""

from types import SimpleNamespace

from silofl.federation.ledger import Round
from silofl.federation.round_line import round_line, seconds_left
from tests.conftest import mark_best, score

STUDY = SimpleNamespace(total_rounds=4, metric="dice", ends_early=False, quiet_rounds=None)


def record(number, seconds, **changes):
    base = {"asked": ["a", "b"], "answered": ["a", "b"], "metrics": {"a": {"loss": 0.5}, "b": {"loss": 1.0}}}
    return Round(number, seconds=seconds, **(base | changes))


def test_line_has_loss_validation_and_time_left():
    first = record(1, 30.0, validation={"a": score(0.25), "b": score(0.75)})
    # loss (0.5 + 1.0) / 2; three rounds of 30 s are 90 s, then two of 5 s: the first round holds the start
    assert round_line(STUDY, [first]) == "round   1/4  loss 0.7500  2 of 2 sites  30.0 s  about 2 min left"
    assert round_line(STUDY, [first, record(2, 5.0)]) == (
        "round   2/4  loss 0.7500  validation dice 0.5000 (round 1)  2 of 2 sites  5.0 s  about 10 s left"
    )
    # Of less than a second nobody need know.
    assert round_line(STUDY, [record(1, 0.3)]) == "round   1/4  loss 0.7500  2 of 2 sites  0.3 s"
    # The test comes after the last round, so that its line promises no end.
    without_loss = {"metrics": {"a": {}, "b": {}}}
    ledger = [*(record(number, 2.0) for number in (1, 2, 3)), record(4, 2.0, **without_loss)]
    assert round_line(STUDY, ledger) == "round   4/4  2 of 2 sites  2.0 s"


# It ends after two rounds that raise nothing.
PATIENT = SimpleNamespace(total_rounds=10, metric="dice", ends_early=True, quiet_rounds=2)


def ledger_of(*values):
    """Return rounds of 20 s with these validations of three sites, the last of them not validated yet."""
    rounds = [record(n, 20.0, validation={s: score(v) for s, v in zip("abc", of, strict=True)}) for n, of in values]
    return mark_best([*rounds, record(len(rounds) + 1, 20.0)])


def test_line_says_last_rise_and_early_end():
    first = (1, (0.2, 0.5, 0.6))
    assert "rise" not in round_line(PATIENT, [record(1, 20.0)])
    # The medians of two rounds are 0.5 and 0.6. The sites changed by 0.3, 0.1 and 0, whose median 0.1 is a rise; then
    # by 0.004, 0.004 and 0.3, whose median is none above 0.005.
    second, third = (2, (0.5, 0.6, 0.6)), (3, (0.504, 0.604, 0.9))
    assert round_line(PATIENT, ledger_of(first)) == (
        "round   2/10  loss 0.7500  validation dice, median 0.5000 (round 1)  last rise in round 1, ends in round 3 if "
        "nothing rises  2 of 2 sites  20.0 s  at most 3 min left"
    )
    line = round_line(PATIENT, ledger_of(first, second, third))
    assert "median 0.6040 (round 3)  last rise in round 2, ends in round 4 if nothing rises  " in line
    # Never beyond the most.
    short = SimpleNamespace(**vars(PATIENT) | {"total_rounds": 3})
    assert "ends in round 3 if nothing rises" in round_line(short, ledger_of(first, second))
    unknown = SimpleNamespace(**vars(PATIENT) | {"quiet_rounds": None})
    assert "rises" not in round_line(unknown, ledger_of(first)) and "at most" in round_line(unknown, ledger_of(first))


def test_time_left_comes_from_the_newest_five_rounds():
    seconds = [99.0, 50.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    ledger = [record(number, value) for number, value in enumerate(seconds, start=1)]
    # the median of 1 to 5 is 3 s a round, for the three rounds after the seventh of ten
    assert seconds_left(SimpleNamespace(total_rounds=10), ledger) == 9


def test_missing_sites_are_named_with_the_reason():
    failed = {"b\x1b[2J": "no room\nround   4/4"}
    line = round_line(STUDY, [record(1, 2.0, answered=[], failed=failed | {"a": "NaN"})])
    assert "0 of 2 sites" in line and line.isprintable()
    assert line.endswith("failed: a (NaN), b [2J (no room round   4/4)")


def test_new_cautions_stand_below_the_line():
    ledger = [record(number, 1.0, validation={"a": score(value)}) for number, value in enumerate((0.7, 0.2, 0.7), 1)]
    line, caution = round_line(STUDY, [*ledger, record(4, 1.0)]).split("\n")
    assert line.startswith("round   4/4") and caution.startswith("CAUTION  the validation fell by more than 0.2 and")
    assert "\n" not in round_line(STUDY, ledger)
