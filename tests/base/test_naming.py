"""Names are text in every table, page, picture, command and bundle, whoever brings them."""

import json
import re
import unicodedata

import pytest
import yaml

from silofl.base.errors import ConfigError, DataError
from silofl.base.naming import check_name
from silofl.base.settings import dump_yaml, parse
from silofl.data.manifest import read_manifest
from silofl.study import STORED, Study
from silofl_desk.studies.plans.data_survey import survey_sites
from silofl_hospital.importing.importers import ImportOptions, import_layout

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
def test_a_name_of_real_data_is_kept_as_it_is(name):
    assert check_name(f" {name} ", "a label", DataError) == name
    values = SEGMENTATION | {"labels": {1: name, 2: "other"}}
    assert parse(Study, values, "study.yaml").labels[1] == name
    written = {"labels": {1: name}, "training": {"class_weights": {name: 2.0}}}
    assert yaml.safe_load(dump_yaml(written)) == written


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_programs_take_for_a_command_is_refused(name):
    for labels, regions in (({1: name}, None), ({1: "a"}, {name: [1]})):
        values = SEGMENTATION | {"labels": labels} | ({"regions": regions} if regions else {})
        with pytest.raises(ConfigError, match="name (of )?a (label|region).*; rename it"):
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


def write_classes(source, name):
    test_table.write_site(source / "north", [f"{n}.png;{(name, 'other')[n % 2]};p{n}" for n in range(8)], COLUMNS)
    return "table", {}


@pytest.mark.parametrize("write", [write_nnunet, write_classes])
@pytest.mark.parametrize("name", HOSTILE)
def test_an_import_refuses_such_a_name_and_writes_nothing(tmp_path, write, name):
    if write is write_classes and (BREAKS.search(name) or name == "+1"):
        pytest.skip("no cell of the table can hold it, or it is a number")
    layout, options = write(tmp_path / "source", name)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataError, match="rename it|name all labels with|a finding without"):
        import_layout(layout, tmp_path / "source", tmp_path / "target", ImportOptions(**options))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("patient", ["-12", "+3", "=1+1", "@home", "$x", "1e3", "yes", "Ödem"])
def test_patients_and_cases_may_begin_with_any_sign(tmp_path, patient):
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
def test_a_new_study_refuses_such_a_name(tmp_path, name, key):
    content = {"task": "segmentation", "labels": {"1": "a"}, "training": [{"image": "a.png", "label": "b.png"}]}
    content |= {"labels": {"labels": {"1": name}}, "regions": {"regions": {name: [1]}}}.get(key, {key: [name]})
    (tmp_path / "dataset.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match="(rename it|channel_names) in"):
        survey_sites(tmp_path)
