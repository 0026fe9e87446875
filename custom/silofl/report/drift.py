"""How far the sites of compared methods drift apart while they train: a table of the runs that measured it."""

from collections.abc import Sequence

import numpy as np

from silofl.report.conditions import RowRuns
from silofl.report.run_records import RunRecords
from silofl.report.tables import MISSING, TextTable
from silofl.training.metrics import mean_of_known

# Columns, by their names in a round's record.
COLUMNS = ("drift", "dissimilarity", "distance")
DRIFT_NOTE = (
    "Means over the rounds, ± their deviation over the seeds. Drift: mean over sites and steps of the squared distance "
    "to the received model (HarmoFL, Eq. 9). Dissimilarity: mean squared length of the sites' updates over that of "
    "their weighted mean, 1 where all agree, of rounds that all begin from one model. Distance: mean squared distance "
    "of the trained models to their mean (FedSM, Theorem 1). All three grow with the learning rate, the steps and the "
    "network: compare rows that share these; no accuracy follows from them. A row without numbers has them with --set "
    "training.measures_drift=true."
)


def compare_drift(rows: RowRuns) -> TextTable | None:
    """Return one line a row; None where no run has measured any drift.

    Args:
        rows: Name -> its runs, one for each seed.
    """
    table = tuple((name, *(_describe(runs, key) for key in COLUMNS)) for name, runs in rows.items())
    is_measured = any(cell != MISSING for _, *cells in table for cell in cells)
    return TextTable(("row", *COLUMNS), table) if is_measured else None


def _describe(runs: Sequence[RunRecords], key: str) -> str:
    means = [mean_of_known(getattr(record, key) for record in run.ledger) for run in runs]
    known = [mean for mean in means if mean is not None]
    if not known:
        return MISSING
    # By digits and not by decimals: drifts are as small as their rates.
    return f"{np.mean(known):.3g}" + (f" ± {np.std(known, ddof=1):.2g}" if len(known) > 1 else "")
