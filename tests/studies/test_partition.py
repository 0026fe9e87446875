from silofl_hospital.report.partition import partition_table

COUNTS = {
    "east": {"training": {"heart": 8, "liver": 2}, "validation": {"heart": 1}, "test": {"heart": 4, "spleen": 3}},
    "west": {"training": {"liver": 5}, "test": {}},
}
# One of east's training examples has both findings; two of its test examples have none.
EXAMPLES = {"east": {"training": 9, "validation": 1, "test": 9}, "west": {"training": 5, "test": 0}}


def test_a_row_counts_training_examples_by_class_and_all_examples_by_part():
    table = partition_table(COUNTS, EXAMPLES)
    assert table.columns == ("site", "heart", "liver", "spleen", "training", "validation", "test")
    assert table.rows == (
        ("east", "8", "2", "0", "9", "1", "9"),
        ("west", "0", "5", "0", "5", "0", "0"),
        ("all sites", "8", "7", "0", "14", "1", "9"),
    )
    assert table.num_summary == 1
