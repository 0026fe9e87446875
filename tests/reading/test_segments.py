import numpy as np
import pytest
import SimpleITK

from silofl.base.errors import DataError
from silofl.reading.images import read_label
from silofl.reading.segments import UNNAMED_LABEL, Segment, read_segments

LABELS = {1: "liver", 2: "tumor"}
# (X, Y, Z) of 2 x 2 x 1: background, 1, 2, 2.
STORED = np.array([[[0], [1]], [[2], [2]]], np.uint8)
TURNED = [[[0], [2]], [[1], [1]]]


@pytest.fixture
def save(tmp_path):
    """Write a label map as 3D Slicer does, with its segments as (name, number) and further keys."""

    def write(*segments, array=STORED, ending=".nrrd", layers=(), **keys):
        image = SimpleITK.GetImageFromArray(array.T)
        for place, (name, number) in enumerate(segments):
            image.SetMetaData(f"Segment{place}_ID", f"Segment_{place + 1}")
            image.SetMetaData(f"Segment{place}_Name", name)
            image.SetMetaData(f"Segment{place}_LabelValue", str(number))
            image.SetMetaData(f"Segment{place}_Layer", str(layers[place]) if layers else "0")
        for key, value in keys.items():
            image.SetMetaData(key, value)
        path = tmp_path / f"seg{ending}"
        SimpleITK.WriteImage(image, path)
        return path

    return write


@pytest.mark.parametrize("ending", [".nrrd", ".mha"])
def test_labels_are_found_by_names_in_the_header(save, ending):
    path = save(("tumor", 1), ("liver", 2), ending=ending)
    assert read_segments(path, "seg") == (Segment("tumor", 1, 0), Segment("liver", 2, 0))
    np.testing.assert_array_equal(read_label(path, labels=LABELS).array[0], TURNED)
    np.testing.assert_array_equal(read_label(path).array[0], STORED)


@pytest.mark.parametrize(
    ("segments", "labels"),
    [
        ([("liver", 1), ("tumor", 2)], LABELS),
        # Nobody has named these.
        ([("Segment_1", 1), ("Segment_2", 2)], LABELS),
        ([("Tumor ", 2), ("LEFT__liver", 1)], {1: "left-liver", 2: "tumor"}),
        ([("Liver", 2), ("liver", 1)], {1: "liver", 2: "Liver"}),
        ([("L\u00e4sion", 2), ("liver", 1)], {1: "liver", 2: "L\u00e4sion"}),
        # What is nowhere drawn may have any name.
        ([("tumor", 2), ("liver", 1), ("skin", 3)], LABELS),
    ],
    ids=["in order", "unnamed", "capitals and signs", "the very name first", "accents", "not drawn"],
)
def test_a_segment_gets_its_labels_number(save, segments, labels):
    np.testing.assert_array_equal(read_label(save(*segments), labels=labels).array[0], STORED)
    turned = [(name, {1: 2, 2: 1}.get(number, number)) for name, number in segments]
    wanted = STORED if segments[0][0] == "Segment_1" else TURNED
    np.testing.assert_array_equal(read_label(save(*turned), labels=labels).array[0], wanted)


@pytest.mark.parametrize("number", [3, 200])
def test_an_unknown_number_gets_that_of_its_name(save, number):
    path = save(("tumor", 1), ("liver", number), array=np.where(STORED == 2, number, STORED).astype(np.uint8))
    np.testing.assert_array_equal(read_label(path, labels=LABELS).array[0], TURNED)


def test_names_cannot_disagree_with_the_label_that_nobody_has_named(save):
    path = save(("lesion", 1), array=np.minimum(STORED, 1))
    np.testing.assert_array_equal(read_label(path, labels={1: UNNAMED_LABEL}).array[0], np.minimum(STORED, 1))


@pytest.mark.parametrize(
    ("segments", "layers", "sentence"),
    [
        (
            [("liver", 1), ("spleen", 2)],
            (),
            "has the segment 'spleen', and the labels are liver, tumor; rename the segment, or add its name to --",
        ),
        ([("liver", 1)], (), "names no segment for its number 2"),
        ([("Segment_1", 2), ("tumor", 1)], (), "has the segments 'Segment_1' and 'tumor' for tumor"),
        ([("liver", 1), ("tumor", 1)], (), "gives the number 1 .LabelValue. to 'liver' and"),
        *(
            ([("liver", number)], (), f"gives segment 'liver' the LabelValue '{number}' and")
            for number in ("x", "0", "-1", "1.5")
        ),
        *(
            ([("liver", 1)], (layer,), f"gives segment 'liver' .* '1' and the Layer '{layer}'")
            for layer in ("x", "-1", "", "12345")
        ),
    ],
)
def test_segments_that_do_not_fit_are_refused(save, segments, layers, sentence):
    with pytest.raises(DataError, match=f"c0 {sentence}"):
        read_label(save(*segments, layers=layers), "c0", labels=LABELS)


