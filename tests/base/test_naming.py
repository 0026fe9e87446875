"""Names are text in every table, page, picture, command and bundle, whoever brings them."""

import json
import re
import shutil
import unicodedata

import numpy as np
import pytest
import yaml
from PIL import Image

from silofl.base.errors import ConfigError, DataError, ExitCode
from silofl.base.naming import check_name
from silofl.base.settings import dump_yaml, parse
from silofl.cli import main
from silofl.data.manifest import read_manifest
from silofl.study import STORED, Study
from silofl_desk.studies.data_survey import survey_sites
from silofl_hospital.importing.importers import ImportOptions, import_layout

from ..conftest import SMALL_UNET
from ..importing import test_arrangements, test_table

CODE = "$__import__('os').system('touch ran')"
HOSTILE = (
    *(CODE, "@bundle_root", "%configs/study.yaml", "% fat", "=1+1", "=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)"),
    *("_target_", "＝1+1", "＠home", "10 %# fat", "a\nb", "a\tb", "\r=1", "a\x1b[8m", "left\u202ethgir", "x" * 101),
)
REAL = (
    *("non-enhancing tumour core", "Ödem (T2)", "fat %", "HER2+", "T1w/T2w", "C&D", "<5 mm", "(other)", "HbA1c > 7 %"),
    *("腫瘍", "опухоль", "yes", "null", "1e3", "#x", "a: b", "a # b", "'q' \"r\"", "[bold]", "[/]", "x $y^2$", "s%s"),
    *("a|b", "`b`", "<b>", "{site}", r"\frac", "a;b", "a,b"),
)
SEGMENTATION = {"name": "x", "task": "segmentation", "rounds": 1, "algorithm": {"name": "fedavg"}}
COLUMNS = "file;label;patient"
# A file's rows cannot hold them.
BREAKS = re.compile("[\n\r\t;]")


@pytest.mark.parametrize("name", REAL)
def test_a_name_of_real_data_is_kept_as_it_is_in_a_study_and_in_its_file(name):
    assert check_name(f" {name} ", "a label", DataError) == name
    values = SEGMENTATION | {"labels": {1: name, 2: "other"}}
    assert parse(Study, values, "study.yaml").labels[1] == name
    written = {"labels": {1: name}, "training": {"class_weights": {name: 2.0}}}
    assert yaml.safe_load(dump_yaml(written)) == written


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_programs_take_for_a_command_is_in_no_study(name):
    for labels, regions in (({1: name}, None), ({1: "a"}, {name: [1]})):
        values = SEGMENTATION | {"labels": labels} | ({"regions": regions} if regions else {})
        with pytest.raises(ConfigError, match="the name of a (label|region) must .*; rename it"):
            parse(Study, values, "study.yaml")


def test_a_study_that_has_begun_keeps_its_names():
    values = SEGMENTATION | {"labels": {1: "% fat"}}
    assert parse(Study, values, "study.yaml", STORED).labels == {1: "% fat"}


def test_two_forms_of_an_accent_are_one_name(tmp_path):
    name = unicodedata.normalize("NFD", "Ödem")
    weights = {"training": {"loss": "cross_entropy", "class_weights": {name: 2.0, "none": 1.0}}}
    values = SEGMENTATION | {"task": "classification", "metric": "accuracy", "model": {"name": "lenet5"}} | weights
    study = parse(Study, values | {"labels": {0: "none", 1: name}}, "study.yaml")
    assert study.labels[1] == "Ödem" and study.training.class_weights == {"Ödem": 2.0, "none": 1.0}
    (tmp_path / "a.png").touch()
    content = {
        "task": "classification",
        "labels": {"0": "none", "1": name},
        "test": [{"image": "a.png", "label": 1, "patient": "p"}],
    }
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    assert read_manifest(tmp_path, study, ()).labels == study.labels
    with pytest.raises(ConfigError, match="labels must have a name of its own each"):
        parse(Study, SEGMENTATION | {"labels": {1: "Ödem", 2: name}}, "study.yaml")


def write_nnunet(source, name):
    test_arrangements.write_set(
        source / "north", test_arrangements.SECOND | {"labels": {"background": 0, name: 1, "TZ": 2}}
    )
    return "folders", test_arrangements.NNUNET


def write_nnunet_regions(source, name):
    labels = {"background": 0, name: [1, 2], "TZ": 2}
    test_arrangements.write_set(source / "north", test_arrangements.SECOND | {"labels": labels})
    return "folders", test_arrangements.NNUNET


def write_classes(source, name):
    test_table.write_site(source / "north", [f"{n}.png;{(name, 'other')[n % 2]};p{n}" for n in range(8)], COLUMNS)
    return "table", {}


def write_findings(source, name):
    rows = [f"{n}.png;{n % 2};{1 - n % 2};p{n}" for n in range(8)]
    test_table.write_site(source / "north", rows, f"file;{name};other;patient")
    return "table", {}


def write_site_column(source, name):
    rows = [f"{n}.png;{('a', 'b')[n % 2]};p{n};{name}" for n in range(8)]
    test_table.write_site(source, rows, "file;label;patient;site")
    return "table", {}


def write_masks(source, name):
    test_arrangements.write_set(source / "set")
    for kind, new in (("imagesTr", "images"), ("labelsTr", "masks")):
        (source / "north").mkdir(exist_ok=True)
        (source / "set" / kind).rename(source / "north" / new)
    (source / "set" / "dataset.json").unlink()
    (source / "set").rmdir()
    for path in (source / "north" / "images").glob("*_0001*"):
        path.unlink()
    for path in (source / "north" / "images").glob("*_0000*"):
        path.rename(path.with_name(path.name.replace("_0000", "")))
    return "folders", {"labels": (name, "TZ")}


