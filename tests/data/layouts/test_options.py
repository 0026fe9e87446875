import pytest

from silofl.data.layouts.options import ImportOptions
from silofl.errors import ConfigError

DEALT = {"partition": "dirichlet", "num_sites": 20, "alpha": 0.1, "num_shards": 2}
DEALT |= {"is_equal": False, "test": 0.5, "validation": 0.0}


def test_what_is_not_given_is_the_layouts():
    filled = ImportOptions(seed=3, test=0.25).filled("pamap2", DEALT)
    assert filled == ImportOptions(3, 0.25, 0.0, num_sites=20, alpha=0.1, partition="dirichlet", is_equal=False)


@pytest.mark.parametrize(
    ("partition", "num_sites", "alpha", "num_shards"),
    [
        ("own", None, None, None),
        ("dirichlet", 20, 0.1, None),
        ("shards", 20, None, 2),
        ("patients", None, None, None),
        ("recordings", 20, None, None),
    ],
)
def test_a_partition_has_the_values_that_it_uses(partition, num_sites, alpha, num_shards):
    filled = ImportOptions(partition=partition).filled("pamap2", DEALT)
    assert (filled.num_sites, filled.alpha, filled.num_shards) == (num_sites, alpha, num_shards)


@pytest.mark.parametrize("field", ["num_sites", "alpha"])
def test_a_given_zero_counts_as_given(field):
    assert getattr(ImportOptions(**{field: 0}).filled("pamap2", DEALT), field) == 0


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"partition": "own"}, "partition must not be given with layout 'folders'"),
        ({"num_sites": 3}, "sites must not be given with layout 'folders'"),
        ({"alpha": 0.5}, "alpha must not be given with layout 'folders'"),
        ({"num_shards": 2}, "shards must not be given with layout 'folders'"),
        ({"is_equal": True}, "equal-sizes must not be given with layout 'folders'"),
    ],
)
def test_an_option_that_the_layout_does_not_use_is_refused(given, sentence):
    with pytest.raises(ConfigError, match=f"{sentence}, which does not use it"):
        ImportOptions(**given).filled("folders", {"test": 0.2, "validation": 0.2})


@pytest.mark.parametrize(
    ("partition", "given", "name"),
    [
        ("own", {"num_sites": 3}, "sites"),
        ("dirichlet", {"num_shards": 2}, "shards"),
        ("shards", {"alpha": 1}, "alpha"),
        ("patients", {"alpha": 1}, "alpha"),
        ("recordings", {"num_shards": 1}, "shards"),
        ("own", {"is_equal": True}, "equal-sizes"),
        ("shards", {"is_equal": True}, "equal-sizes"),
    ],
)
def test_an_option_that_the_partition_does_not_use_is_refused(partition, given, name):
    with pytest.raises(ConfigError, match=f"{name} must not be given with partition '{partition}'"):
        ImportOptions(partition=partition, **given).filled("pamap2", DEALT)


def test_an_unknown_partition_is_refused():
    with pytest.raises(ConfigError, match="partition must be one of own, dirichlet, .*, not 'even'"):
        ImportOptions(partition="even").filled("pamap2", DEALT)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"label_values": (1, 4), "labels": ("a", "b")}, "values in labels must not be given with layout 'hmp'"),
        ({"image_pattern": "{case}.png"}, "image-pattern must not be given with layout 'hmp'"),
        ({"mask_pattern": "{case}.png"}, "mask-pattern must not be given with layout 'hmp'"),
    ],
)
def test_what_only_own_folders_need_is_refused_by_other_layouts(given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ImportOptions(**given).filled("hmp", {"test": 0.2})


@pytest.mark.parametrize(
    ("labels", "values", "sentence"),
    [
        (("a", "b", "a"), None, "labels must have a name of its own each, not 'a' twice"),
        (("a", "b"), (0, 1), "labels must have a value of its own each, from 1, because 0 .*, not 0, 1; correct them"),
        (("a", "b"), (4, 4), "labels must have a value of its own each, from 1, .*, not 4, 4"),
    ],
)
def test_labels_and_their_values_differ(labels, values, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ImportOptions(labels=labels, label_values=values)
