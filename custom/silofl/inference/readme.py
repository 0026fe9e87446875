"""The pages of a super model and of an exported bundle, from templates."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from shlex import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from silofl.base.errors import quote_markdown
from silofl.data.data_profile import DataProfile
from silofl.inference.contents import Contents
from silofl.study import Study

INPUTS = {"volumes": "scan.nii.gz dicom_folder", "pictures": "picture.png"}


@cache
def open_template(name: str) -> Template:
    """Return a template of this room's pages."""
    environment = Environment(
        loader=PackageLoader("silofl.inference"), undefined=StrictUndefined, trim_blocks=True, autoescape=False
    )
    return environment.get_template(name)


def list_inputs(data_profile: DataProfile) -> str:
    """Return an example of each kind of input that a super model takes."""
    kinds = data_profile.kinds or INPUTS
    return " ".join(file for kind, file in INPUTS.items() if kind in kinds)


def bundle_readme(contents: Contents, members: Sequence[str], obstacle: str | None = None) -> str:
    """Return the README.md of an exported MONAI bundle.

    Args:
        members: The models that its program holds, in their order.
        obstacle: Why MONAI alone cannot answer as `silofl predict` does; None where it can.
    """
    study = contents.study
    image_shape = contents.image_shape
    shape = f"n, {', '.join(map(str, image_shape))}"
    if study.data.patches:
        # Windows are of the shape of training: the volume itself may have any size.
        shape = f"1, {image_shape[0]}, X, Y, Z"
    scale = f"{contents.operating_point.temperature:.6g}"
    # The temperature divides logits, which are probabilities' log-odds or, but for a constant, their logarithms.
    read = f"(p.logit() / {scale}).sigmoid()" if study.is_multilabel else f"(p.log() / {scale}).softmax(dim=1)"
    names = study.data.channel_names
    return render_page(
        "bundle_readme.md.j2",
        contents,
        members=members,
        obstacle=obstacle,
        torch=version("torch").split("+")[0],
        shape=shape,
        operating_point=list_operating_point(contents),
        read=read,
        files=f'"{[f"{name}.nii.gz" for name in names]}"' if names else "scan.nii.gz",
    )


def render_page(template: str, contents: Contents, **values: object) -> str:
    """Fill in a template of this room with a super model's contents and further values."""
    example = quote(",".join(f"{name}=FILE" for name in contents.study.data.channel_names))
    # Pages read these names; what is missing is an error there, never an empty place.
    values |= {"contents": contents, "study": contents.study, "example": example}
    return open_template(template).render(values).rstrip() + "\n"


def loading_code(study_file: str, weights: str, image_shape: Sequence[int]) -> str:
    """Return the code that loads a file with a whole model and answers an image, in the folder of the paths."""
    return LOADING.format(study_file=study_file, weights=weights, shape=tuple(image_shape))


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


def list_operating_point(contents: Contents) -> list[str]:
    """Say how a classification's probabilities are read; nothing where they are as the networks give them."""
    operating_point = contents.operating_point
    study = contents.study
    sentences = []
    if operating_point.temperature != 1:
        sentences.append(f"Its probabilities go through a temperature of {operating_point.temperature:.2f}.")
    wish = f", for {study.operating_point.wish} in validation" if study.operating_point else ""
    for number, threshold in operating_point.shown_thresholds(study.is_multilabel).items():
        label = quote_markdown(study.labels[number])
        sentences.append(f"A case is called {label} from a probability of {threshold:.2f} on{wish}.")
        own = []
        for name, point in contents.own_operating_points.items():
            own.append(f"{point.shown_thresholds(study.is_multilabel)[number]:.2f} for {quote_markdown(name)}")
        if own:
            sentences.append(f"Where a hospital's own model answers, its own threshold counts: {', '.join(own)}.")
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
