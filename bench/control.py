"""The control of docs/joining.md: how often a hospital "gains" by an own model in the place of the federated one.

    python bench/control.py DATA OUT [--deals 10] [--starts 2]

Hospitals of simulated abdomens (images of 32 x 32, a small network), of PneumoniaMNIST where DATA holds
``pneumonia-0`` and so on as ``silofl import medmnist X.npz DATA/pneumonia-0 --sites 20 --alpha 0.1 --test 0.5
--validation 0.25 --seed 0`` makes them, and simulated scores. At each several own models are trained to their end, from
starts that differ; one half of them takes the federated model's place, so that there is nothing to gain. Hospitals with
fewer than 20 test units do not count. Finished hospitals in OUT are not trained again.

Two rules choose by the same units: *one* is that of `silofl.core.guard_rule`. *Pair* takes the mean of two models on
both sides, with the best share and bias of each: own of two own models, pooled of the federated and an own one.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from runs import JOBS, TINY

from silofl.core.gain import BETTER, MIN_UNITS, Start, measure_gain, measure_mean_of_starts, measure_starts
from silofl.core.guard_rule import BIASES, LEAST_LEAD, PRIOR, choose_kept
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.inference.probabilities import to_probabilities
from silofl.models import build_plain_model
from silofl.parts.guard import ROLE, TRAIN_OWN
from silofl.parts.task import Message
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.evaluation import compute_outputs, select_regions
from silofl.training.grid_scores import score_classes, score_label_maps
from silofl.training.metrics import group_positions
from silofl.training.units import average_by_unit
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.simulation import changed_study

SMALL = TINY | {"rounds": 12}
PNEUMONIA = {"rounds": 12, "model.normalization": "group"}
SHARES = np.arange(11) / 10
# The centre of a share where the units do not tell.
CENTRE = {"own": 0.5, "pooled": 0.75}
# Scores of a model, or a pair with shares: part -> (..., biases, units).
Scores = dict[str, NDArray[np.float64]]


def list_hospitals(data: Path, out: Path, deals: int) -> Iterator[tuple[str, Path, str, dict[str, object]]]:
    """Yield each hospital's set and deal, folder, job and what is changed in the job."""
    for deal in range(deals):
        folder = make_phantoms(out / "data" / f"phantoms-{deal}", deal + 500)
        for site in sorted(path.parent for path in folder.glob("*/dataset.json")):
            yield f"phantoms-{deal}", site, "fedavg_phantoms", SMALL
    for folder in sorted(data.glob("pneumonia-*")):
        for site in sorted(path.parent for path in folder.glob("*/dataset.json")):
            yield folder.name, site, "adafed_pneumonia", PNEUMONIA | {"algorithm": {"name": "fedavg"}}


def train_own(study: Study, work: Work) -> torch.nn.Module:
    """Train a site's own model to its end, as the guard does."""
    guard = next(part for part in work.parts if part.name == ROLE)
    while guard._train_on():
        pass
    model = build_plain_model(study, study.seed)
    model.load_state_dict(guard._own[0].best)
    return model.eval()


def score(study: Study, part: Examples, probabilities: NDArray) -> dict[str, NDArray[np.float64]]:
    """Return case -> its score with each bias."""
    scored = select_regions(part, study), study.metric == "dice_with_background", part.annotated
    found = {}
    for case, rows in group_positions(part.cases).items():
        truth = np.stack([part.targets[row] for row in rows])
        is_map = study.task == "segmentation"
        found[case] = (score_label_maps if is_map else score_classes)(probabilities[rows], truth, *scored[: 3 * is_map])
    return found


def measure_hospital(site: Path, job: str, changes: dict[str, object], starts: int) -> dict[str, Scores]:
    """Return the scores of the own models of a hospital by the number of their start, and of pairs as ``0+1``."""
    found: dict[str, Scores] = {}
    answers: dict[str, dict[str, NDArray]] = {}
    for start in range(2 * starts):
        study = changed_study(JOBS / job, changes | {"seed": start, "guard": True, "device": "cpu"})
        data = load_site_data(site, study, site / ".cache", has_progress=False)
        work = Work(site.name, study, data, Message(meta={"round": 1}), torch.device("cpu"), task=TRAIN_OWN)
        model = train_own(study, work)
        parts = {"validation": data.validation, "test": data.test}
        answers[str(start)] = {
            name: compute_outputs(
                lambda batch, m=model: to_probabilities(m(batch)), part.images, 64, torch.device("cpu")
            )
            for name, part in parts.items()
        }
    # What plays the federated model's part are the later half of the starts.
    pairs = [(0, 1), *((start, starts + start) for start in range(starts))]
    mixed = {f"{i}+{j}": (str(i), str(j)) for i, j in pairs}
    for name in [*answers, *mixed]:
        first, second = mixed.get(name, (name, name))
        for what, part in parts.items():
            both = answers[first][what], answers[second][what]
            shares = SHARES if name in mixed else SHARES[-1:]
            rows = [
                average_by_unit(score(study, part, s * both[0] + (1 - s) * both[1]), work.find_units(what).unit_of)
                for s in shares
            ]
            found.setdefault(name, {})[what] = np.stack(rows)
    return found


