"""Lymph node patches of five hospitals, with or without tumour: Camelyon17 as WILDS has it (arXiv:2012.07421, CC0).

SOURCE/metadata.csv and SOURCE/patches, as the package wilds downloads camelyon17_v1.0. A center is a site, whose
patients are split anew, because the set's own split tests on entire hospitals. The patches are links where the disk
allows it: do not change them in place.
"""

import csv

import numpy as np
from dealing_options import OWN, parse_dealing
from examples import ClassificationSet, Linked, import_examples

from silofl_hospital.importing.site_files import number_labels

options, dealing = parse_dealing(__doc__, partition=OWN, test=0.2, validation=0.2)
targets, cases, files, patients, sites = [], [], [], [], []
with (options.source / "metadata.csv").open(newline="") as table:
    for row in csv.DictReader(table):
        patient = f"{int(row['patient']):03d}"
        folder = f"patient_{patient}_node_{row['node']}"
        case = f"{folder}_x_{row['x_coord']}_y_{row['y_coord']}"
        targets.append(int(row["tumor"]))
        cases.append(case)
        files.append(f"patches/{folder}/patch_{case}.png")
        patients.append(patient)
        sites.append(f"center_{row['center']}")
examples = ClassificationSet(
    labels=number_labels(dealing.labels or ("normal", "tumor"), first=0),
    targets=np.array(targets),
    cases=cases,
    content=Linked(options.source, files),
    patients=patients,
    sites=sites,
)
import_examples(examples, dealing, options)