@pytest.fixture
def save_layers(tmp_path):
    """Write layers (layers, X, Y, Z) as 3D Slicer does, with segments as (name, number, layer)."""

    def write(layers, *segments):
        sizes = " ".join(map(str, layers.shape))
        header = ["NRRD0004", "type: uint8", "dimension: 4", "space: left-posterior-superior", f"sizes: {sizes}"]
        header += ["space directions: none (1,0,0) (0,1,0) (0,0,1)", "kinds: list domain domain domain"]
        header += ["encoding: raw", "space origin: (0,0,0)"]
        for place, values in enumerate(segments):
            keys = zip(("Name", "LabelValue", "Layer"), values, strict=True)
            header += [f"Segment{place}_{key}:={value}" for key, value in keys if value is not None]
        path = tmp_path / "seg.seg.nrrd"
        path.write_bytes("\n".join([*header, "", ""]).encode() + layers.tobytes("F"))
        return path

    return write


# (layers, X, Y, Z): a tumor in the corner of a liver, both with 1 in a layer of their own.
LAYERS = np.array([[[[1], [1]], [[1], [0]]], [[[1], [0]], [[0], [0]]]], np.uint8)


def test_where_segments_overlap_the_later_label_covers_the_other(save_layers):
    label = read_label(save_layers(LAYERS, ("liver", 1, 0), ("tumor", 1, 1)), labels=LABELS)
    # The corner is liver and tumor.
    np.testing.assert_array_equal(label.array, [[[[2], [1]], [[1], [0]]]])


# Two cores that have all of the whole between them.
WHOLE = np.repeat(LAYERS[:1], 3, axis=0)
WHOLE[1, 0] = 0
WHOLE[2, 1] = 0
OVER = [("liver", 1, 0), ("tumor", 1, 1)]


@pytest.mark.parametrize(
    ("layers", "segments", "labels", "sentence"),
    [
        *(
            (LAYERS[0], OVER, labels, "holds 1 layers, and its segments lie in the Layers 0 to 1;")
            for labels in (LABELS, None)
        ),
        (
            LAYERS,
            OVER,
            {1: "tumor", 2: "liver"},
            "has no voxel left of 'tumor', covered by 'liver'; name it after",
        ),
        (
            WHOLE,
            [("whole", 1, 0), ("core", 1, 1), ("rim", 1, 2)],
            {1: "whole", 2: "core", 3: "rim"},
            "has no voxel left of 'whole', covered by 'core'",
        ),
        *(
            (LAYERS, OVER, labels, "has the segments 'liver' and 'tumor' for 1; name them with")
            for labels in (None, {1: UNNAMED_LABEL})
        ),
        (
            LAYERS,
            [("liver", 1, 0), ("tumor", 2, 1)],
            LABELS,
            "names no segment for its number 1",
        ),
    ],
)
def test_layers_of_which_a_segment_would_be_lost_are_refused(save_layers, layers, segments, labels, sentence):
    layers = layers if layers.ndim == 4 else layers[None]
    with pytest.raises(DataError, match=f"c0 {sentence}"):
        read_label(save_layers(layers, *segments), "c0", labels=labels)


def test_layers_without_named_labels_keep_the_numbers_of_their_segments(save_layers):
    path = save_layers(LAYERS * np.uint8([1, 2]).reshape(2, 1, 1, 1), ("liver", 1, 0), ("tumor", 2, 1))
    np.testing.assert_array_equal(read_label(path).array, [[[[2], [1]], [[1], [0]]]])


@pytest.mark.parametrize("second", ["lesion", "Lesion "])
def test_two_segments_of_one_name_are_one_label(save, save_layers, second):
    label = read_label(save(("lesion", 1), (second, 2)), labels={1: "lesion"})
    np.testing.assert_array_equal(label.array[0], STORED > 0)
    layers = save_layers(LAYERS, ("lesion", 1, 0), (second, 1, 1), ("liver", 2, 0))
    label = read_label(layers, labels={1: "lesion", 2: "liver"})
    np.testing.assert_array_equal(label.array[0], LAYERS[0])


def test_a_layer_may_hold_several_segments(save_layers):
    layers = np.concatenate([LAYERS[:1] * 2, LAYERS[1:]])
    layers[0, 1, 1] = 5
    path = save_layers(layers, ("tumor", 1, 1), ("liver", 2, 0), ("cyst", 5, 0))
    found = read_label(path, labels={**LABELS, 3: "cyst"}).array
    np.testing.assert_array_equal(found, [[[[2], [1]], [[1], [3]]]])


def test_segments_of_an_older_file_have_a_layer_each(save, save_layers):
    path = save_layers(LAYERS, ("liver", None, None), ("tumor", None, None))
    np.testing.assert_array_equal(read_label(path, labels=LABELS).array, [[[[2], [1]], [[1], [0]]]])
    path = save(array=np.minimum(STORED, 1), Segment0_Name="tumor")
    np.testing.assert_array_equal(read_label(path, labels=LABELS).array[0], 2 * np.minimum(STORED, 1))


@pytest.mark.parametrize("key", ["Segmentation_MasterRepresentation", "SegmentName"])
def test_other_keys_are_no_segments(save, key):
    path = save(**{key: "spleen"})
    assert read_segments(path, "seg") == ()
    np.testing.assert_array_equal(read_label(path, labels=LABELS).array[0], STORED)
