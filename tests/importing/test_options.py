import pytest

from silofl.base.errors import ConfigError
from silofl.importing.options import ImportOptions

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


@pytest.mark.parametrize("name", ["partition", "num_sites", "alpha", "num_shards", "is_equal"])
def test_an_option_that_the_layout_does_not_use_is_refused(name):
    given = {"partition": "own", "num_sites": 3, "alpha": 0.5, "num_shards": 2, "is_equal": True}[name]
    called = {"num_sites": "sites", "num_shards": "shards", "is_equal": "equal-sizes"}.get(name, name)
    with pytest.raises(ConfigError, match=f"{called} must not be given with layout 'folders', which does not use it"):
        ImportOptions(**{name: given}).filled("folders", {"test": 0.2, "validation": 0.2})


@pytest.mark.parametrize(
    ("layout", "given", "sentence"),
    [
        ("pamap2", {"partition": "own", "num_sites": 3}, "sites must not be given with partition 'own'"),
        ("pamap2", {"partition": "dirichlet", "num_shards": 2}, "shards must not be given with partition 'dirichlet'"),
        ("pamap2", {"partition": "shards", "alpha": 1}, "alpha must not be given with partition 'shards'"),
        ("pamap2", {"partition": "patients", "alpha": 1}, "alpha must not be given with partition 'patients'"),
        ("pamap2", {"partition": "recordings", "alpha": 1}, "alpha must not be given with partition 'recordings'"),
        ("pamap2", {"partition": "own", "is_equal": True}, "equal-sizes must not be given with partition 'own'"),
        ("pamap2", {"partition": "shards", "is_equal": True}, "equal-sizes must not be given with partition 'shards'"),
        ("pamap2", {"partition": "recordings", "num_shards": 1}, "shards must not be given with partition 'recording"),
        ("pamap2", {"partition": "even"}, "partition must be one of own, dirichlet, .*, not 'even'"),
        ("hmp", {"label_values": (1, 4), "labels": ("a", "b")}, "values in labels must not be given with layout 'hmp'"),
        ("hmp", {"image_pattern": "{case}.png"}, "image-pattern must not be given with layout 'hmp'"),
        ("hmp", {"mask_pattern": "{case}.png"}, "mask-pattern must not be given with layout 'hmp'"),
    ],
)
def test_an_option_that_the_partition_or_layout_does_not_use_is_refused(layout, given, sentence):
    with pytest.raises(ConfigError, match=sentence):
        ImportOptions(**given).filled(layout, DEALT if layout == "pamap2" else {"test": 0.2})


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
