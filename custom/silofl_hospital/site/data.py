"""A check of the site's data, read as the first round will read it; its answer counts cases and names none."""

from typing import Any

from silofl.base.schema import dump_record
from silofl.core.gain import describe_few_units
from silofl.data.inventory import Inventory, take_inventory
from silofl.data.manifest import Manifest, agree_split_unit
from silofl.data.units import count_test_units
from silofl.parts.checked_cast import checked_cast
from silofl_hospital.site.candidate import Candidate
from silofl_hospital.site.finding import Finding, expect, ok
from silofl_hospital.site.input_warnings import count_labels, find_label_warnings, find_warnings


def check_data(candidate: Candidate) -> Finding:
    """Read all data and count cases, patients and labels.

    Raises:
        DataError: Something is wrong with the data.
    """
    data = candidate.data
    study = candidate.study
    if study.asks_alone:
        # The counts need no floor, because nothing of this leaves.
        held = checked_cast(take_inventory(candidate.data_folder, 0), Inventory)
        return ok(f"{held.cases} cases can be read, of {held.patients} {held.unit}", **held.model_dump(mode="json"))
    manifest = checked_cast(data.manifest, Manifest)
    parts = {"training": data.training, "validation": data.validation, "test": data.test}
    cases = {name: len(records) for name, records in manifest.parts.items()}
    counts = {name: count_labels(part, study) for name, part in parts.items()}
    facts: dict[str, Any] = {
        "cases": cases,
        "examples": {name: len(part) for name, part in parts.items()},
        "patients": {name: part.num_patients for name, part in parts.items()},
        "labels": counts,
        "image_shape": list(data.image_shape),
        "domain": dump_record(data.data_profile),
    }
    worth_a_look = find_label_warnings(data, study, counts["training"]) + find_warnings(data, study)
    if study.compares_with_baseline:
        worth_a_look += describe_few_units({candidate.kit.name: count_test_units(data)})
    if study.rounds and not cases["validation"]:
        worth_a_look.append("no validation case is there to choose the best round by; move a patient there")
    listed = ", ".join(f"{count} {name}" for name, count in cases.items())
    fine = f"{listed} cases can be read"
    if agree_split_unit(study, manifest.split_unit) == "unknown":
        fine += "; the patients are unknown, and one may be in two parts"
    return expect(not worth_a_look, fine, ". ".join(worth_a_look), is_serious=False, **facts)
