import json

import numpy as np
import pytest
from PIL import Image

from tests.importing.trees import TREES, draw, draw_mask, import_tree

SENTENCES = {
    "skin_metadata": "(HAM10000_metadata.csv is called otherwise, and its columns are image_id, dx)",
    "blood_cells": "has the folder 'TEST_SIMPLE' beside TEST, TRAIN, which look like the parts of one hospital's data",
}


@pytest.mark.usefixtures("decoded_here")
@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.build.__name__)
def test_a_public_sets_tree_is_imported_by_one_line_or_refused_by_what_it_is(tree, tmp_path):
    counts, said = import_tree(tree, tmp_path)
    assert counts == tree.counts, said
    assert SENTENCES.get(tree.build.__name__, "") in said


@pytest.fixture
def run(tmp_path, silofl):
    """Import SOURCE and return dataset.json of a site, or the sentence of a refusal, and all that was printed."""

    def go(*arguments, site="north"):
        layout, *options = arguments
        code, out, error = silofl("import", layout, tmp_path / "source", tmp_path / "data", *options)
        described = tmp_path / "data" / site / "dataset.json"
        return error if code else json.loads(described.read_text()), out

    return go


def list_pixels(folder):
    return {path.name: set(np.unique(np.asarray(Image.open(path))).tolist()) for path in folder.rglob("*.png")}


def test_masks_that_a_star_joins_are_one_label(run, tmp_path):
    for number in range(6):
        draw(tmp_path / "source" / "north" / f"{number}.png")
        draw_mask(tmp_path / "source" / "north" / f"{number}_mask.png")
    draw_mask(tmp_path / "source" / "north" / "4_mask_1.png", row=7)
    error, _ = run("folders", "--image-pattern", "{case}.png", "--mask-pattern", "{case}_mask.png")
    assert "has further masks of an image, 4_mask_1; join them with --mask-pattern '{case}_mask*.png'" in error
    run("folders", "--image-pattern", "{case}.png", "--mask-pattern", "{case}_mask*.png")
    counts = {n: np.count_nonzero(Image.open(tmp_path / "data" / "north" / "masks" / f"{n}.png")) for n in range(6)}
    assert counts == {0: 20, 1: 20, 2: 20, 3: 20, 4: 40, 5: 20}


def test_several_masks_of_several_labels_are_refused(run, tmp_path):
    draw(tmp_path / "source" / "north" / "a.png")
    for number in range(2):
        draw_mask(tmp_path / "source" / "north" / f"a_{number}_mask.png")
    patterns = ["--image-pattern", "{case}.png", "--mask-pattern", "{case}_*mask.png"]
    error, _ = run("folders", *patterns, "--labels", "organ,lesion")
    assert "has 2 masks of a, and 2 labels; joined are those of one label" in error


@pytest.mark.parametrize(("value", "said"), [(100, "100"), (128, "128")])
def test_smoothed_masks_are_cut_at_a_threshold(run, tmp_path, value, said):
    for number in range(6):
        draw(tmp_path / "source" / "north" / "images" / f"{number}.png")
        draw_mask(tmp_path / "source" / "north" / "masks" / f"{number}.png", smoothed=True)
    error, _ = run("folders")
    assert "has smoothed edges, with" in error and "cut them at half with --mask-threshold 128" in error
    run("folders", "--mask-threshold", said)
    smoothed = np.asarray(Image.open(tmp_path / "source" / "north" / "masks" / "0.png"))
    written = np.asarray(Image.open(tmp_path / "data" / "north" / "masks" / "0.png"))
    assert np.array_equal(written, smoothed >= value)


def test_a_threshold_of_several_labels_and_ignore_alone_are_refused(run, tmp_path):
    draw(tmp_path / "source" / "north" / "images" / "a.png")
    error, _ = run("folders", "--mask-threshold", "128", "--labels", "organ,lesion")
    assert "mask-threshold cuts masks of one label, and labels name 2; leave it out" in error
    error, _ = run("folders", "--labels", "255=ignore")
    assert "labels name ignore alone, which no network learns; name a label too" in error


def test_a_colour_mask_is_not_cut(run, tmp_path):
    (tmp_path / "source" / "north" / "masks").mkdir(parents=True)
    colours = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    for name in ("a.png", "b.png"):
        draw(tmp_path / "source" / "north" / "images" / name)
        Image.fromarray(colours).save(tmp_path / "source" / "north" / "masks" / name)
    error, _ = run("folders", "--mask-threshold", "128")
    assert "holds colours, which no threshold cuts; save it as grey" in error


