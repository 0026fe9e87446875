"""The control of docs/joining.md: how often a hospital "gains" by an own model in the place of the federated one.

    python bench/control.py DATA OUT [--deals 10] [--starts 2]

Hospitals of simulated abdomens and of real nuclei (images of 32 x 32, a small network), of PneumoniaMNIST, and of
simulated scores. DATA holds real sets as ``python recipes/medmnist.py X.npz DATA/pneumonia-0 --sites 20 --alpha 0.1
--test 0.5 --validation 0.25 --seed 0`` and ``python recipes/nuclei_dsb2018.py SOURCE DATA/nuclei-0 --test 0.5
--validation 0.3 --seed 0`` make them, and so on; what is not there is left out. At each several own models are trained
to their end, from starts that differ; one half of them takes the federated model's place, so that there is nothing to
gain. Hospitals with fewer than 20 test units do not count. Finished hospitals in OUT are not trained again.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from runs import JOBS, TINY

from silofl.core.baseline_rule import BIASES, choose_kept
from silofl.core.gain import BETTER, LEAST_UNITS, Effect, measure_gain
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data
from silofl.inference.probabilities import to_probabilities
from silofl.models import build_plain_model
from silofl.parts.baseline import ROLE, TRAIN_LOCAL
from silofl.parts.task import Message
from silofl.parts.work import Work
from silofl.study import Study
from silofl.training.evaluation import compute_outputs, select_regions
from silofl.training.grid_scores import score_classes, score_label_maps
from silofl.training.metrics import average_by_unit, group_positions
from silofl_desk.phantoms.phantoms import make_phantoms
from silofl_desk.studies.runs.simulation import changed_study
from silofl_desk.studies.runs.starts import find_gains, measure_mean_of_starts, measure_starts

SMALL = TINY | {"rounds": 12}
FEDAVG = {"rounds": 12, "algorithm": {"name": "fedavg"}}
# Set -> the job, and what is changed in it.
REAL = {
    "pneumonia": ("adafed_pneumonia", FEDAVG | {"model.normalization": "group"}),
    "nuclei": ("harmofl_nuclei", TINY | FEDAVG),
}
# Scores of a model: part -> (biases, units).
Scores = dict[str, NDArray[np.float64]]


def list_hospitals(data: Path, out: Path, deals: int) -> Iterator[tuple[str, Path, str, dict[str, object]]]:
    """Yield each hospital's set and deal, folder, job and what is changed in the job."""
    for deal in range(deals):
        folder = make_phantoms(out / "data" / f"phantoms-{deal}", deal + 500)
        for site in sorted(path.parent for path in folder.glob("*/dataset.json")):
            yield f"phantoms-{deal}", site, "fedavg_phantoms", SMALL
    for name, (job, changes) in REAL.items():
        for site in sorted(path.parent for path in data.glob(f"{name}-*/*/dataset.json")):
            yield site.parent.name, site, job, changes


def train_local(study: Study, work: Work) -> torch.nn.Module:
    """Train a site's local model to its end, as the baseline comparison does."""
    baseline = next(part for part in work.parts if part.name == ROLE)
    while baseline._train_on():
        pass
    own = baseline._own[0]
    # It may have BatchNorm in place of the study's normalisation.
    model = build_plain_model(own.study, study.seed)
    model.load_state_dict(own.best)
    return model.eval()


def score(
    study: Study, part: Examples, probabilities: NDArray, has_empty: bool = True
) -> dict[str, NDArray[np.float64]]:
    """Return case -> its score with each bias, of cases without any label in truth only where they count."""
    scored = select_regions(part, study), study.metric == "dice_with_background", part.annotated
    found = {}
    for case, rows in group_positions(part.cases).items():
        truth = np.stack([part.targets[row] for row in rows])
        is_map = study.task == "segmentation"
        if is_map and not has_empty and not np.isin(truth, sum(scored[0].values(), ())).any():
            continue
        found[case] = (score_label_maps if is_map else score_classes)(probabilities[rows], truth, *scored[: 3 * is_map])
    return found


def measure_hospital(site: Path, job: str, changes: dict[str, object], starts: int) -> dict[str, Scores]:
    """Return the scores of the own models of a hospital by the number of their start."""
    found: dict[str, Scores] = {}
    for start in range(2 * starts):
        study = changed_study(JOBS / job, changes | {"seed": start, "baseline_comparison": True, "device": "cpu"})
        data = load_site_data(site, study, site / ".cache", has_progress=False)
        work = Work(site.name, study, data, Message(meta={"round": 1}), torch.device("cpu"), task=TRAIN_LOCAL)
        model = train_local(study, work)
        for what, part in {"validation": data.validation, "test": data.test}.items():
            answers = compute_outputs(
                lambda batch, m=model: to_probabilities(m(batch)), part.images, 64, torch.device("cpu")
            )
            by_case = score(study, part, answers, has_empty=what == "test")
            scores = average_by_unit(by_case, work.find_units(what).unit_of)
            found.setdefault(str(start), {})[what] = scores
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
            found[str(number)] = {"validation": dice[:, :20], "test": dice[:, 20:]}
        yield found


def choose(models: dict[str, Scores], own: str, other: str) -> tuple[NDArray, NDArray, bool]:
    """Return the test scores of the own model and the other one, each with its bias, and whether the other is kept."""
    validation = [models[name]["validation"] for name in (other, own)]
    biases = BIASES if len(validation[0]) > 1 else np.zeros(1)
    choice = choose_kept(*validation, biases)
    places = [int(np.argmin(np.abs(biases - bias))) for bias in (choice.local_bias, choice.federated_bias)]
    ours, theirs = (models[name]["test"][place] for name, place in zip((own, other), places, strict=True))
    return ours, theirs, not choice.keeps_local


def main() -> None:
    """Train what is not there, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--deals", type=int, default=10)
    parser.add_argument("--starts", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
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
    """Print by set: hospitals, kept others, better in one start, and gaining over the starts."""
    rows: dict[str, list[int]] = {}
    for deal, sites in hospitals.items():
        found: dict[str, list[Effect]] = {}
        row = rows.setdefault(deal.split("-")[0], [0] * 6)
        for site, models in sites.items():
            for start in range(starts):
                ours, theirs, is_kept = choose(models, str(start), str(starts + start))
                gain = measure_gain(ours, theirs)
                if gain.num_test_units < LEAST_UNITS or gain.standard_error is None:
                    continue
                found.setdefault(site, []).append(Effect(gain.difference, gain.standard_error, gain.num_test_units))
                row[1] += is_kept
                row[2] += is_kept and gain.verdict == BETTER
        row[0] += len(found)
        row[3] += len(find_gains(measure_starts(found)))
        mean = measure_mean_of_starts(found)
        row[4] += mean is not None
        row[5] += mean is not None and mean.low > 0
    heads = ("set", "hospitals", f"keep the other, of {starts} starts each", "better in that start")
    print(f"| {' | '.join((*heads, 'gain by joining', 'means that gain'))} |")
    print("|---|---|---|---|---|---|")
    for name, (number, kept, better, gaining, means, above) in rows.items():
        if number:
            print(f"| {name} | {number} | {kept} | {better} | {gaining} | {above} of {means} |")


if __name__ == "__main__":
    main()
