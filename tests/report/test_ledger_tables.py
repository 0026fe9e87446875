import pytest

from silofl.report.ledger_tables import byte_size, duration, incidents, last_weights, participation_table, traffic_table


def test_participation_counts_rounds_by_what_became_of_the_site(record):
    ledger = [
        record(1),
        record(2, answered=["east"], late=["west"], examples={"east": 10}),
        record(3, answered=["east"], failed={"west": "no data"}, examples={"east": 12}),
        record(4, answered=["east"], refused={"west": "not finite"}, examples={"east": 12}),
    ]
    table = participation_table(ledger, ["east", "west"])
    assert table.columns[1:] == ("asked", "answered", "late", "failed", "refused", "training examples")
    assert table.rows == (("east", "4", "4", "0", "0", "0", "12"), ("west", "4", "1", "1", "1", "1", "30"))


def test_a_site_that_never_answered_has_no_training_examples(record):
    assert participation_table([record(1, examples={})], ["east"]).rows[0][-1] == "-"


def test_the_same_incident_is_told_once_with_its_rounds(record):
    ledger = [record(i, failed={"west": "disk full"}) for i in (1, 2, 3, 5)] + [record(6, late=["east"])]
    assert incidents(ledger) == [
        "west: failed in rounds 1-3, 5: disk full",
        "east: late in round 6: no answer in time",
    ]


def test_withheld_names_are_counted_and_the_first_shown(record):
    names = ["a.weight", "b.weight", "c.weight", "d.weight"]
    (sentence,) = incidents([record(1, withheld={"east": names})])
    assert sentence == "east: withheld by its policy in round 1: 4 arrays (a.weight, b.weight, c.weight, ...)"


def test_a_smooth_run_has_no_incidents(record):
    assert incidents([record(1), record(2)]) == []


def test_traffic_adds_up_over_rounds_and_sites(record):
    rows = traffic_table([record(1), record(2)], ["east", "west"]).rows
    # two rounds of 1 MB to and 0.5 MB from each site
    assert rows[0] == ("east", "2.0 MB", "1.0 MB", "1.5 MB")
    assert rows[-1] == ("all sites", "4.0 MB", "2.0 MB", "3.0 MB")


def test_equal_weights_are_one_row_for_every_site(record):
    weights = last_weights([record(1), record(2)])
    assert (weights.round, weights.columns, weights.rows) == (
        2,
        ["east", "west"],
        {"every site": {"east": 0.25, "west": 0.75}},
    )


def test_different_weights_keep_a_row_for_each_listener(record):
    rows = {"east": {"east": 0.7, "west": 0.3}, "west": {"east": 0.3, "west": 0.7}}
    assert last_weights([record(1, weights=rows)]).rows == rows


def test_there_are_no_weights_before_the_first_round():
    assert last_weights([]) is None


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (2e6, "2.0 MB"), (3e9, "3.0 GB"), (4e12, "4.0 TB")]
)
def test_bytes_are_told_in_decimal_units(size, text):
    assert byte_size(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(2.04, "2.0 s"), (120, "2.0 min"), (7200, "2.0 h")])
def test_times_are_told_in_the_unit_that_suits_them(seconds, text):
    assert duration(seconds) == text


def test_a_note_is_told_with_its_rounds(record):
    note = "site 'b' shares no statistics (fewer than 20 examples): it listens to all sites equally"
    assert incidents([record(i, notes=[note]) for i in (3, 4)]) == [f"noted in rounds 3-4: {note}"]