def test_what_is_called_ignore_keeps_its_number_and_counts_nowhere(run, tmp_path):
    for number in range(6):
        draw(tmp_path / "source" / "north" / "images" / f"{number}.png")
        draw_mask(tmp_path / "source" / "north" / "masks" / f"{number}.png", value=1)
        pixels = np.array(Image.open(tmp_path / "source" / "north" / "masks" / f"{number}.png"))
        pixels[0] = 255
        Image.fromarray(pixels).save(tmp_path / "source" / "north" / "masks" / f"{number}.png")
    content, out = run("folders", "--labels", "1=disc,255=ignore")
    assert (content["labels"], content["ignore"]) == ({"1": "disc"}, 255)
    assert list_pixels(tmp_path / "data" / "north" / "masks")["0.png"] == {0, 1, 255}
    assert "what is labelled 'ignore' counts in no loss and no score" in out


def test_a_picture_and_its_mask_of_another_size(run, tmp_path):
    for number in range(6):
        draw(tmp_path / "source" / "north" / "images" / f"{number}.png", size=24)
        draw_mask(tmp_path / "source" / "north" / "masks" / f"{number}.png")
    error, _ = run("folders")
    assert "has 12 x 12 pixels, and its image 24 x 24; export it anew, or lay it on its image with --resample" in error
    run("folders", "--resample-masks")
    small = np.asarray(Image.open(tmp_path / "source" / "north" / "masks" / "0.png")) // 255
    written = np.asarray(Image.open(tmp_path / "data" / "north" / "masks" / "0.png"))
    assert np.array_equal(written, small.repeat(2, axis=0).repeat(2, axis=1))


def test_cases_without_a_mask_are_left_out_and_counted(run, tmp_path):
    for number in range(7):
        draw(tmp_path / "source" / "north" / "images" / f"{number}.png")
        if number != 3:
            draw_mask(tmp_path / "source" / "north" / "masks" / f"{number}.png")
    error, _ = run("folders")
    assert "has no masks for 3; add them, leave these cases out with --skip" in error
    content, out = run("folders", "--skip")
    assert len(content["training"]) + len(content["validation"]) + len(content["test"]) == 6
    assert "north: images that fit no pattern or have no mask are left out: 1, as images/3.png" in out


def test_boxes_are_no_masks(run, tmp_path):
    for number in range(3):
        draw(tmp_path / "source" / "north" / "images" / f"{number}.jpg")
    (tmp_path / "source" / "north" / "labels").mkdir()
    (tmp_path / "source" / "north" / "labels" / "1.txt").write_text("0 0.5 0.5 0.1 0.1")
    error, _ = run("folders")
    assert "site 'north' has labels/1.txt in place of a mask; boxes and points are none: draw masks, or" in error


def test_a_part_without_masks_is_left_out(run, tmp_path):
    for part in ("train", "test"):
        for number in range(6):
            draw(tmp_path / "source" / "north" / part / "images" / f"{number}.png")
    for number in range(6):
        draw_mask(tmp_path / "source" / "north" / "train" / "masks" / f"{number}.png")
    content, out = run("folders", "--skip")
    assert [len(content[part]) for part in ("training", "validation", "test")] == [4, 1, 1]
    assert "left out: 6, as test/images/0.png" in out


def test_a_volume_of_time_points_is_refused(run, tmp_path):
    import nibabel

    folder = tmp_path / "source" / "north"
    for kind, shape in (("images", (6, 6, 4, 5)), ("masks", (6, 6, 4))):
        (folder / kind).mkdir(parents=True)
        for name in ("a.nii.gz", "b.nii.gz"):
            nibabel.save(nibabel.Nifti1Image(np.zeros(shape, np.uint8), np.eye(4)), folder / kind / name)
    error, _ = run("folders")
    assert "a.nii.gz holds 5 time points or contrasts; save one of them, or each contrast as a file" in error


def test_several_parts_of_one_name_and_an_exams_parts_are_refused(run, tmp_path):
    for part in ("train", "Training"):
        draw(tmp_path / "source" / part / "a" / "1.png")
    error, _ = run("table")
    assert "source has two folders of one part among Training, train; join them" in error
    error, _ = run("dicom", "--image-pattern", "CT/*")
    assert "has two folders of one part" in error


def test_exams_in_parts_are_no_hospitals(run, tmp_path):
    for part in ("train", "test"):
        draw(tmp_path / "source" / part / "a" / "1.png")
    error, _ = run("dicom", "--image-pattern", "CT/*")
    assert "source holds test, train, which look like the parts of one hospital's data; put them into" in error
