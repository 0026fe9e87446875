"""What a run with the defaults tells each hospital: import, new-study and simulate, with nothing chosen.

    python bench/defaults.py DATA OUT    # DATA holds the public sets' folders; one set after the other, in OUT

Prints a row for each set: how long it took, in how many rounds the training ended, and how many hospitals have which
verdict. Finished sets are not run again.
"""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from runs import run_recipe

from silofl.federation.ledger import read_ledger
from silofl.federation.results import Results, read_results
from silofl_desk.phantoms.phantoms import SITES, make_phantoms

# Set -> the recipe and its arguments; the source lies below DATA. The activities have no validation part of
# their own, and without one no hospital can compare two models.
IMPORTS = {
    "nuclei": ("nuclei_dsb2018", "nuclei_dsb2018"),
    "pneumonia": ("medmnist", "pneumoniamnist_balanced/pneumoniamnist_balanced.npz"),
    "mednist": ("medmnist", "mednist6_28/mednist6_28.npz"),
    "activity": ("hmp", "hmp_activity", "--validation", "0.3"),
    "phantoms": (),
    "volumes": ("spine_gm", "spine_gm_mri"),
}
VERDICTS = ("better for its patients", "worse for its patients", "keeps its own model", "no clear difference")
FEW, UNFINISHED = "too few to say", "not trained to the end"


def main() -> None:
    """Run the sets that are asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--sets", default=",".join(IMPORTS), help="sets to run, by comma")
    options = parser.parse_args()
    heads = ("set", "hospitals", "minutes", "federated rounds", "local rounds", *VERDICTS, FEW, UNFINISHED, "none")
    print(f"| {' | '.join(heads)} |")
    print(f"|{'---|' * len(heads)}")
    for name in options.sets.split(","):
        minutes, results = run_defaults(name, options.data, options.out)
        num_rounds = len(read_ledger(options.out / "runs" / name) or ())
        print(f"| {' | '.join(describe_set(name, minutes, num_rounds, results))} |", flush=True)


def run_defaults(name: str, data: Path, out: Path) -> tuple[float, Results]:
    """Import a set, write a study for it and simulate it, unless that is done; return the minutes and the results.

    Args:
        name: Key of `IMPORTS`.
        data: Folder of the public sets.
        out: Folder of the sites, studies and runs.
    """
    sites, study, run, clock = out / "data" / name, out / "studies" / name, out / "runs" / name, out / f"{name}.json"
    if not clock.exists():
        for folder in (sites, study, run):
            folder.parent.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        if name == "phantoms":
            make_phantoms(sites)
        elif not sites.exists():
            recipe, source, *further = IMPORTS[name]
            run_recipe(recipe, data / source, sites, *further)
        if not study.exists():
            call("new-study", str(sites), str(study))
        # Of the phantoms a fifth hospital lies there, which takes no part.
        members = ("--sites", ",".join(SITES)) if name == "phantoms" else ()
        call("simulate", str(study), "--data", str(sites), "--out", str(run), "--in-process", *members)
        clock.write_text(json.dumps({"minutes": (time.monotonic() - started) / 60}))
    results = read_results(run)
    if results is None:
        sys.exit(f"{run} holds no results")
    return json.loads(clock.read_text())["minutes"], results


def describe_set(name: str, minutes: float, num_rounds: int, results: Results) -> list[str]:
    """Return the cells of a set's row."""
    joining = results.joining or {}
    counts = Counter(joined.verdict for joined in joining.values())
    local = [joined.local_rounds for joined in joining.values()]
    rounds = f"{min(local)} to {max(local)}" if local else "-"
    hospitals = len(results.sites)
    cells = [name, str(hospitals), f"{minutes:.0f}", str(num_rounds), rounds]
    cells += [str(counts[verdict]) for verdict in (*VERDICTS, FEW, UNFINISHED)]
    return [*cells, str(hospitals - len(joining))]


def call(*arguments: str) -> None:
    """Run a command of SiloFL; end here where it does not end well."""
    code = subprocess.run([sys.executable, "-m", "silofl", *arguments], stdout=subprocess.DEVNULL).returncode
    if code:
        sys.exit(f"silofl {' '.join(arguments)} ended with {code}")


if __name__ == "__main__":
    main()
