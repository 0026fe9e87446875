"""The guard's error rates and what it earns, by simulation, beside the other rules that a site might choose by.

    python bench/guard.py

A population of units is drawn for each kind of score and each true difference between local and federated training;
sites draw their validation units from it, choose, and are judged by the population's own means, which they do not see.
The candidates predict the same pixels of the same units, of shared difficulty; the blend is the mean of two
candidates' probabilities, equal or with the share of `silofl.algorithms.guard.choose_share`, here in steps of 0.05.
Takes some ten minutes on one core; the seed is fixed.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import expit, stdtrit

from silofl.algorithms.guard import ERROR_RATE, LEAST_UNITS, SHARES, choose_share, leads_and_margins, share_by_odds

CANDIDATES = ("federated", "averaged", "fine_tuned", "local", "blend")
FEDERATED, LOCAL, BLEND = (CANDIDATES.index(name) for name in ("federated", "local", "blend"))
SIZES = (1, 2, 3, 5, 7, 10, 15, 20, 30, 50, 75, 100, 150, 200)
DIFFERENCES = (-0.7, -0.5, -0.3, -0.2, -0.1, -0.05, -0.02, 0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
TRIALS = 1000
UNITS, PIXELS = 4000, 64
# Candidates that differ by less count as equally good: a population of 4000 units says no more.
EQUAL = 0.002
# How far a candidate's noise is its own, and how much of it the federated model shares; training alone is noisier.
NOISE = {"federated": (0.5, 1.0), "averaged": (0.5, 0.9), "fine_tuned": (0.6, 0.6), "local": (0.8, 0.0)}
# A model trained alone is surer than it may be, which weighs in the mean of probabilities.
LOCAL_SURENESS = 1.5


@dataclass(frozen=True)
class Kind:
    """What a unit's score is, and how the site's own candidates may fail.

    Attributes:
        name: For the table.
        pixels: 1: right or wrong; more: the Dice of as many pixels.
        failures: Share of the units on which fine-tuned and local model fail, and are the better on all others.
        own: Factor of the candidates' own noise: below 1 they differ little where they do not fail.
    """

    name: str
    pixels: int = PIXELS
    failures: float = 0.0
    own: float = 1.0


KINDS = (
    Kind("Dice"),
    Kind("Dice, models alike", own=0.3),
    Kind("Dice, 2 % failures", failures=0.02, own=0.3),
    Kind("Dice, 5 % failures", failures=0.05, own=0.3),
    Kind("Dice, 10 % failures", failures=0.1),
    Kind("right or wrong", pixels=1),
)


def population(kind: Kind, difference: float, is_draw: bool, rng: np.random.Generator) -> tuple[NDArray, NDArray]:
    """Return scores whose means over the units are as wanted: (candidates but the blend, UNITS), (SHARES, UNITS).

    Args:
        kind: What a score is.
        difference: True mean of local minus federated; half of it is fine-tuning's.
        is_draw: Put in the blend's place a candidate that is as good as the federated one.
        rng: Draws the units.
    """
    federated = min(0.85, 0.95 - difference)
    own = {"fine_tuned": federated + difference / 2, "local": federated + difference}
    means = dict.fromkeys(CANDIDATES, federated) | own
    shape = UNITS, kind.pixels
    foreground = rng.uniform(0.15, 0.5, (UNITS, 1)) if kind.pixels > 1 else 1.0
    truth = rng.random(shape) < foreground
    sign = np.where(truth, 1.0, -1.0)
    difficulty = 0.7 * rng.normal(size=(UNITS, 1)) * sign + rng.normal(size=shape)
    shared = [rng.normal(size=(UNITS, 1)), rng.normal(size=shape)]
    logits = {}
    for name, mean in means.items():
        # The candidate in the blend's place is as noisy as local training.
        amount, share = NOISE.get(name, NOISE["local"])
        of_unit, of_pixel = (share * one + np.sqrt(1 - share**2) * rng.normal(size=one.shape) for one in shared)
        logits[name] = difficulty + kind.own * amount * (of_unit * sign + of_pixel)
        if name in own:
            logits[name] -= 8 * sign * (rng.random((UNITS, 1)) < kind.failures)
        logits[name] += sign * _shift(logits[name], sign, truth, mean)
    scores = np.stack([_score(logits[name] > 0, truth) for name in CANDIDATES])
    if is_draw:
        return scores[:BLEND], np.broadcast_to(scores[BLEND], (len(SHARES), UNITS))
    federated, local = expit(logits["federated"]), expit(LOCAL_SURENESS * logits["local"])
    means = ((1 - share) * federated + share * local for share in SHARES)
    return scores[:BLEND], np.stack([_score(mean > 0.5, truth) for mean in means])


def _shift(logits: NDArray, sign: NDArray, truth: NDArray, mean: float) -> float:
    """Return by how much logits must move towards the truth for a mean score."""
    low, high = -8.0, 16.0
    for _ in range(25):
        middle = (low + high) / 2
        is_below = _score(logits + middle * sign > 0, truth).mean() < mean
        low, high = (middle, high) if is_below else (low, middle)
    return high


def _score(predictions: NDArray, truth: NDArray) -> NDArray[np.float64]:
    size = predictions.sum(axis=1) + truth.sum(axis=1)
    return np.where(size == 0, 1.0, 2 * (predictions & truth).sum(axis=1) / np.maximum(size, 1))


# --- the rules: scores (candidates, trials, n), the default -> the candidate that each trial chooses

Rule = Callable[[NDArray, int], NDArray]
# Differences from the default (..., n) -> the leads, and what each must exceed.
Margin = Callable[..., tuple[NDArray, NDArray]]


def best(scores: NDArray, tie: int) -> NDArray:
    """Choose the best mean; of equal ones the given candidate."""
    means = scores.mean(axis=-1).round(12)
    means[tie] += 1e-9
    return means.argmax(axis=0)


def beyond(margin: Margin) -> Rule:
    """Choose the largest lead of those beyond their margin, or the default, as the guard does."""

    def rule(scores: NDArray, default: int) -> NDArray:
        leads, margins = margin(scores - scores[default])
        leads = np.where(leads > margins, leads, 0.0)
        return np.where(leads.max(axis=0) > 0, leads.argmax(axis=0), default)

    return rule


NUM_OTHERS = len(CANDIDATES) - 1


def standard_error(differences: NDArray) -> tuple[NDArray, NDArray]:
    """One standard error of the lead."""
    return differences.mean(axis=-1), _deviation(differences) / np.sqrt(differences.shape[-1])


def student(differences: NDArray, level: float = ERROR_RATE / NUM_OTHERS) -> tuple[NDArray, NDArray]:
    """Student's bound from five units on, with Bonferroni's correction."""
    n = differences.shape[-1]
    leads, errors = standard_error(differences)
    return leads, stdtrit(n - 1, 1 - level) * errors if n >= 5 else np.full(leads.shape, np.inf)


def with_lost(share: float) -> Margin:
    """Student's bound with one more unit, on which the candidate loses a share of the scores' range."""

    def margin(differences: NDArray, level: float = ERROR_RATE / NUM_OTHERS) -> tuple[NDArray, NDArray]:
        lost = np.full((*differences.shape[:-1], 1), -share)
        return student(np.concatenate([differences, lost], axis=-1), level)

    return margin


def guard(differences: NDArray, level: float = ERROR_RATE / NUM_OTHERS) -> tuple[NDArray, NDArray]:
    """The rule of `silofl.algorithms.guard`: with one more unit that is lost outright, or above a tenth without it."""
    return leads_and_margins(differences, level)


def cross_fitted(margin: Margin) -> Rule:
    """Choose the best if the bests of four fifths of the units lead, each on the last fifth, beyond the margin."""

    def rule(scores: NDArray, default: int) -> NDArray:
        n = scores.shape[-1]
        if n < 5:
            return np.full(scores.shape[1], default)
        held_out = np.empty(scores.shape[1:])
        for fold in range(5):
            is_inside = np.arange(n) % 5 != fold
            chosen = best(scores[..., is_inside], default)
            leads = scores[..., ~is_inside] - scores[default][:, ~is_inside]
            held_out[:, ~is_inside] = np.take_along_axis(leads, chosen[None, :, None], axis=0)[0]
        # One candidate is tested: nothing to correct for.
        leads, margins = margin(held_out, ERROR_RATE)
        return np.where(leads > margins, best(scores, default), default)

    return rule


# Waudby-Smith and Ramdas, arXiv:2010.09686: a bound that holds for every distribution on [-1, 1].
STAKES = (1 - np.cos(np.pi * (np.arange(8) + 0.5) / 8)) / 2


def betting(differences: NDArray) -> tuple[NDArray, NDArray]:
    """The lead counts where a gambler who stakes on it would own the inverse of the level."""
    logs = np.stack([np.log1p(stake * differences).sum(axis=-1) for stake in STAKES])
    is_sure = np.exp(logs.clip(max=700)).mean(axis=0) >= NUM_OTHERS / ERROR_RATE
    return differences.mean(axis=-1), np.where(is_sure, 0.0, np.inf)


def _deviation(differences: NDArray) -> NDArray:
    n = differences.shape[-1]
    return differences.std(axis=-1, ddof=1) if n > 1 else np.full(differences.shape[:-1], np.inf)


def always(index: int) -> Rule:
    """Choose one candidate, whatever the scores."""
    return lambda scores, default: np.full(scores.shape[1], index)


def equal_share(blends: NDArray) -> NDArray:
    """Return one half for each trial."""
    return np.full(blends.shape[1], 0.5)


def best_share(blends: NDArray) -> NDArray:
    """Return the share with the best mean, near the one by odds among equals; 1 only by the margin of a candidate."""
    means, by_odds = blends.mean(axis=-1), share_by_odds(blends)
    if blends.shape[-1] < LEAST_UNITS:
        return by_odds
    leads, margins = leads_and_margins(blends[-1] - blends[0], ERROR_RATE)
    means[-1] = np.where(leads > margins, means[-1], -1.0)
    return SHARES[np.argmax(means.round(9) - 1e-10 * np.abs(SHARES[:, None] - by_odds), axis=0)]


def cross_fitted_share(blends: NDArray) -> NDArray:
    """Return the mean of the best shares without each tenth of the units, of fewer than ten without each unit."""
    n = blends.shape[-1]
    if n < LEAST_UNITS:
        return best_share(blends)
    folds = [np.arange(n) % 10 == fold for fold in range(min(10, n))]
    return np.mean([best_share(blends[..., ~fold]) for fold in folds], axis=0)


GUARD, GUARD_OF_BLEND = "... or above a tenth without it", "**the guard: that, and the blend as default**"
# Scores of the blend with each share (SHARES, trials, n) -> the share of each trial.
Share = Callable[[NDArray], NDArray]
# Rules whose blend has another share than the guard's.
SHARE_OF: dict[str, Share] = {
    "always the plain mean": equal_share,
    "the guard with the plain mean as default": equal_share,
    "always the blend by odds": share_by_odds,
    "the guard with the blend by odds as default": share_by_odds,
    "the guard with the best share": best_share,
    "the guard with a cross-fitted share": cross_fitted_share,
}
# Name -> a rule, and the default that it leaves.
RULES: dict[str, tuple[Rule, int]] = {
    "always federated": (always(FEDERATED), FEDERATED),
    "always local": (always(LOCAL), FEDERATED),
    "always the plain mean": (always(BLEND), BLEND),
    "always the blend by odds": (always(BLEND), BLEND),
    "always the blend": (always(BLEND), BLEND),
    "best on validation, ties to local": (lambda scores, default: best(scores, LOCAL), FEDERATED),
    "best on validation, ties to federated": (best, FEDERATED),
    "beyond one standard error": (beyond(standard_error), FEDERATED),
    "Student's bound, cross-fitted": (cross_fitted(student), FEDERATED),
    "... and one unit lost outright": (cross_fitted(with_lost(1)), FEDERATED),
    "Student's bound, Bonferroni": (beyond(student), FEDERATED),
    "... and one unit lost by half": (beyond(with_lost(0.5)), FEDERATED),
    "... and one unit lost by three quarters": (beyond(with_lost(0.75)), FEDERATED),
    "... and one unit lost outright, Bonferroni": (beyond(with_lost(1)), FEDERATED),
    GUARD: (beyond(guard), FEDERATED),
    "betting bound, Bonferroni": (beyond(betting), FEDERATED),
    "the guard with the plain mean as default": (beyond(guard), BLEND),
    "the guard with the blend by odds as default": (beyond(guard), BLEND),
    "the guard with the best share": (beyond(guard), BLEND),
    "the guard with a cross-fitted share": (beyond(guard), BLEND),
    GUARD_OF_BLEND: (beyond(guard), BLEND),
}


# --- what a rule earns


@dataclass(frozen=True)
class Below:
    """How often sites end with a candidate that is worse than a model, and what that costs.

    Attributes:
        rate: Their share.
        loss: Mean of what they lose against it, 0 for all others.
    """

    rate: float
    loss: float


@dataclass(frozen=True)
class Cell:
    """What a rule does with one population and one number of units.

    Attributes:
        kind: What a score is.
        num_units: Units of a site.
        is_draw: The blend's place is held by a candidate that is as good as the federated one.
        left: Rate of leaving the default for a candidate that is not better.
        alone: Rate of keeping the local model alone, by choice or by its share in the blend.
        below_federated: Ending below the federated model.
        below_local: Ending below the local one.
        gain: Mean true score of the chosen one minus the federated one's.
        over_local: The same against the local one's.
    """

    kind: Kind
    num_units: int
    is_draw: bool
    left: float
    alone: float
    below_federated: Below
    below_local: Below
    gain: float
    over_local: float

    @property
    def local_lead(self) -> float:
        """True score of the local model minus the federated one's."""
        return self.gain - self.over_local


