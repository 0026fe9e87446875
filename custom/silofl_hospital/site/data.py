"""A check of the site's data, read as the first round will read it; its answer counts cases and names none."""

from typing import Any

from silofl.base.schema import dump_record
from silofl.core.gain import describe_few_units
from silofl.data.inventory import Inventory, take_inventory
from silofl.data.manifest import Manifest, agree_split_unit
from silofl.data.padding import describe_padding
from silofl.data.units import count_test_units
from silofl.parts.checked_cast import checked_cast
from silofl_hospital.site.candidate import Candidate
from silofl_hospital.site.finding import Finding, expect, ok
from silofl_hospital.site.input_warnings import count_labels, find_doubts, find_label_doubts


def check_data(candidate: Candidate) -> Finding:
    """Read all data and count cases, patients and labels.

    Raises:
        DataError: Something is wrong with the data.
    """
    found, study = candidate.data, candidate.study
    if study.asks_alone:
        # Without a floor: nothing of this leaves.
        held = checked_cast(take_inventory(candidate.data_folder, 0), Inventory)
        return ok(f"{held.cases} cases can be read, of {held.patients} {held.unit}", **held.model_dump(mode="json"))
    manifest = checked_cast(found.manifest, Manifest)
    parts = {"training": found.training, "validation": found.validation, "test": found.test}
    cases = {name: len(records) for name, records in manifest.parts.items()}
    counts = {name: count_labels(part, study) for name, part in parts.items()}
    facts: dict[str, Any] = {
        "cases": cases,
        "examples": {name: len(part) for name, part in parts.items()},
        "patients": {name: part.num_patients for name, part in parts.items()},
        "labels": counts,
        "image_shape": list(found.image_shape),
        "domain": dump_record(found.domain),
    }
    worth_a_look = find_label_doubts(found, study, counts["training"]) + find_doubts(found, study)
    worth_a_look += describe_padding(found.padding)
    if study.is_guarded:
        worth_a_look += describe_few_units({candidate.kit.name: count_test_units(found)})
    if study.rounds and not cases["validation"]:
        worth_a_look.append("validation must have cases to choose the best round by, not 0; move a patient there")
    listed = ", ".join(f"{count} {name}" for name, count in cases.items())
    is_unknown = agree_split_unit(study, manifest.split_unit) == "unknown"
    unknown = "; the patients are unknown, and one may be in two parts" if is_unknown else ""
    fine = f"{listed} cases can be read{unknown}"
    return expect(not worth_a_look, fine, ". ".join(worth_a_look), is_serious=False, **facts)
