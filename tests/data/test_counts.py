import json
from dataclasses import replace

import numpy as np
from PIL import Image

from silofl.base.schema import dump_record
from silofl.data.counts import FILE, DataCounts, PartCounts, SiteCounts, digest_data, list_changed_sites
from silofl.data.manifest import read_manifest
from silofl.data.parts import Examples
from silofl.data.site_data import load_site_data


def examples(cases, patients):
    return Examples(None, None, tuple(cases), (None,) * len(cases), tuple(patients))


def test_a_part_is_counted_by_cases_patients_and_images():
    # the volume a has two slices; a and b are scans of one patient
    assert PartCounts.of(examples("aabc", ("p1", "p1", "p1", "p2"))) == PartCounts(cases=3, patients=2, examples=4)
    # where those of one case are not known
    assert PartCounts.of(examples("ab", ("p1", None))).patients is None
    assert PartCounts.of(examples("", ())) == PartCounts(cases=0, patients=0, examples=0)


def test_a_changed_dataset_json_or_file_changes_a_site(site, study, tmp_path):
    folder, known = site.write(), tmp_path / FILE

    def record(content):
        counts = SiteCounts.of(load_site_data(folder, study(), tmp_path / "cache"))
        known.write_text(json.dumps(dump_record(DataCounts({"north": replace(counts, content=content)}))))

    def find():
        return list_changed_sites(tmp_path, tmp_path, study())

    assert find() == []
    record(digest_data(read_manifest(folder, study())))
    assert find() == []
    site.mask("a-mask.png", 1 - np.asarray(Image.open(folder / "a-mask.png")))
    assert find() == ["north"]
    # An older run has not recorded its files.
    record(None)
    assert find() == []
    site.write(split_unit="patient")
    assert find() == ["north"]
