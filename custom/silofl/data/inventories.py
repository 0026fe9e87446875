"""The inventories of several sites side by side: what all can supply."""

from collections.abc import Mapping
from itertools import chain

from silofl.data.inventory import Inventory


def describe_inventories(inventories: Mapping[str, Inventory]) -> list[str]:
    """Return what a study's lead must know of the sites' data, in sentences."""
    tasks = {site: f"{inventory.task} of {inventory.kind}" for site, inventory in inventories.items()}
    if len({*tasks.values()}) > 1:
        listed = ", ".join(f"{site} has {task}" for site, task in tasks.items())
        return [f"The hospitals have data for different tasks: {listed}. Make one study for each."]
    names = list(dict.fromkeys(chain.from_iterable(inventory.labels for inventory in inventories.values())))
    # Of a label that a site withholds nobody may conclude that the site can supply it.
    common = [name for name in names if all(inventory.labels.get(name) for inventory in inventories.values())]
    sentences = [f"All can supply: {', '.join(common)}." if common else "There is no label that all can supply."]
    for site, inventory in inventories.items():
        withheld = [name for name in names if inventory.labels.get(name, 0) is None]
        lacking = [name for name in names if inventory.labels.get(name, 0) == 0]
        if withheld:
            sentences.append(f"{site} withholds {', '.join(withheld)}: {explain_withheld(inventory.least)}.")
        if lacking:
            sentences.append(f"{site} has no patient with {', '.join(lacking)}.")
    return sentences


def explain_withheld(least: int) -> str:
    """Return why a site does not say a number."""
    return f"fewer than {least} patients, or such a number could be computed from it"