def cells(rng: np.random.Generator) -> dict[str, list[Cell]]:
    """Return each rule's cells over all kinds, differences and numbers of units."""
    found: dict[str, list[Cell]] = {name: [] for name in RULES}
    draws = [(difference, False) for difference in DIFFERENCES] + [(d, True) for d in DIFFERENCES if d <= 0]
    for kind, (difference, is_draw) in product(KINDS, draws):
        scores, blends = population(kind, difference, is_draw, rng)
        federated, local = scores[FEDERATED].mean(), scores[LOCAL].mean()
        units = rng.integers(UNITS, size=(TRIALS, max(SIZES)))
        for n in SIZES:
            drawn = blends[:, units[:, :n]]
            shares = {way: way(drawn) for way in {choose_share, *SHARE_OF.values()}}
            with_blend = {way: _with_blend(scores, blends, units[:, :n], found) for way, found in shares.items()}
            for name, (rule, default) in RULES.items():
                way = SHARE_OF.get(name, choose_share)
                sample, truth = with_blend[way]
                chosen = rule(sample, default)
                alone = (chosen == LOCAL) | ((chosen == BLEND) & (shares[way] == 1) & (not is_draw))
                value = np.take_along_axis(truth, chosen[None], axis=0)[0]
                left = (chosen != default) & (value <= truth[default] + EQUAL)
                below, mean = [_ends_below(value, model) for model in (federated, local)], value.mean()
                rates = left.mean(), alone.mean()
                found[name].append(Cell(kind, n, is_draw, *rates, *below, mean - federated, mean - local))
    return found


