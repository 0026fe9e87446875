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
    rows = [_list_case_facts(case, record, contents.study) for case in cases]
    rows += [{"case": case.case, "part": case.part, "refused": case.reason} for case in refused]
    # A dictionary, so that columns keep the order in which cases bring them.
    columns: dict[str, None] = {}
    for row in rows:
        columns |= dict.fromkeys(row)
    # Sentences come last: they are long.
    for name in ("warnings", "refused"):
        columns.pop(name, None)
        columns[name] = None
    write_text(path, encode_csv([[*columns], *([row.get(name) for name in columns] for row in rows)]))


def _list_case_facts(case: EvaluatedCase, record: Evaluation, study: Study) -> dict[str, object]:
    value = case.score.by_case.get(case.case)
    # A single case has no area under a curve.
    metric = record.metric if study.task == "segmentation" else "accuracy"
    row: dict[str, object] = {"case": case.case, "part": case.part, "answered by": case.model, metric: value}
    for key, measured in case.labels.items():
        name = study.name_label(key)
        hd95, surface_dice = measured.distances or (None, None)
        row |= {
            f"{name} Dice": case.score.labels_by_case.get(key, {}).get(case.case),
            f"{name} predicted {record.size_unit}": measured.predicted,
            f"{name} true {record.size_unit}": measured.true,
            f"{name} components": measured.lesions.num_true,
            f"{name} components found": measured.lesions.num_found,
            f"{name} false components": measured.lesions.num_false,
            f"{name} HD95 {record.distance_unit}": hd95,
            f"{name} surface Dice": surface_dice,
        }
    for label, rows in case.score.probabilities_by_case.items():
        read = call_case(np.array([rows[case.case]]), case.operating_point, study)
        if study.is_multilabel:
            answer = join_findings(read["findings"])
            row |= {"true findings": name_findings(int(label), study.labels), "answer": answer}
        else:
            row |= {"true class": study.labels[int(label)], "answer": study.labels[read["label"]]}
        row |= {f"probability of {name}": chance for name, chance in read["class_scores"].items()}
    return row | {"warnings": "; ".join(case.warnings)}
