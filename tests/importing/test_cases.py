import pytest

from silofl.base.errors import ConfigError, DataError
from silofl_hospital.importing.cases import Patterns, find_cases, parse_patterns


@pytest.fixture
def find(tmp_path):
    """Find the cases of a site with such files, which are empty."""

    def run(files, images, mask):
        for name in files:
            (tmp_path / "north" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "north" / name).touch()
        return find_cases("north", tmp_path / "north", parse_patterns(images, mask))

    return run


def names_of(found):
    return {case.name: found.image_names(case) for case in found.cases}


# --- patterns


def test_one_pattern_has_no_name_and_several_have_one_each():
    assert parse_patterns("a/{case}.png", "b/{case}.png") == Patterns(("a/{case}.png",), "b/{case}.png")
    found = parse_patterns("T1=./{case}/t1.nii.gz, T2 = {case}/t2.nii.gz", "{case}/seg.nii.gz")
    assert (found.images, found.channel_names) == (("{case}/t1.nii.gz", "{case}/t2.nii.gz"), ("T1", "T2"))
    assert parse_patterns("T1={case}.nii", "{case}_seg.nii").channel_names == ("T1",)


@pytest.mark.parametrize(
    ("images", "mask", "sentence"),
    [
        ("a.png", "{case}.png", "image-pattern must hold {case} and no other braces, as {case}/t1.nii.gz, not 'a.png'"),
        ("{case}.png", "{Case}.png", "mask-pattern must hold {case} and no other braces, .* not '{Case}.png'"),
        ("{site}/{case}.png", "{case}.png", "image-pattern must hold {case} and no other braces"),
        ("T1=,T2={case}.png", "{case}.png", "image-pattern must hold {case} and no other braces, .* not ''"),
        ("/data/{case}.png", "{case}.png", "image-pattern must be a path within the folder of a site, not '/data/"),
        ("{case}.png", "../{case}.png", "mask-pattern must be a path within the folder of a site, not '../"),
        ("{case}.png,{case}_2.png", "{case}_seg.png", "image-pattern must be one pattern, or NAME="),
        ("T1={case}.png,{case}_2.png", "{case}_seg.png", "image-pattern must be one pattern, or NAME=PATTERN"),
        ("T1={case}.png,T1={case}_2.png", "{case}_seg.png", "two contrasts the name 'T1'"),
        ("={case}.png", "{case}_seg.png", "image-pattern has the contrast ''"),
    ],
)
def test_what_is_no_pattern_is_refused(images, mask, sentence):
    with pytest.raises(ConfigError, match=sentence):
        parse_patterns(images, mask)


# --- files


def test_a_pattern_that_ends_with_the_case_takes_any_ending(find):
    files = ["images/a.1_0000.nii.gz", "images/a.1_0001.nii.gz", "masks/a.1.nii.gz", "images/b_0000.mha", "masks/b.nii"]
    found = find(files, "T1=images/{case}_0000,T2=images/{case}_0001", "masks/{case}")
    assert names_of(found) == {"a.1": files[:2], "b": ["images/b_0000.mha", None]}


def test_a_case_may_be_part_of_a_name(find):
    files = ["scans/a-1_t1.nii", "scans/b_t1.nii", "labels/a-1/a-1_seg.nii", "labels/b/b_seg.nii", "labels/b/c_seg.nii"]
    found = find(files, "scans/{case}_t1.nii", "labels/{case}/{case}_seg.nii")
    assert names_of(found) == {"a-1": ["scans/a-1_t1.nii"], "b": ["scans/b_t1.nii"]}
    assert found.channel_names == () and found.count_missing() == {}


def test_a_contrast_that_a_case_lacks_is_none_and_counted(find):
    files = [f"{case}/{name}.nii" for case in "abc" for name in ("t1", "t2", "seg")]
    files.remove("b/t1.nii")
    files.remove("b/t2.nii")
    found = find([*files, "b/flair.nii"], "T1={case}/t1.nii,T2={case}/t2.nii,F={case}/flair.nii", "{case}/seg.nii")
    assert names_of(found)["b"] == [None, None, "b/flair.nii"]
    assert names_of(found)["a"] == ["a/t1.nii", "a/t2.nii", None]
    assert found.count_missing() == {"T1": 1, "T2": 1, "F": 2}


def test_a_file_belongs_to_the_longer_pattern(find):
    files = ["a.nii", "a_t2.nii", "a_seg.nii", "b.nii", "b_t2.nii", "b_seg.nii"]
    found = find(files, "T1={case}.nii,T2={case}_t2.nii", "{case}_seg.nii")
    assert names_of(found) == {case: [f"{case}.nii", f"{case}_t2.nii"] for case in "ab"}
    assert [case.masks[0].name for case in found.cases] == ["a_seg.nii", "b_seg.nii"]


def test_a_pattern_without_an_ending_takes_files_of_all_endings(find):
    files = ["a/t1.nii", "a/seg.NII.GZ", "a/t1.json", "b/t1.nii.gz", "b/seg.seg.nrrd", "b/t1.nii.gz.old"]
    found = find(files, "{case}/t1", "{case}/seg")
    assert names_of(found) == {"a": ["a/t1.nii"], "b": ["b/t1.nii.gz"]}
    assert [case.masks[0].name for case in found.cases] == ["seg.NII.GZ", "seg.seg.nrrd"]
    with pytest.raises(DataError, match="has two files for a as {case}/t1, a/t1.nii and a/t1.nii.gz; remove"):
        find([*files, "a/t1.nii.gz"], "{case}/t1", "{case}/seg")


def test_signs_that_other_patterns_use_mean_themselves(find):
    found = find(["[1]/a+.nii", "1/a+.nii", "[1]/aa.nii", "m1.nii"], "[{case}]/a+.nii", "m{case}.nii")
    assert names_of(found) == {"1": ["[1]/a+.nii"]}


def test_hidden_and_deeper_files_are_left_out(find):
    files = ["a.nii", "a_seg.nii", "._a.nii", "._a_seg.nii", "x/b.nii", "x/b_seg.nii"]
    assert names_of(find(files, "{case}.nii", "{case}_seg.nii")) == {"a": ["a.nii"]}
    found = find(["a/t1/1.dcm", "a/t1/2.dcm", "a/seg.nii"], "{case}/t1", "{case}/seg.nii")
    assert names_of(found) == {"a": ["a/t1"]}


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        (["a.nii"], "site 'north' has no file as {case}/t1.nii, {case}/t2.nii, {case}/seg.nii; correct"),
        (
            ["a/t1.nii", "b/t2.nii", "b/seg.nii"],
            "site 'north' has no masks for a; add them, leave these cases out with --skip",
        ),
        (
            ["a/t1.nii", "a/seg.nii", "b/seg.nii"],
            "site 'north' has no images for b; add them, leave these cases out",
        ),
        ([f"{case}/t1.nii" for case in "edcba"], "site 'north' has no masks for a, b, c and 2 more"),
        (["a\udce4/t1.nii"], r"site 'north' has a file whose name is outside UTF-8, .* 'a\\udce4/t1.nii'"),
        (["a/t2.webp", "a/seg.nii"], r"site 'north': a/t2.webp must end in one of .png"),
    ],
)
def test_a_site_without_whole_cases_is_refused(find, files, sentence):
    second = "{case}/t2.webp" if "a/t2.webp" in files else "{case}/t2.nii"
    with pytest.raises(DataError, match=sentence):
        find(files, f"T1={{case}}/t1.nii,T2={second}", "{case}/seg.nii")