def _ends_below(values: NDArray, model: float) -> Below:
    is_below = values < model - EQUAL
    return Below(is_below.mean(), np.where(is_below, model - values, 0).mean())


def _with_blend(scores: NDArray, blends: NDArray, units: NDArray, shares: NDArray) -> tuple[NDArray, NDArray]:
    """Return scores (candidates, trials, n) with each trial's blend, and the true ones (candidates, trials)."""
    steps = np.rint(shares * (len(SHARES) - 1)).astype(int)
    truth = np.repeat(scores.mean(axis=1)[:, None], len(steps), axis=1)
    sample = np.concatenate([scores[:, units], blends[steps[:, None], units][None]])
    return sample, np.concatenate([truth, blends.mean(axis=1)[steps][None]])


def row(name: str, of_rule: Sequence[Cell]) -> str:
    """Return a rule's row of the table; means are over the populations with a true blend."""
    usual = [cell for cell in of_rule if not cell.is_draw]
    sizes = ((1, 10), (15, 50), (75, 200))
    gains = [np.mean([cell.gain for cell in usual if low <= cell.num_units <= high]) for low, high in sizes]
    worst = [min(cell.gain for cell in of_rule), min(cell.over_local for cell in of_rule)]
    alone = [cell.alone for cell in usual if cell.local_lead < -EQUAL]
    needless = [
        _describe([cell.below_federated for cell in usual if cell.local_lead <= EQUAL]),
        _describe([cell.below_local for cell in usual if cell.local_lead >= -EQUAL]),
    ]
    below = np.mean([cell.below_federated.rate for cell in usual])
    columns = [f"{max(cell.left for cell in of_rule):.1%}", f"{np.mean(alone):.1%}, at most {max(alone):.1%}"]
    columns += [f"{below:.1%}", *needless]
    columns += [f"{round(value, 3) + 0.0:+.3f}" for value in (*gains, *worst)]
    return f"| {name} | {' | '.join(columns)} |"


