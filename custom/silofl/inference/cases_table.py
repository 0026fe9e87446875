"""The table of a model's answers to single cases, ``cases.csv``: it names cases, and stays at the hospital."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from silofl.base.csv_text import encode_csv
from silofl.base.files import write_text
from silofl.core.findings import join_findings, name_findings
from silofl.inference.contents import Contents
from silofl.inference.evaluated_cases import EvaluatedCase, RefusedCase
from silofl.inference.evaluation import Evaluation
from silofl.inference.prediction import call_case
from silofl.study import Study

FILE = "cases.csv"


def write_cases(
    path: Path, cases: Sequence[EvaluatedCase], refused: Sequence[RefusedCase], record: Evaluation, contents: Contents
) -> None:
    """Write one row a case: its value, what is measured of each label or class, warnings, and why it was refused."""
    rows = [_list_case_facts(one, record, contents.study) for one in cases]
    rows += [{"case": one.case, "part": one.part, "refused": one.reason} for one in refused]
    columns = [
        name for name in dict.fromkeys(name for row in rows for name in row) if name not in ("warnings", "refused")
    ]
    columns += ["warnings", "refused"]
    write_text(path, encode_csv([columns, *([row.get(name) for name in columns] for row in rows)]))


def _list_case_facts(one: EvaluatedCase, record: Evaluation, study: Study) -> dict[str, object]:
    value = one.score.by_case.get(one.case)
    # A single case has no area under a curve.
    metric = record.metric if study.task == "segmentation" else "accuracy"
    row: dict[str, object] = {"case": one.case, "part": one.part, "answered by": one.model, metric: value}
    for key, measured in one.labels.items():
        name = study.labels.get(key, key)
        hd95, surface_dice = measured.distances or (None, None)
        row |= {
            f"{name} Dice": one.score.labels_by_case.get(key, {}).get(one.case),
            f"{name} predicted {record.size_unit}": measured.predicted,
            f"{name} true {record.size_unit}": measured.true,
            f"{name} lesions": measured.lesions.num_true,
            f"{name} lesions found": measured.lesions.num_found,
            f"{name} false lesions": measured.lesions.num_false,
            f"{name} HD95 {record.distance_unit}": hd95,
            f"{name} surface Dice": surface_dice,
        }
    for label, rows in one.score.probabilities_by_case.items():
        read = call_case(np.array([rows[one.case]]), one.calling, study)
        if study.is_multilabel:
            answer = join_findings(read["findings"])
            row |= {"true findings": name_findings(label, study.labels), "answer": answer}
        else:
            row |= {"true class": study.labels[label], "answer": study.labels[read["label"]]}
        row |= {f"probability of {name}": chance for name, chance in read["class_scores"].items()}
    return row | {"warnings": "; ".join(one.warnings)}
