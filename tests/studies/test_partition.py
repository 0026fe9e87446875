import io

import pytest
from PIL import Image
from rich.console import Console

from silofl_hospital.report.partition import (
    TEST,
    TRAINING,
    partition_image,
    partition_table,
    print_partition,
    write_partition,
)

COUNTS = {
    "east": {"training": {"heart": 8, "liver": 2}, "validation": {"heart": 1}, "test": {"heart": 4, "spleen": 3}},
    "west": {"training": {"liver": 5}, "test": {}},
}
# One of east's training examples has both findings; two of its test examples have none.
EXAMPLES = {"east": {"training": 9, "validation": 1, "test": 9}, "west": {"training": 5, "test": 0}}


def pixels_of(image, colour):
    """Count the pixels of a colour, given as #rrggbb."""
    wanted, colours = (
        tuple(bytes.fromhex(colour[1:])),
        Image.open(io.BytesIO(image.png)).convert("RGB").getcolors(2**20),
    )
    return dict((pixel, count) for count, pixel in colours).get(wanted, 0)


def test_a_row_counts_training_examples_by_class_and_all_examples_by_part():
    table = partition_table(COUNTS, EXAMPLES)
    assert table.columns == ("site", "heart", "liver", "spleen", "training", "validation", "test")
    assert table.rows == (
        ("east", "8", "2", "0", "9", "1", "9"),
        ("west", "0", "5", "0", "5", "0", "0"),
        ("all sites", "8", "7", "0", "14", "1", "9"),
    )
    assert table.num_summary == 1


def test_training_examples_are_dots_and_test_examples_rings():
    image = partition_image(COUNTS)
    assert pixels_of(image, TRAINING) and pixels_of(image, TEST)
    assert image.alt == "Dot plot of the examples of 3 classes at 2 sites; the largest dot is 8."
    assert partition_image({"east": {"training": {"heart": 0}}}).alt.endswith("the largest dot is 0.")


def test_the_area_of_a_dot_grows_with_the_number_of_examples():
    # the legend shows 1000 of 1000 either way: what is left is the dot of the second site
    counts = [{"a": {"training": {"x": 1000}}, "b": {"training": {"x": n}}} for n in (0, 250, 500)]
    none, quarter, half = (pixels_of(partition_image(one), TRAINING) for one in counts)
    assert half - none == pytest.approx(2 * (quarter - none), rel=0.15)


def test_the_picture_grows_with_the_sites_and_classes():
    many = {f"site-{i}": {"training": {f"class {j}": i + j for j in range(14)}} for i in range(20)}
    (width, height), (small, low) = (Image.open(io.BytesIO(partition_image(one).png)).size for one in (many, COUNTS))
    assert width > 2 * small and height > 2 * low


def test_plot_and_table_are_written_side_by_side(tmp_path):
    picture, table = write_partition(tmp_path, COUNTS, EXAMPLES)
    assert (picture.name, table.name) == ("partition.png", "partition.md")
    assert Image.open(picture).format == "PNG"
    text = table.read_text()
    assert "| west | 0 | 5 | 0 | 5 | 0 | 0 |" in text and "](partition.png)" in text


def test_the_printed_table_says_what_it_counts():
    stream = io.StringIO()
    print_partition(COUNTS, EXAMPLES, Console(file=stream, width=40))
    assert "all sites" in stream.getvalue() and "A class's column counts training examples" in stream.getvalue()
