"""The inventories of several sites side by side: what all can supply."""

from collections.abc import Mapping

from silofl.data.inventory import Inventory


def describe_inventories(inventories: Mapping[str, Inventory]) -> list[str]:
    """Return what a study's lead must know of the sites' data, in sentences."""
    kinds = {site: f"{one.task} of {one.kind}" for site, one in inventories.items()}
    if len({*kinds.values()}) > 1:
        listed = ", ".join(f"{site} has {kind}" for site, kind in kinds.items())
        return [f"The hospitals have data for different tasks: {listed}. Make one study for each."]
    names = list(dict.fromkeys(name for one in inventories.values() for name in one.labels))
    common = [name for name in names if all(one.labels.get(name) for one in inventories.values())]
    sentences = [f"All can supply: {', '.join(common)}." if common else "There is no label that all can supply."]
    for site, one in inventories.items():
        withheld = [name for name in names if one.labels.get(name, 0) is None]
        lacking = [name for name in names if not one.labels.get(name) and name not in withheld]
        sentences += [f"{site} withholds {', '.join(withheld)}: {explain_withheld(one.least)}."] if withheld else []
        sentences += [f"{site} has no patient with {', '.join(lacking)}."] if lacking else []
    return sentences


def explain_withheld(least: int) -> str:
    """Return why a site does not say a number."""
    return f"fewer than {least} patients, or such a number could be computed from it"
