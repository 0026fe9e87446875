"""The README.md of a super model's folder and of an exported bundle."""

from collections.abc import Sequence
from shlex import quote

import torch

from silofl.base.errors import quote_markdown
from silofl.inference.contents import Contents
from silofl.study import Study


def super_model_readme(contents: Contents, rule: str) -> str:
    """Return the text, with this super model's models, labels, image size and training images filled in.

    Args:
        rule: Its rule, as a sentence.
    """
    study, sites, domain = contents.study, contents.sites, contents.domain
    return README.format(
        name=study.name,
        task=study.task,
        labels=describe_labels(study),
        sites=", ".join(sites) or "none of their own",
        algorithm=f"{study.algorithm.name}, preset {study.algorithm.preset}",
        form=describe_images(study, contents.image_shape),
        rule=rule,
        domain=domain.sentence,
        inputs=" ".join(file for kind, file in INPUTS.items() if kind in (domain.kinds or INPUTS)),
        selector_note=_hospital_note(contents),
        batch_note=STATELESS if study.model.normalization == "batch_stateless" else "",
        neighbour_note=_neighbour_note(study),
        contrast_note=_contrast_note(study),
    )


INPUTS = {"volumes": "scan.nii.gz dicom_folder", "pictures": "picture.png"}
SELECTOR = """
**Whoever holds this folder can ask of any image which of these hospitals it came from**: the selector is a classifier
of hospitals, and the models differ as their images do. Give it to nobody who must not know.
"""
MODELS = """
**This folder holds a model of each of these hospitals**, and they differ as their images do. Give it to nobody who must
not know.
"""
CALLING = """
{sentences} `configs/predict.json` answers so, by its `calling`. The program in `models/` gives probabilities `p`
before the temperature, as do the thresholds of `calling`; `{read}` is after it.
"""
STATELESS = """
The network's BatchNorm keeps no statistics, so a prediction depends on the other images of its batch: all slices of a
case are always predicted together, whatever the batch size.
"""
NEIGHBOURS = """
An image holds {slices} slices of its volume as channels: {count} before the slice, the slice itself and {count} after
it, in this order, each with all of its own channels ({channels}). At the ends of the volume the nearest slice is
repeated. The answer is that of the middle slice. SiloFL stacks the slices of a file itself; prepared arrays must come
stacked.
"""
CONTRASTS = """
An image holds the contrasts {names} as channels, in this order, each scaled on its own. A case is one file with all of
them, or a file for each, given as `{example}`; {missing}.
"""
README = """# Super model of {name}

- task: {task}; labels: {labels}
- trained with {algorithm}; models of sites: {sites}
- learnt from {domain}; images of another kind are refused, unusual ones are answered with a warning
- images are prepared as in training, {form}
{selector_note}{batch_note}{neighbour_note}{contrast_note}
`model.json` says what this is and how it decides, with the SHA-256 of every other file here and one fingerprint of all
that decides predictions; a folder that was changed is refused. It needs SiloFL, and no federation.

On the command line:

```
python -m silofl predict THIS_FOLDER {inputs} -o OUT --picture
python -m silofl export THIS_FOLDER -o BUNDLE
```

`export` writes what PyTorch reads alone, where SiloFL is not installed.

In Python:

```python
from silofl.inference import SuperModel

prediction = SuperModel.load("THIS_FOLDER").predict("scan.nii.gz")
print(prediction.model, prediction.scores, prediction.is_fallback, prediction.volumes_ml, prediction.warnings)
```

{rule} This is a research tool and no medical device.
"""


def _hospital_note(contents: Contents) -> str:
    """Return what a folder tells of the hospitals; nothing of one model."""
    if contents.rule == "selector":
        return SELECTOR
    return MODELS if len(contents.sites) > 1 else ""


def loading_code(study_file: str, weights: str, image_shape: Sequence[int]) -> str:
    """Return the code that loads a file with a whole model and answers an image, in the folder of the paths."""
    return LOADING.format(study_file=study_file, weights=weights, shape=tuple(image_shape))


def case_code(folder: str, image_shape: Sequence[int]) -> str:
    """Return the code that loads a super model's folder and predicts; the path is relative to where it runs."""
    return LOADING_SUPER_MODEL.format(folder=folder, shape=(1, *image_shape))


LOADING = """import torch
from pathlib import Path
from silofl.study import load_study
from silofl.models import build_model

study = load_study(Path("{study_file}"))
model = build_model(study, image_shape={shape}, seed=0)
model.load_state_dict(torch.load("{weights}", weights_only=True))
model.eval()
logits = model(torch.rand(1, *{shape}))
"""
LOADING_SUPER_MODEL = """import numpy as np
from silofl.inference import SuperModel

model = SuperModel.load("{folder}")
images = np.random.rand(*{shape}).astype(np.float32)  # prepared slices, or a volume; or the path of a scan
prediction = model.predict(images)
print(prediction.model, prediction.label_map, prediction.label)
"""


