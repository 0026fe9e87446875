"""The methods that can replace a study's algorithm in a comparison, by name or as ``ALGORITHM:PRESET``.

Any of them may begin with the pretrained model, as ``local-pretrained``: the fair rows beside AdaFed, which does.
"""

from silofl.base.errors import ConfigError, suggest_nearest
from silofl.core.presets import algorithm_names

PRETRAINED = "-pretrained"
# These methods are more than an algorithm with its recommended preset: name -> the ``algorithm`` section.
VARIANTS: dict[str, dict[str, object]] = {
    "adafed": {"name": "adafed", "preset": "paper"},
    "adafed-from-scratch": {"name": "adafed", "preset": "paper", "start_from_pretrained": False},
    "d-adafed": {"name": "adafed", "preset": "paper", "statistics": {"layers": "last"}},
    "f-adafed": {"name": "adafed", "preset": "recommended"},
    # The paper's ablations: weights by similarity with a shared BatchNorm, and one half of HarmoFL without the other.
    "adafed-shared-batchnorm": {"name": "adafed", "preset": "paper", "stays": "nothing"},
    "harmofl-amplitude": {"name": "harmofl", "preset": "paper", "step": "plain"},
    "harmofl-perturbation": {"name": "harmofl", "preset": "paper", "input": "none"},
    # FedSM with another personalisation in SoftPull's place (its Table 6).
    **{f"fedsm-{name}": {"name": name, "parts": [name, "fedsm"]} for name in ("apfl", "ditto", "pfedme")},
    **{f"fedsm-{name}": {"name": name, "parts": ["fedsm"]} for name in ("finetuning", "perfedavg")},
    "fedsm-ensemble": {
        "name": "fedsm",
        "selector": {"labels": "ensemble"},
        "super_model": {"answer": "ensemble"},
        "extra_rounds": 50,
    },
    "fedsm-extra": {"name": "fedsm", "selector": {"labels": "best_model"}, "extra_rounds": 50},
}


def method_names() -> list[str]:
    """Return the names of all methods, those of all algorithms included."""
    return [*dict.fromkeys([*algorithm_names(), *VARIANTS])]


def find_method_algorithm(method: str) -> dict[str, object]:
    """Return the ``algorithm`` section of a method.

    Args:
        method: A name in `VARIANTS`, an algorithm, which then has its recommended preset, or ``ALGORITHM:PRESET``; each
            with ``-pretrained`` at its end to begin with the pretrained model.

    Raises:
        ConfigError: There is no such method; an unknown preset is left to the study to refuse.
    """
    if method.endswith(PRETRAINED):
        return find_method_algorithm(method.removesuffix(PRETRAINED)) | {"start_from_pretrained": True}
    if method in VARIANTS:
        return VARIANTS[method]
    name, colon, preset = method.partition(":")
    # Only an algorithm has presets.
    names = algorithm_names() if colon else method_names()
    if name not in names:
        form = "ALGORITHM:PRESET with ALGORITHM " if colon else ""
        raise ConfigError(
            f"--methods must be {form}among {', '.join(names)}, not {name!r}{suggest_nearest(name, names)}"
        )
    return {"name": name, "preset": preset} if colon else {"name": name}
