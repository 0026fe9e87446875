"""Chest X-rays with a folder for each class: the curated set of Sait et al., 2020, doi:10.17632/9xkhgts2s6.

SOURCE/<class>/<picture>, the class COVID-19 (or COVID), Normal, Pneumonia-Bacterial, Pneumonia-Viral or any other.
Sites are dealt by class, by default as AdaFed does it. The set names no patients. The pictures are links where the
disk allows it: do not change them in place.
"""

import numpy as np
from dealing_options import parse_dealing
from examples import ClassificationSet, Linked, import_examples

from silofl.reading.formats import PICTURES
from silofl_hospital.importing.site_files import number_labels
from silofl_hospital.importing.tree import visible_folders

KNOWN = {"covid-19": "COVID-19", "covid": "COVID-19", "normal": "Normal"}
KNOWN |= {"pneumonia-bacterial": "Pneumonia-Bacterial", "pneumonia-viral": "Pneumonia-Viral"}

options, dealing = parse_dealing(__doc__)
folders = {KNOWN.get(folder.name.lower(), folder.name): folder for folder in visible_folders(options.source)}
# Known classes first, in their order.
order = list(KNOWN.values())
classes = sorted(folders, key=lambda name: (order.index(name) if name in order else len(order), name))
files, targets = [], []
for number, name in enumerate(classes):
    pictures = [path for path in folders[name].glob("[!.]*") if path.suffix.lower() in PICTURES]
    files += [f"{path.parent.name}/{path.name}" for path in sorted(pictures)]
    targets += [number] * len(pictures)
examples = ClassificationSet(
    labels=number_labels(dealing.labels or classes, first=0),
    targets=np.array(targets),
    cases=files,
    content=Linked(options.source, files),
)
import_examples(examples, dealing, options)