def _describe(below: Sequence[Below]) -> str:
    """Return how often sites end below a model, and by how much those lose that do."""
    rate, loss = np.mean([one.rate for one in below]), np.mean([one.loss for one in below])
    text = f"{rate:.1%}"
    return text if text == "0.0%" else f"{text}, by {loss / rate:.3f}"


COLUMNS = (
    "wrongly leaves its default, at most",
    "keeps local alone although federated is better",
    "ends below federated, mean",
    "... although that is at least as good as local",
    "ends below local although that is at least as good as federated",
    "over federated: 1-10 units",
    "15-50 units",
    "75-200 units",
    "worst case",
    "over local: worst case",
)


def print_table(first: str, rows: Iterable[str]) -> None:
    """Print a Markdown table of rows."""
    print(f"\n| {first} | {' | '.join(COLUMNS)} |\n|{'---|' * (len(COLUMNS) + 1)}")
    print("\n".join(rows))


# --- right or wrong answers of one rival, without drawing any


ENUMERATED: dict[str, Margin] = {"the guard": guard, "one unit lost by three quarters": with_lost(0.75)}


def enumerated(margin: Margin, level: float) -> tuple[float, int]:
    """Return the highest rate of wrongly leaving, over all numbers of units and shares of them won and lost, and where.

    Local and federated model are equally good: each alone is right on a share p of the units.
    """
    return max(
        (float(stats.multinomial.pmf(left, n, [p, p, 1 - 2 * p]).sum()), n)
        for n in range(1, max(SIZES) + 1)
        for left in [_leaving(n, margin, level)]
        if len(left)
        for p in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5)
    )


