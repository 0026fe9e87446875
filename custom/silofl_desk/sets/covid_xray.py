"""Chest X-rays with one folder for each class, as in the curated set of COVID-19, normal and pneumonia radiographs.

Sait et al., Curated Dataset for COVID-19 Posterior-Anterior Chest Radiography Images (X-Rays), 2020; from Mendeley
Data, doi:10.17632/9xkhgts2s6::

    SOURCE/
      COVID-19/                  or COVID
        COVID-19 (1).jpg ...
      Normal/
      Pneumonia-Bacterial/
      Pneumonia-Viral/

Any folders of pictures will do: the four known classes keep this order and these names, others follow by theirs. The
set has neither hospitals nor patients: sites are dealt by class, by default as AdaFed does it (Chen et al.,
arXiv:2112.00734: 20 sites, Dirichlet shares with alpha 0.1, half of each site for the test), and
patients are unknown. The pictures are hard links to the set where the disk allows it, copies where not: do not
change them in place.
"""

from pathlib import Path

import numpy as np

from silofl.base.errors import DataError
from silofl.importing.options import DEALT, ImportOptions, Layout
from silofl.importing.site_files import SitePlan, number_labels, visible_folders
from silofl.reading.formats import PICTURES
from silofl_desk.sets.examples import ClassificationSet, Linked, plan_examples

# The classes of the set, and how copies of it spell them besides.
KNOWN = {"COVID-19": ("covid",), "Normal": (), "Pneumonia-Bacterial": (), "Pneumonia-Viral": ()}


def plan_covid_xray(source: Path, options: ImportOptions) -> dict[str, SitePlan]:
    """Plan the import of SOURCE/<class>/<picture>.

    Raises:
        DataError: There are fewer than two classes, a class has no picture, or there are too few for the sites.
    """
    folders = sorted(visible_folders(source), key=_class_sort_key)
    pictures = {folder.name: _list_pictures(folder) for folder in folders}
    if len(pictures) < 2:
        raise DataError(f"{source.name} must hold a folder of pictures for each class, at least 2, not {len(pictures)}")
    if options.labels is not None and len(options.labels) != len(pictures):
        raise DataError(f"labels must name the {len(pictures)} classes of {source.name}, not {len(options.labels)}")
    names = [f"{folder}/{name}" for folder, found in pictures.items() for name in found]
    examples = ClassificationSet(
        number_labels(options.labels or map(_class_name, folders), first=0),
        np.repeat(np.arange(len(pictures)), [len(found) for found in pictures.values()]),
        cases=names,
        content=Linked(source, names),
    )
    return plan_examples(examples, options)


def _class_name(folder: Path) -> str:
    """Return the usual name of a known class, otherwise the folder's name."""
    spelt = folder.name.lower()
    return next((name for name, others in KNOWN.items() if spelt in (name.lower(), *others)), folder.name)


def _class_sort_key(folder: Path) -> tuple[int, str]:
    name, known = _class_name(folder), list(KNOWN)
    return known.index(name) if name in known else len(known), name


def _list_pictures(folder: Path) -> list[str]:
    found = sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICTURES and path.name[0] != ".")
    if not found:
        raise DataError(f"the class {folder.name} must have pictures in {', '.join(PICTURES)}, not none; remove it")
    return found


LAYOUT = Layout(plan_covid_xray, DEALT)
