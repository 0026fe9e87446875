from silofl_desk.report.round_tables import participation_table, traffic_table


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
    # Who never answered has no training examples.
    assert participation_table([record(1, examples={})], ["east"]).rows[0][-1] == "-"


def test_traffic_adds_up_over_rounds_and_sites(record):
    rows = traffic_table([record(1), record(2)], ["east", "west"]).rows
    # two rounds of 1 MB to and 0.5 MB from each site
    assert rows[0] == ("east", "2.0 MB", "1.0 MB", "1.5 MB")
    assert rows[-1] == ("all sites", "4.0 MB", "2.0 MB", "3.0 MB")