def simulate_hospitals(rng: np.random.Generator, count: int, starts: int) -> Iterator[dict[str, Scores]]:
    """Yield simulated hospitals with 20 units for validation and 25 for the test; models differ by luck alone."""
    for _ in range(count):
        truth = rng.random((45, 64)) < rng.uniform(0.1, 0.5, (45, 1))
        hard = 0.6 * rng.normal(size=(45, 1)) + 0.8 * rng.normal(size=truth.shape)
        models = []
        for _ in range(2 * starts):
            noise = np.sqrt(0.6) * hard + np.sqrt(0.4) * (rng.normal(size=(45, 1)) + rng.normal(size=truth.shape)) / 1.4
            models.append((1.5 + 0.15 * rng.normal()) * np.where(truth, 1, -1) + 1.2 * noise - rng.choice([0, 1.5]))
        found: dict[str, Scores] = {}
        for number, logits in enumerate(models):
            said = logits + BIASES[:, None, None] > 0
            dice = 2 * (said & truth).sum(axis=-1) / np.maximum(said.sum(axis=-1) + truth.sum(axis=-1), 1)
            found[str(number)] = {"validation": dice[None, :, :20], "test": dice[None, :, 20:]}
        yield found


def choose_by_one(models: dict[str, Scores], own: str, other: str) -> tuple[NDArray, NDArray, bool]:
    """Return the test scores of the own model and the other one, each with its bias, and whether the other is kept."""
    validation = [models[name]["validation"][0] for name in (other, own)]
    biases = BIASES if len(validation[0]) > 1 else np.zeros(1)
    choice = choose_kept(*validation, biases)
    places = [int(np.argmin(np.abs(biases - bias))) for bias in (choice.own_bias, choice.federated_bias)]
    ours, theirs = (models[name]["test"][0, place] for name, place in zip((own, other), places, strict=True))
    return ours, theirs, not choice.keeps_own


def choose_by_pair(models: dict[str, Scores], own: str, pooled: str) -> tuple[NDArray, NDArray, bool]:
    """Return the same of the best mean of two own models and of the other and an own one."""
    means, tests = [], []
    for name, centre in ((own, CENTRE["own"]), (pooled, CENTRE["pooled"])):
        scores = models[name]["validation"]
        biases = BIASES if scores.shape[1] > 1 else np.zeros(1)
        n = np.isfinite(scores).all(axis=(0, 1)).sum()
        value = np.nanmean(scores, axis=-1)
        best = np.argmax(value - PRIOR * ((SHARES[:, None] - centre) ** 2 + biases**2) / max(n, 1))
        means.append(value.ravel()[best])
        tests.append(models[name]["test"].reshape(-1, models[name]["test"].shape[-1])[best])
    return tests[0], tests[1], bool(means[1] - means[0] > LEAST_LEAD)


def main() -> None:
    """Train what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--deals", type=int, default=10)
    parser.add_argument("--starts", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hospitals: dict[str, dict[str, dict[str, Scores]]] = {}
    for deal, site, job, changes in list_hospitals(options.data, options.out, options.deals):
        path = options.out / f"{deal}-{site.name}.npz"
        if not path.is_file():
            found = measure_hospital(site, job, changes, options.starts)
            flat = {f"{name}/{what}": values for name, scores in found.items() for what, values in scores.items()}
            np.savez_compressed(path, **flat)
            print(path.stem, flush=True)
        with np.load(path) as stored:
            models: dict[str, Scores] = {}
            for key in stored:
                name, what = key.split("/")
                models.setdefault(name, {})[what] = stored[key]
        hospitals.setdefault(deal, {})[site.name] = models
    rng = np.random.default_rng(0)
    for number in range(30):
        hospitals[f"simulated-{number}"] = dict(zip("abcd", simulate_hospitals(rng, 4, options.starts), strict=True))
    print_table(hospitals, options.starts)


def print_table(hospitals: dict[str, dict[str, dict[str, Scores]]], starts: int) -> None:
    """Print by set and rule: hospitals, kept others, better in one start, and gaining over the starts."""
    rows: dict[tuple[str, str], list[int]] = {}
    for deal, sites in hospitals.items():
        for rule, choose in (("one", choose_by_one), ("pair", choose_by_pair)):
            found: dict[str, list[Start]] = {}
            row = rows.setdefault((deal.split("-")[0], rule), [0] * 6)
            for site, models in sites.items():
                if rule == "pair" and "0+1" not in models:
                    continue
                for start in range(starts):
                    own, other = (
                        (str(start), str(starts + start)) if rule == "one" else ("0+1", f"{start}+{starts + start}")
                    )
                    ours, theirs, is_kept = choose(models, own, other)
                    gain = measure_gain(ours, theirs)
                    if gain.num_test_units < MIN_UNITS or gain.standard_error is None:
                        continue
                    found.setdefault(site, []).append(Start(gain.difference, gain.standard_error, gain.num_test_units))
                    row[1] += is_kept
                    row[2] += is_kept and gain.verdict == BETTER
            row[0] += len(found)
            row[3] += sum(low > 0 for _, low, _ in measure_starts(found).values())
            mean = measure_mean_of_starts(found)
            row[4] += mean is not None
            row[5] += mean is not None and mean[1] > 0
    heads = ("set", "rule", "hospitals", f"keep the other, of {starts} starts each", "better in that start")
    print(f"| {' | '.join((*heads, 'gain by joining', 'means that gain'))} |")
    print("|---|---|---|---|---|---|---|")
    for (name, rule), (number, kept, better, gaining, means, above) in rows.items():
        if number:
            print(f"| {name} | {rule} | {number} | {kept} | {better} | {gaining} | {above} of {means} |")


if __name__ == "__main__":
    main()
