"""Cut the training of every site to as many examples as the smallest has, as HarmoFL's tables have it.

    python recipes/truncate.py DATA [SEED]

DATA is a folder of imported sites. Cases are drawn by the seed; of a volume its middle slices are kept. Validation
and test stay, and so do the files.
"""

import json
import sys
from pathlib import Path

import numpy as np

from silofl.reading.images import read_image


def count_slices(site: Path, record: dict) -> int:
    image = site / record["image"]
    return read_image(image).spatial_shape[-1] if image.name.endswith((".nii", ".nii.gz")) else 1


data, seed = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
contents = {path: json.loads(path.read_text()) for path in sorted(data.glob("*/dataset.json"))}
sizes = {
    path: [count_slices(path.parent, record) for record in content["training"]] for path, content in contents.items()
}
smallest = min(map(sum, sizes.values()))
for path, content in contents.items():
    left, kept = smallest, {}
    for place in np.random.default_rng(seed).permutation(len(sizes[path])).tolist():
        size, taken = sizes[path][place], min(sizes[path][place], left)
        left -= taken
        if taken:
            kept[place] = dict(content["training"][place])
        if 0 < taken < size:
            first = (size - taken) // 2
            kept[place]["slices"] = [first, first + taken - 1]
    content["training"] = [kept[place] for place in sorted(kept)]
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    print(f"{path.parent.name}: {smallest} of {sum(sizes[path])} training examples")
