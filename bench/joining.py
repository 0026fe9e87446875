"""What joining gives each hospital, on six sets: the tables of docs/joining.md.

    python bench/joining.py DATA OUT [--processes 16] [--sets nuclei,spine] [--seeds 0,1,2]

DATA holds one folder per set and seed, dealt with that seed by a recipe (``--seed``) or the demonstration:
``nuclei-0``, ``spine-0``, ``activity-0``, ``mednist-0``, ``pneumonia-0``, ``phantoms-0`` and so on. Sites choose on
validation data, which ``recipes/medmnist.py`` makes with ``--validation 0.25``. Every method runs with the guard, both
with a falling and with a constant learning rate. Each run takes one process; finished
ones in OUT are used again. The tables are printed and written as OUT/joining.md: means and their deviation over the
seeds, and how many verdicts there are. Where a run has no result, all rows of its set are compared
on the seeds that each of them has.
"""

import argparse
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from runs import BATCH, SETS, TOO_SMALL, Alone, carry_out, for_selector, is_finished

from silofl.core.gain import BETTER, WORSE
from silofl.federation.results import Results, read_results
from silofl.training.joined import AT_ZERO, CHOSEN, FEDERATED, LOCAL, SHIFTED
from silofl.training.metrics import mean_of_known
from silofl_desk.report.result_tables import mean_and_deviation
from silofl_hospital.report.tables import TextTable, markdown_table

# Not local training: its model is the one that every site trains alone.
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"algorithm": {"name": "fedavg"}},
    "fedbn": {"algorithm": {"name": "fedbn"}, **BATCH},
    "harmofl": {"algorithm": {"name": "harmofl"}, **BATCH},
    "adafed": {"algorithm": {"name": "adafed"}, **BATCH},
    "fedsm": {"algorithm": {"name": "fedsm"}},
}
SCHEDULES = ("constant", "poly")
# Own and federated model at the usual threshold stand before those with the threshold that the site chose.
COLUMNS = (
    "run",
    "own at 0.5",
    "alone",
    "federated at 0.5",
    "federated",
    "kept",
    "kept - alone",
    "better / worse",
    "keep their own",
)
# Set -> name of a row of its table -> its runs, a seed each.
Wanted = dict[str, dict[str, list[Alone]]]


def main() -> None:
    """Run what is not there yet, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--rounds", type=int, help="instead of each job's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    options = parser.parse_args()
    # The jobs of the papers' settings have the guard off.
    changes = {"guard": True, "device": options.device}
    changes |= {"rounds": options.rounds} if options.rounds else {}
    wanted: Wanted = {}
    axes = (text.split(",") for text in (options.sets, options.methods, options.schedules))
    for name, method, schedule in itertools.product(*axes):
        if method != "fedsm" or name not in TOO_SMALL:
            runs = [build_run(name, method, schedule, int(seed), changes) for seed in options.seeds.split(",")]
            wanted.setdefault(name, {})[f"{method}, {schedule}"] = runs
    everything = [run for rows in wanted.values() for runs in rows.values() for run in runs]
    # All sets of a seed before the next one.
    everything.sort(key=lambda run: run.changes["seed"])
    carry_out(everything, options.data, options.out, options.processes)
    text = format_page(wanted, options.out)
    (options.out / "joining.md").write_text(text)
    print(text)


def build_run(name: str, method: str, schedule: str, seed: int, changes: Mapping[str, Any]) -> Alone:
    """Return a run of a method on a set."""
    own = METHODS[method] | (for_selector(name) if method == "fedsm" else {})
    folder = f"{name}/{method}-{schedule}/seed{seed}"
    return Alone(name, folder, own | {"training.schedule": schedule, "seed": seed} | changes, f"{name}-{seed}")


def format_page(wanted: Wanted, out: Path) -> str:
    """Return the tables of all sets in Markdown."""
    parts: list[str] = []
    for name, rows in wanted.items():
        found = find_rows(rows, out)
        if any(run.joining for runs in found.values() for run in runs):
            one = next(run for runs in found.values() for run in runs)
            facts = f"{one.metric}, {len(one.sites)} sites, {one.rounds} rounds, split unit: {one.split_unit}."
            means = markdown_table(TextTable(COLUMNS, tuple(summarise(row, runs) for row, runs in found.items())), [])
            parts.append(f"### {name}\n\n{facts}\n\n{means}")
    return "\n".join(parts)


def summarise(row: str, runs: Sequence[Results]) -> tuple[str, ...]:
    """Return a row of `COLUMNS`: means over sites, their deviation over seeds, and how many sites gain or lose."""
    deals = [list(run.joining.values()) for run in runs if run.joining]
    means = {
        model: [mean_of_known(one.tested(model) for one in deal) for deal in deals]
        for model in (AT_ZERO, LOCAL, FEDERATED, SHIFTED, CHOSEN)
    }
    added = [kept - alone for kept, alone in zip(means[CHOSEN], means[LOCAL], strict=True)]
    everyone = [one for deal in deals for one in deal]
    verdicts = Counter(one.verdict for one in everyone)
    return (
        row,
        *(mean_and_deviation(values) for values in means.values()),
        mean_and_deviation(added),
        f"{verdicts[BETTER]} / {verdicts[WORSE]} of {len(everyone)}",
        str(sum(one.chosen == LOCAL for one in everyone)),
    )


def find_rows(rows: Mapping[str, Sequence[Alone]], out: Path) -> dict[str, list[Results]]:
    """Return the results of the rows that have any, of the seeds that all these rows have."""
    done = {row: [run for run in runs if is_finished(out / run.folder)] for row, runs in rows.items()}
    # A method that refuses a set has no run of it.
    done = {row: runs for row, runs in done.items() if runs}
    shared = set.intersection(*({run.changes["seed"] for run in runs} for runs in done.values())) if done else set()
    return {
        row: [read_results(out / run.folder) for run in runs if run.changes["seed"] in shared]
        for row, runs in done.items()
    }


if __name__ == "__main__":
    main()