def write_bids(source, name):
    test_arrangements.write_tree(source / "north")
    return "folders", test_arrangements.KINDS | {"labels": (name,)}


WRITERS = (write_nnunet, write_nnunet_regions, write_classes, write_findings, write_masks, write_bids)


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_an_import_refuses_such_a_name_in_one_sentence_and_writes_nothing(tmp_path, write, name):
    if write in (write_classes, write_findings) and (BREAKS.search(name) or name == "+1"):
        pytest.skip("no cell of the table can hold it, or it is a number")
    layout, options = write(tmp_path / "source", name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(
        DataError,
        match="the name of a (label|region) must .*; (rename it|name all labels with)|must name a finding without",
    ):
        import_layout(layout, tmp_path / "source", tmp_path / "target", ImportOptions(**options))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("write", [write_nnunet, write_classes, write_findings, write_masks, write_bids])
@pytest.mark.parametrize("name", [name for name in REAL if not BREAKS.search(name) and "|" not in name])
def test_an_import_takes_names_of_real_data(tmp_path, write, name):
    layout, options = write(tmp_path / "source", name)
    # A class that is called as programs call nothing must be named.
    options = options | ({"labels": (name, "other")} if write is write_classes else {})
    import_layout(layout, tmp_path / "source", tmp_path / "target", ImportOptions(**options))
    assert name in json.loads((tmp_path / "target/north/dataset.json").read_text())["labels"].values()


@pytest.mark.parametrize("name", ["=1+1", "@x", "-1", CODE, "a\x1b[8m"])
def test_an_import_refuses_such_a_site(tmp_path, name):
    layout, _ = write_site_column(tmp_path / "source", name)
    with pytest.raises(DataError, match="a site's name must be letters, digits"):
        import_layout(layout, tmp_path / "source" / "labels.csv", tmp_path / "target")


@pytest.mark.parametrize("patient", ["-12", "+3", "=1+1", "@home", "$x", "1e3", "yes", "Ödem"])
def test_patients_and_cases_stay_at_home_and_may_begin_with_any_sign(tmp_path, patient):
    rows = [f"{n}.png;{('a', 'b')[n % 2]};{patient if n < 2 else n}" for n in range(8)]
    test_table.write_site(tmp_path / "source" / "north", rows, COLUMNS)
    import_layout("table", tmp_path / "source", tmp_path / "target")
    assert json.dumps(patient, ensure_ascii=False) in (tmp_path / "target/north/dataset.json").read_text()


@pytest.mark.parametrize("patient", ["a\x1b[8m", "a\x7f"])
def test_an_import_refuses_a_patient_whose_name_commands_a_terminal(tmp_path, patient):
    rows = [f"{n}.png;{('a', 'b')[n % 2]};{patient if n < 2 else n}" for n in range(8)]
    test_table.write_site(tmp_path / "source" / "north", rows, COLUMNS)
    with pytest.raises(DataError, match="the patient of site 'north' must be a text on one line.*; rename it"):
        import_layout("table", tmp_path / "source", tmp_path / "target")


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("key", ["labels", "regions", "channel_names"])
def test_a_new_study_refuses_such_a_name_of_a_dataset_json(tmp_path, name, key):
    content = {"task": "segmentation", "labels": {"1": "a"}, "training": [{"image": "a.png", "label": "b.png"}]}
    content |= {"labels": {"labels": {"1": name}}, "regions": {"regions": {name: [1]}}}.get(key, {key: [name]})
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="(the name of a (label|region) must .*; rename it in|channel_names in)"):
        survey_sites(tmp_path)


@pytest.mark.long
def test_names_of_real_data_go_from_the_import_to_the_bundle_as_they_are(tmp_path):
    from monai.bundle import ConfigParser

    labels, site = ("non-enhancing tumour core", r"Ödem (T2): [/] $\frac$ |x| <b> 'q'"), tmp_path / "source" / "north"
    rng = np.random.default_rng(0)
    for number, case in enumerate(("=1+1", "-12", "@x", "p [bold]", "$x$", "e f")):
        mask = np.zeros((32, 32), np.uint8)
        mask[4:12, 4:12], mask[16:24, 8 + number : 20] = 1, 2
        for kind, pixels in (("images", rng.integers(0, 90, (32, 32)) + 60 * mask), ("masks", mask)):
            (site / kind).mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(site / kind / f"{case}.png")
    shutil.copytree(site, site.with_name("south"))

    def give(*words):
        assert main([str(word) for word in words]) == ExitCode.COMPLETE, words

    data, job, run, bundle = (tmp_path / name for name in ("data", "job", "run $(id)", "bundle"))
    give("import", "folders", site.parent, data, "--labels", ",".join(labels))
    give("new-study", data, job, "--from", "fedavg_phantoms")
    small = ("--rounds", "1", "--set", f"model={json.dumps(SMALL_UNET)}", "--set", "guard=false")
    give("simulate", job, "--data", data, "--out", run, "--alone", *small, "--set", "data.split_unit=unknown")
    give("report", run)
    assert "$\\frac$ |x| &lt;b&gt; " in (run / "report.html").read_text()
    tables = [path.read_text() for path in run.rglob("*.csv")]
    # North tests on this case.
    assert "\n'@x," in "".join(tables) and not any(re.search(r"(^|,)[=@]", text, re.MULTILINE) for text in tables)
    give("export", next(run.glob("sites/north/*/supermodel")), "-o", bundle)
    parser = ConfigParser()
    parser.read_meta(bundle / "configs" / "metadata.json")
    channels = parser.get_parsed_content("_meta_::network_data_format::outputs::pred::channel_def")
    assert channels == {"0": "background", "1": labels[0], "2": labels[1]}
