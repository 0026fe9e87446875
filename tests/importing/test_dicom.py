import json
import re
from dataclasses import replace

import numpy as np
import pydicom
import pytest
from pydicom.uid import generate_uid

from silofl.base.errors import ConfigError, DataError
from silofl.reading.images import read_image
from silofl_hospital.importing.dicom import find_exams
from silofl_hospital.importing.importers import ImportOptions, import_layout
from tests.conftest import group, records_of

from .exams import write_exam, write_report, write_segmentation, write_series

PORTAL, MASKS = "CT/*portal*", "{case}/mask.nii.gz"


@pytest.fixture
def source(tmp_path):
    """Two sites with three patients each, of whom the first has two exams; the volumes by site and exam."""
    for site in ("north", "south"):
        for number in range(4):
            write_exam(tmp_path / "source" / site / f"exam{number}", f"{site}-{max(number - 1, 0)}", number)
    return tmp_path / "source"


@pytest.fixture
def run(source, tmp_path):
    """Import and return the summary and north's dataset.json."""

    def go(image_pattern=PORTAL, mask_pattern=MASKS, **options):
        settings = ImportOptions(image_pattern=image_pattern, mask_pattern=mask_pattern, **options)
        summary = import_layout("dicom", source, tmp_path / "target", settings)
        return summary, json.loads((tmp_path / "target" / "north" / "dataset.json").read_text())

    return go


def test_a_pattern_takes_its_series_of_each_exam_and_the_patient_is_the_patient_id(run, tmp_path):
    summary, content = run(labels=("organ",))
    records = records_of(content)
    assert {case: record["patient"] for case, record in records.items()} == {
        f"exam{number}": f"north-{max(number - 1, 0)}" for number in range(4)
    }
    # 3 patients: round(3 * 0.2) = 1 for the test
    assert summary.patients == {"north": 3, "south": 3} and len({r["patient"] for r in content["test"]}) == 1
    image = read_image(tmp_path / "target" / "north" / records["exam3"]["image"])
    assert image.spatial_shape == (16, 12, 4)
    mask = read_image(tmp_path / "target" / "north" / records["exam3"]["label"]).array
    # The box is 200 brighter than what lies about it, of a deviation of 5.
    np.testing.assert_array_equal(mask > 0, image.array > 140)


def test_what_is_left_over_is_counted_by_kind(run, source):
    (source / "north" / "notes.txt").write_text("x")
    (source / "north" / "DICOMDIR").write_bytes(bytes(128) + b"DICM")
    summary, _ = run()
    (note,) = [note for note in summary.notes if note.startswith("north: left over")]
    assert note == (
        "north: left over of 16 series: 4 localizers, 4 of SR without an image, 4 that no pattern names, CT/Bone (4); "
        "and 2 other files"
    )


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        (None, "image-pattern must name .*as MODALITY/DESCRIPTION.*: CT/Abdomen portal"),
        ("MR/*", r"site 'north' must have a series as MR/\*; it has CT/Abdomen portal, CT/Bone"),
        # A mask by its path cannot serve two series.
        ("CT/*", r"exam0 of site 'north' must have one series as CT/\*, not 2"),
        ("all=CT/*,bone=CT/bone", r"exam0 of site 'north' must have one series as CT/\*, not 2: Abdomen portal"),
    ],
)
def test_a_pattern_that_names_no_series_or_several_is_refused_with_those_that_are_there(run, pattern, sentence):
    with pytest.raises((ConfigError, DataError), match=sentence):
        run(image_pattern=pattern)


def test_an_exam_without_a_mask_is_counted_and_left_out(run, source):
    (source / "north" / "exam3" / "mask.nii.gz").unlink()
    # Without a modality the description alone counts.
    summary, content = run("*PORTAL*")
    assert sorted(records_of(content)) == ["exam0", "exam1", "exam2"]
    assert any("1 without a mask" in note for note in summary.notes if note.startswith("north: left over"))


def test_contrasts_are_the_series_of_one_exam(run):
    _, content = run("venous=CT/*portal*,bone=CT/bone", MASKS)
    record = records_of(content)["exam0"]
    assert content["channel_names"] == ["venous", "bone"]
    assert record["image"] == ["images/exam0/venous", "images/exam0/bone"]


