"""What is chosen on the command line of a recipe that deals the examples of a public classification set to sites."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from silofl.base.options import expect_path, parse_count, parse_names, parse_natural, parse_share

OWN, DIRICHLET, SHARDS = "own", "dirichlet", "shards"


@dataclass(frozen=True)
class Dealing:
    """How examples are dealt to sites, and each site's to its parts.

    Attributes:
        partition: The set's ``own`` sites, or examples dealt one by one, by ``dirichlet`` shares or by ``shards``.
        sites: Sites to make, except of the set's own.
        alpha: Concentration of the Dirichlet split, above 0; with small values the sites differ more.
        equal_sizes: Whether that split gives all sites the same number of examples, as AdaFed's.
        shards: Shards of each site, at least 1.
        test: Fraction of a site's patients, recordings or examples for the test; None keeps the set's own parts.
        validation: Fraction of the others for the validation.
        seed: Seed of every random choice.
        labels: Names of the classes in place of the set's.
    """

    partition: str = DIRICHLET
    sites: int = 20
    alpha: float = 0.1
    equal_sizes: bool = False
    shards: int = 2
    test: float | None = 0.5
    validation: float = 0.0
    seed: int = 0
    labels: tuple[str, ...] | None = None


def parse_dealing(description: str | None, **defaults: Any) -> tuple[argparse.Namespace, Dealing]:  # noqa: ANN401
    """Read the command line of a recipe: SOURCE, TARGET and the fields of `Dealing`.

    Args:
        description: What the recipe's help says.
        defaults: The values of fields that the set has in place of those of `Dealing`.

    Returns:
        The options with source, target and json, and how examples are dealt.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("source", type=expect_path("the downloaded set"), metavar="SOURCE")
    parser.add_argument("target", type=Path, metavar="TARGET", help="new folder for the sites")
    partition = "the set's own sites, or examples dealt one by one, by Dirichlet shares of each class or by shards"
    parser.add_argument("--partition", choices=(OWN, DIRICHLET, SHARDS), help=partition)
    parser.add_argument("--sites", type=parse_count, help="number of sites to make")
    parser.add_argument("--alpha", type=float, help="with dirichlet: the smaller, the more the sites differ")
    equal = "with dirichlet: give all sites equally many examples"
    parser.add_argument("--equal-sizes", action="store_true", help=equal)
    parser.add_argument("--shards", type=parse_count, help="with shards: number of shards per site")
    test = "share of each site's patients, recordings or examples for the test"
    parser.add_argument("--test", type=parse_share, help=test)
    parser.add_argument("--validation", type=parse_share, help="share of the rest for validation")
    parser.add_argument("--seed", type=parse_natural, help="seed of every random choice (default: 0)")
    parser.add_argument("--labels", type=parse_labels, help="names of the classes in the order of their numbers")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    known = vars(Dealing())
    parser.set_defaults(**{**known, **defaults})
    options = parser.parse_args()
    return options, Dealing(**{name: getattr(options, name) for name in known})


def parse_labels(text: str) -> tuple[str, ...]:
    """Read ``normal,tumour``."""
    return tuple(name.strip() for name in parse_names(text))