def bundle_readme(contents: Contents, members: Sequence[str], obstacle: str | None = None) -> str:
    """Return the README.md of an exported MONAI bundle.

    Args:
        members: The models that its program holds, in their order.
        obstacle: Why MONAI alone cannot answer as `silofl predict` does; None where it can.
    """
    study, image_shape, calling = contents.study, contents.image_shape, list_calling(contents)
    scale = f"{contents.calling.temperature:.6g}"
    read = f"(p.logit() / {scale}).sigmoid()" if study.is_multilabel else f"(p.log() / {scale}).softmax(dim=1)"
    program = PROGRAM.format(
        task=study.task,
        members=", ".join(members),
        torch=torch.__version__.split("+")[0],
        shape=f"1, {image_shape[0]}, X, Y, Z" if study.data.patches else f"n, {', '.join(map(str, image_shape))}",
        example=", ".join(map(str, image_shape)),
        count=1 if study.data.dimensions == 3 else 3,
        pieces=f"windows of {image_shape[1:]}, two" if study.data.patches else "slices, eight",
    )
    names = study.data.channel_names
    files = f'"{[f"{name}.nii.gz" for name in names]}"' if names else "scan.nii.gz"
    return BUNDLE_README.format(
        name=study.name,
        program=program,
        alone=NOT_ALONE.format(obstacle=obstacle) if obstacle else ALONE.format(files=files),
        selector_note=_hospital_note(contents),
        calling_note=CALLING.format(sentences=" ".join(calling), read=read) if calling else "",
        neighbour_note=_neighbour_note(study),
        contrast_note=_contrast_note(study),
    )


def list_calling(contents: Contents) -> list[str]:
    """Say how a classification's probabilities are read; nothing where they are as the networks give them."""
    calling, study = contents.calling, contents.study
    sentences = [f"Its probabilities go through a temperature of {calling.temperature:.2f}."]
    sentences = sentences if calling.temperature != 1 else []
    if calling.temperatures:
        own = ", ".join(f"{name} {one:.2f}" for name, one in sorted(calling.temperatures.items()))
        sentences.append(f"Those of a model that answers alone go through its own temperature: {own}.")
    wish = f", for {study.operating_point.wish} in validation" if study.operating_point else ""
    for number, threshold in calling.shown_thresholds(study.is_multilabel).items():
        label = quote_markdown(study.labels[number])
        sentences.append(f"A case is called {label} from a probability of {threshold:.2f} on{wish}.")
    return sentences


def describe_labels(study: Study) -> str:
    """Return the study's labels and their names, which may be any text."""
    return ", ".join(f"{number} = {quote_markdown(name)}" for number, name in sorted(study.labels.items()))


def describe_images(study: Study, image_shape: Sequence[int]) -> str:
    """Return what images are prepared to."""
    shape = " x ".join(map(str, image_shape))
    if study.data.patches:
        return f"as whole volumes of any size, seen by windows of channels x X x Y x Z = {shape}"
    return f"to channels x {'rows x columns' if study.data.dimensions == 2 else 'X x Y x Z'} = {shape}"


def _contrast_note(study: Study) -> str:
    """Return the paragraph on the channels that have names; empty where none has."""
    names = study.data.channel_names
    example = quote(",".join(f"{name}=FILE" for name in names))
    # The normalised zeros would be no image of training's.
    missing = "none may be missing" if study.recipe.input else "zeros stand for one that is missing"
    return CONTRASTS.format(names=", ".join(names), example=example, missing=missing) if names else ""


def _neighbour_note(study: Study) -> str:
    """Return the paragraph on the slices that stand in one image; empty where there is one."""
    count = study.data.neighbours
    return NEIGHBOURS.format(count=count, slices=2 * count + 1, channels=study.data.channels) if count else ""


PROGRAM = """
`models/model.ts` is TorchScript and needs PyTorch {torch} alone; other versions may not load it. It takes one case, all
its slices or its volume, prepared as in training, as float32 ({shape}), picks the model that fits the case,
and returns probabilities ({task}); `member_weights` returns the weight of each of {members}:

```python
import torch

model = torch.jit.load("models/model.ts", map_location="cpu")
case = torch.rand({count}, {example})
probabilities, weights = model(case), model.member_weights(case)
```

It looks at {pieces} at a time.
"""
ALONE = """
`configs/inference.json` labels a NIfTI scan by PyTorch and MONAI alone, without SiloFL: each voxel as `silofl predict`
labels it, but for a few in a million where rounding decides between two labels. **It checks nothing**: no image is
refused, nothing is warned of, and an answer of the same name is replaced.

```
python -m monai.bundle run --config_file configs/inference.json --bundle_root . --image {files} \\
    --output OUT
```
"""
NOT_ALONE = """
There is no `configs/inference.json` for MONAI alone, which cannot answer as `silofl predict` does: {obstacle}.
"""
BUNDLE_README = """# {name}: a super model as a MONAI bundle
{program}{calling_note}{selector_note}{neighbour_note}{contrast_note}{alone}
`configs/predict.json` reads a NIfTI, MHA, NRRD, PNG, JPEG or TIFF file or a DICOM series folder, prepares it as the
study did, and writes the answer on the file's own grid, never over another answer; a blank file, or one of another kind
than the `domain` there, the images that the models learnt from, is refused. The log has an answer's warnings. An answer
that the study's rule forbids to use is an error, and written only with `--write_forbidden True`. Reading and preparing
are SiloFL's, which must be installed; `python -m monai.bundle` needs `fire`, and `jsonschema` to verify. From this
folder:

```
python -m monai.bundle run --config_file configs/predict.json --bundle_root . --image scan.nii.gz --output OUT
python -m monai.bundle run --config_file configs/evaluate.json --bundle_root . --data MY_CASES --output NUMBERS
python -m monai.bundle verify_net_in_out network_def --meta_file configs/metadata.json \\
    --config_file configs/predict.json --bundle_root .
python -m monai.bundle verify_metadata --meta_file configs/metadata.json --filepath configs/metadata_schema.json
python -m monai.bundle verify_metadata --meta_file configs/metadata.json --filepath eval/schema.json
```

The second is `silofl evaluate`. The fourth uses the schema in this folder; the fifth fetches MONAI's own, and fails
without the internet.

This is a research tool and no medical device.
"""