def test_a_segmentation_goes_to_the_series_that_it_names(tmp_path):
    folder, study, volume = tmp_path / "north", generate_uid(), np.zeros((12, 16, 3), np.int16)
    wanted = write_series(folder / "a", volume, "p0", "Portal", study, number=1)
    write_series(folder / "a", volume, "p0", "Portal", study, number=2)
    write_segmentation(folder / "b" / "SEG", "p0", study, wanted)
    write_segmentation(folder / "b" / "SEG2", "p0", study, generate_uid())
    options = ImportOptions(image_pattern="CT/*", scratch=tmp_path / "scratch")
    found, notes = find_exams(folder, options)
    assert list(found.images) == ["a-1"]
    assert found.masks["a-1"].resolve() == folder / "b" / "SEG" and found.masks["a-1"].suffix == ".dcm"
    assert len([*found.images["a-1"][0].iterdir()]) == 3
    assert notes == (
        "north: left over of 4 series: 1 without a mask, 1 segmentation of a series that is not there or not taken",
    )


@pytest.mark.parametrize("names", [("first reader", "second reader"), ("", "")])
def test_two_segmentations_of_one_series_are_refused_until_a_pattern_names_one_or_one_is_moved_away(tmp_path, names):
    folder, study = tmp_path / "north", generate_uid()
    series = write_series(folder / "a", np.zeros((12, 16, 3), np.int16), "p0", "Portal", study)
    for number, name in enumerate(names):
        write_segmentation(folder / "a" / f"SEG{number}", "p0", study, series, name)
    options = ImportOptions(image_pattern="CT/*", scratch=tmp_path / "scratch")
    shown = ", ".join(rf"{name or 'without a description'} \(a/SEG{number}\)" for number, name in enumerate(names))
    said = rf"a of site 'north' must have one mask as SEG/\*, not 2: {shown}; .* move the others out of"
    with pytest.raises(DataError, match=said):
        find_exams(folder, options)
    chosen = replace(options, mask_pattern="SEG/second*")
    if not all(names):
        chosen = options
        (folder / "a" / "SEG0").rename(tmp_path / "SEG0")
    assert find_exams(folder, chosen)[0].masks["a"].resolve().name == "SEG1"


def test_a_copy_of_a_file_is_no_slice(run, source, tmp_path):
    (source / "north" / "exam2" / "copy").write_bytes((source / "north" / "exam2" / "IM02001").read_bytes())
    summary, _ = run()
    assert read_image(tmp_path / "target" / "north" / "images" / "exam2").spatial_shape == (16, 12, 4)
    assert any(note.endswith("and 1 copy") for note in summary.notes)


def test_a_file_whose_header_is_cut_stays_with_its_exam_which_then_cannot_be_read(run, source, tmp_path):
    last = source / "north" / "exam2" / "IM02003"
    last.write_bytes(last.read_bytes()[:300])
    summary, _ = run()
    assert "north: no series can be read that has a damaged file in its folder: 1 files" in summary.notes
    with pytest.raises(DataError, match="must hold whole DICOM files"):
        read_image(tmp_path / "target" / "north" / "images" / "exam2")


def test_without_a_target_the_series_are_listed_with_patients_hashed(silofl, source):
    write_report(source / "north" / "exam0", "secret-name", generate_uid())
    write_exam(source / "north" / "exam4", "north-3", 4)
    code, out, error = silofl("import", "dicom", source)
    assert (code, error) == (0, "")
    rows = [re.split(" {2,}", line) for line in out.splitlines()]
    # 5 exams of 4 patients; one patient has one hash in all rows.
    portal, bone = ([row for row in rows if row[:3] == ["north", "CT", name]] for name in ("Abdomen portal", "Bone"))
    assert portal[0][3:5] == ["16 x 12 x 4", "5"]
    assert re.fullmatch("4: ([0-9a-f]{6} ){3}and 1 more", portal[0][5]) and bone[0][5] == portal[0][5]
    assert "north-" not in out and "secret" not in out


def edit_all(folder, edit=lambda data: None, **elements):
    for path in sorted(folder.iterdir()):
        data = pydicom.dcmread(path)
        data.update(elements)
        edit(data)
        data.save_as(path)


def tile(*creators):
    """Return what adds a maker's count of slices, in the block behind those of other creators."""

    def edit(data):
        for creator in (*creators, "Image Private Header"):
            block = data.private_block(0x0065, creator, create=True)
        block.add_new(0x50, "DS", "20")

    return edit


