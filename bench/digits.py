"""The set that nobody had tuned on, of docs/joining.md: handwritten digits of scikit-learn as six hospitals.

    python bench/digits.py digits
    silofl import table digits digits-data --validation 0.3 --test 0.3

The first 900 images are ordered by writer; each hospital has a block of 150.
"""

import argparse
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

from silofl.base.csv_text import encode_csv

SITES, IMAGES = 6, 150


def main() -> None:
    """Write one folder a hospital: its images and ``labels.csv``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    images, targets = load_digits(return_X_y=True)
    for site in range(SITES):
        folder = out / f"site-{site + 1}"
        folder.mkdir(parents=True)
        rows = [("file", "label")]
        for number in range(site * IMAGES, (site + 1) * IMAGES):
            name = f"{number:04d}.png"
            # Of 17 grey values.
            Image.fromarray(np.uint8(images[number].reshape(8, 8) * 15)).save(folder / name)
            rows.append((name, str(targets[number])))
        (folder / "labels.csv").write_text(encode_csv(rows))


if __name__ == "__main__":
    main()