def _leaving(n: int, margin: Margin, level: float) -> NDArray[np.int64]:
    """Return the numbers of units won, lost and neither (outcomes, 3) after which the default is left."""
    wins, losses = (counts.ravel() for counts in np.meshgrid(range(n + 1), range(n + 1)))
    wins, losses = wins[wins + losses <= n], losses[wins + losses <= n]
    places = np.arange(n)
    differences = 1.0 * (places < wins[:, None]) - (places >= n - losses[:, None])
    leads, margins = margin(differences, level)
    return np.stack([wins, losses, n - wins - losses], axis=1)[leads > margins]


def main() -> None:
    """Print what each rule earns over all kinds of scores, the guard's rows for each of them, and its exact rates."""
    of_rule = cells(np.random.default_rng(0))
    print_table("rule", (row(name, found) for name, found in of_rule.items()))
    for name in (GUARD, GUARD_OF_BLEND):
        by_kind = {kind.name: [cell for cell in of_rule[name] if cell.kind == kind] for kind in KINDS}
        print_table(name, (row(kind, found) for kind, found in by_kind.items()))
    print("\nRight or wrong answers of one rival, all outcomes enumerated:")
    for (name, margin), level in product(ENUMERATED.items(), (ERROR_RATE, ERROR_RATE / NUM_OTHERS)):
        rate, n = enumerated(margin, level)
        print(f"{name} at the level of {level:.2%}: at most {rate:.2%}, of {n} units")


if __name__ == "__main__":
    main()