def save_frames(folder, *places, **elements):
    """Write a file of three frames with a group each: its place, None where it has none."""
    write_series(folder, np.zeros((12, 16, 1), np.int16), "p0", folder.name, generate_uid(), "MR")
    shared = group("PixelMeasuresSequence", PixelSpacing=[0.5, 0.75], **elements)
    frames = [group("FrameContentSequence", FrameAcquisitionNumber=number) for number in range(3)]
    for frame, place in zip(frames, places, strict=False):
        frame.update(group("PlanePositionSequence", ImagePositionPatient=[0, 0, place]))
    pixels = {"NumberOfFrames": 3, "PixelData": bytes(12 * 16 * 2 * 3), "ImagePositionPatient": None}
    groups = {"SharedFunctionalGroupsSequence": [shared], "PerFrameFunctionalGroupsSequence": frames}
    edit_all(folder, **pixels, **groups)


def list_refused(silofl, source):
    """Return what the list says of each series by its description."""
    code, out, error = silofl("import", "dicom", source)
    assert (code, error) == (0, "")
    rows = [re.split(" {2,}", line) for line in out.splitlines() if line.startswith("north")]
    return {row[2]: "".join(row[6:]) for row in rows}


def test_series_that_the_reader_refuses_are_listed_with_why(silofl, tmp_path):
    site, study, volume = tmp_path / "source" / "north", generate_uid(), np.zeros((12, 16, 3), np.int16)
    for number, name in enumerate(("film", "named", "pictures", "slices", "tiles", "behind"), start=1):
        write_series(site / name, volume[..., : 1 if name == "film" else 3], "p0", name, study, "MR", number=number)
    edit_all(site / "named", ImageType=["ORIGINAL", "PRIMARY", "M", "VFRAME"])
    edit_all(site / "pictures", ImagePositionPatient=None)
    edit_all(site / "film", NumberOfFrames=3, PixelData=bytes(12 * 16 * 2 * 3), ImagePositionPatient=None)
    edit_all(site / "tiles", tile())
    edit_all(site / "behind", tile("Another maker"))
    refused = list_refused(silofl, tmp_path / "source")
    side_by_side = "must hold a slice, not many slices side by side in one picture "
    assert refused["slices"] == ""
    assert refused["named"].startswith(f"{side_by_side}(ImageType VFRAME of United Imaging); convert its series")
    assert refused["tiles"].startswith(f"{side_by_side}(mosaic of United Imaging); convert its series")
    assert refused["behind"] == refused["tiles"]
    assert "not 3 pictures without a place; name each file" in refused["pictures"]
    assert "not 3 pictures without a place, as of a film; save each frame" in refused["film"]
    # As the reader says later.
    for name in refused.keys() - {"slices"}:
        with pytest.raises(DataError, match=re.escape(refused[name].partition(" (")[0])):
            read_image(site / name)


def test_frames_are_listed_as_their_reader_judges_them(silofl, tmp_path):
    site = tmp_path / "source" / "north"
    save_frames(site / "nowhere")
    save_frames(site / "apart", SpacingBetweenSlices=2)
    save_frames(site / "placed", 4, 0, 2)
    save_frames(site / "partly", 0, 2)
    save_frames(site / "twice", 0, 2, 2)
    save_frames(site / "uneven", 0, 2, 9)
    for part in ("one", "two"):
        save_frames(site / "several" / part, 0, 2, 4)
    edit_all(site / "several" / "one", SeriesInstanceUID="1.2.3")
    edit_all(site / "several" / "two", SeriesInstanceUID="1.2.3")
    for part in ("one", "two"):
        (site / "several" / part / "IM01000").rename(site / "several" / f"{part}.dcm")
        (site / "several" / part).rmdir()
    edit_all(site / "several", SeriesDescription="several")
    refused = list_refused(silofl, tmp_path / "source")
    assert refused["apart"] == refused["placed"] == ""
    assert "not 3 pictures without a place, as of a film" in refused["nowhere"]
    assert "must have the place of every slice (ImagePositionPatient)" in refused["partly"]
    assert "must hold one image at each place, not two" in refused["twice"]
    assert "must have slices at even distances on one line" in refused["uneven"]
    assert "must hold one file with many frames, or a file for each slice, not 2 files" in refused["several"]
    for name, said in refused.items():
        if said:
            with pytest.raises(DataError, match=re.escape(said)):
                read_image(site / name)
        else:
            assert read_image(site / name).spatial_shape == (12, 16, 3)


def test_a_layout_that_lists_nothing_needs_a_target(refused, source):
    assert "TARGET must be given with layout 'folders', which lists nothing" in refused("import", "folders", source)
