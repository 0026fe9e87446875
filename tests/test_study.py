import os
import time
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import Mock

import pytest

from silofl.base.errors import ConfigError, PinError
from silofl.base.files import read_json
from silofl.base.settings import dump_yaml, load_settings, parse, read_value
from silofl.inference.directory import plain_study
from silofl.setup.site import Server, Site
from silofl.study import Study, load_study

JOBS = sorted(path.parent for path in (Path(__file__).resolve().parents[1] / "jobs").glob("*/meta.json"))
MINIMAL = {"name": "x", "task": "segmentation", "labels": {1: "a"}, "rounds": 3, "algorithm": {"name": "fedavg"}}

CLASSES = {"task": "classification", "metric": "accuracy", "model": {"name": "lenet5"}, "labels": {0: "a", 1: "b"}}
CLASSES |= {"training": {"loss": "cross_entropy"}}
# What is said of a number that no machine could count to.
HUGE = "must be less than or equal to (10|4096)"


def study(**changes):
    return parse(Study, MINIMAL | changes, "study.yaml")


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_every_jobs_study_is_valid_and_allows_a_verdict(job):
    bundled = load_study(job / "app" / "config" / "study.yaml")
    assert bundled.name == job.name and not any("no verdict" in caution for caution in bundled.cautions)


@pytest.mark.parametrize(("labels", "channels"), [({1: "a"}, 1), ({1: "a", 2: "b"}, 3)])
def test_one_label_needs_one_output_and_more_need_background_too(labels, channels):
    assert study(labels=labels).out_channels == channels


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # unknown keys
        ({"round": 3}, r"round is not a known key \(did you mean 'rounds'\?\)"),
        ({"model": {"normalisation": "batch"}}, "model.normalisation is not .* 'model.normalization'"),
        ({"training": {"optimiser": "adam"}}, "did you mean 'training.optimizer'"),
        ({"learning_rate": 0.1}, "learning_rate is not a known key.*'training.learning_rate'"),
        ({"algorithm": {"name": "harmofl", "alpha": 1}}, "a key of algorithm must be one of .*perturbation"),
        # wrong types
        ({"rounds": "forty"}, "rounds must be a valid integer.*'forty'"),
        ({"rounds": True}, "rounds must be a number, not True"),
        ({"rounds": 2.5}, "rounds must be a valid integer"),
        ({"data": ["images"]}, "data must be keys and values"),
        ({"data": {"transforms": "Resize"}}, "data.transforms must be a list"),
        ({"labels": "nucleus"}, "labels must be keys and values"),
        # sites by name
        ({"federation": {"sites": ["north", "north"]}}, "federation.sites must be .*each name once, not"),
        ({"federation": {"sites": []}}, "federation.sites must be .*at least 1 values, not"),
        ({"federation": {"sites": 0}}, "federation.sites must be greater than 0, or a list, not 0"),
        (
            {"federation": {"sites": ["north"]}},
            "min_sites must be at most 1, the hospitals that .*, not 2; lower",
        ),
        (
            {"federation": {"may_miss": 1}},
            "may_miss, 1 of the 0 hospitals .* fewer than federation.min_sites",
        ),
        ({"federation": {"sites": ["a", "b"], "may_miss": 1}}, "1 of the 2 hospitals .*; name them, or lower it"),
        # patience
        ({"federation": {"patience": 0}}, "federation.patience must be greater than 0, not 0"),
        (
            {"federation": {"patience": 3}, "training": {"schedule": "cosine"}},
            "training.schedule 'cosine' lowers the rate over all rounds, .* Remove federation.patience, or choose",
        ),
        # out of range
        ({"rounds": 0}, "rounds must be at least 1, not 0"),
        ({"seed": -1}, "seed must be greater than or equal to 0"),
        ({"training": {"learning_rate": 0}}, "training.learning_rate must be greater than 0"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate must be"),
        ({"training": {"weight_decay": 1e308}}, r"weight_decay must be less than or equal to 10{15}, not 1e\+308"),
        (
            {"algorithm": {"name": "ditto", "ditto": {"strength": 1e40}}},
            "strength must be less than or equal to 10{15}",
        ),
        ({"algorithm": {"name": "harmofl", "amplitude": {"band": 10**40}}}, "amplitude.band must be .* 1000000"),
        ({"torch_threads": 10**9}, HUGE),
        ({"rounds": 10**9}, HUGE),
        ({"training": {"batch_size": 10**9}}, HUGE),
        ({"training": {"local_epochs": 10**9}}, HUGE),
        ({"federation": {"sites": 10**9}}, HUGE),
        ({"federation": {"task_timeout_s": 1e300}}, HUGE),
        ({"algorithm": {"name": "adafed", "statistics": {"refresh_every": 10**9}}}, HUGE),
        ({"algorithm": {"name": "fedsm", "selector": {"steps": 10**9}}}, HUGE),
        # keys
        ({"labels": {1: "organ", "1": "lesion"}}, "labels must be one name for each number, not "),
        ({"labels": {1: "organ", "01": "lesion"}}, "labels must be one name for each number"),
        ({"data": {7: 1}}, "data.7 must be a key in letters, not 7"),
        ({"training": {None: 1}}, "training.None must be a key in letters, not None"),
        ({"training": {"batch_size": 0}}, "training.batch_size must be greater than 0"),
        ({"model": {"dropout": 1.0}}, "model.dropout must be less than 1"),
        ({"model": {"features": [8, 8]}}, "model.features must .*6"),
        (
            {"algorithm": {"name": "harmofl", "perturbation": {"alpha": -1.0}}},
            "algorithm.perturbation.alpha must be greater than 0",
        ),
        ({"algorithm": {"name": "harmofl", "amplitude": {"band": -1}}}, "algorithm.amplitude.band must be"),
        ({"federation": {"task_timeout_s": 0}}, "federation.task_timeout_s must be greater than 0"),
        # no such choice
        ({"algorithm": {"name": "harmfl"}}, r"algorithm.name must be one of .*did you mean 'harmofl'"),
        ({"algorithm": {"name": "harmofl", "preset": "papers"}}, "did you mean 'paper'"),
        ({"algorithm": "harmofl"}, "algorithm must be keys and values, not 'harmofl': set its keys, as algorithm.name"),
        ({"algorithm": {"name": "harmofl", "amplitude": {"band": "ful"}}}, "algorithm.amplitude.band must be .*'full'"),
        ({"algorithm": {"name": "harmofl", "step": "harmoFL"}}, "algorithm.step must be .*did you mean 'harmofl'"),
        ({"model": {"normalization": "bach"}}, "model.normalization must be .*did you mean 'batch'"),
        ({"data": {"channels": 0}}, "data.channels must be greater than 0, not 0"),
        ({"data": {"channels": 10**9}}, "data.channels must be less than or equal to 4096, not 1000000000"),
        ({"data": {"neighbours": -1}}, "data.neighbours must be greater than or equal to 0, not -1"),
        ({"data": {"neighbours": 9}}, "data.neighbours must be less than or equal to 8, not 9"),
        ({"data": {"neighbours": True}}, "data.neighbours must be a number, not True"),
        ({"data": {"neighbour": 1}}, "did you mean 'data.neighbours'"),
        # 3 slices of 1366 channels
        ({"data": {"channels": 1366, "neighbours": 1}}, "data.channels must be at most 4096 .*, not 4098; lower data"),
        ({"model": {"features": [10**9] * 6}}, "model.features.0 must be less than or equal to 1024, not 1000000000"),
        ({"data": {"split_unit": "recording"}}, "data.split_unit must be .*did you mean 'recordings'"),
        ({"name": "a/b"}, "name must be letters, digits"),
        ({"training": {"betas": [0.9, 1.0]}}, "training.betas.1 must be less than 1"),
        (
            {"algorithm": {"name": "fedavg", "perturbation": {}}},
            "a key of algorithm must be one of .*, not 'perturbation'",
        ),
        # what does not fit together
        ({"labels": {2: "a"}}, r"labels must be numbered \[1\] for segmentation, not \[2\]"),
        ({"labels": {}}, "labels must"),
        ({"labels": {n: str(n) for n in range(1, 300)}}, "labels must be at most 254"),
        ({"labels": {1: "a", 2: "a"}}, r"labels must have a name of its own each, not \['a', 'a'\]; rename one"),
        ({"labels": {1: "organ\x1b[8m"}}, r"'organ\\x1b\[8m' cannot name a label: .*; rename it"),
        ({"labels": {1: "organ\u202e"}}, "cannot name a label: names have 1 to 100 printable"),
        ({"labels": {1: "organ\nno warnings"}}, "cannot name a label: names have 1 to 100 printable"),
        ({"labels": {1: "a" * 101}}, "cannot name a label: names have 1 to 100 printable characters"),
        ({"labels": {1: "a", 2: " "}}, r"labels must have a name of its own each, not \['a', ' '\]; rename one"),
        ({"regions": {}}, "regions must be at least 1 values"),
        ({"regions": [1]}, "regions must be keys and values"),
        ({"regions": {"disc": 1}}, "regions.disc must be a list, not 1"),
        ({"regions": {"disc": [True]}}, "regions.disc.0 must be a number, not True"),
        ({"regions": {"disc": [1, 3]}}, r"regions.disc must hold labels among \[1\], .*, not \[1, 3\]; correct it"),
        ({"regions": {"disc": []}}, r"regions.disc must hold labels among .* at least one and each once, not \[\]"),
        ({"regions": {"disc": [1, 1]}}, r"regions.disc must hold .* each once, not \[1, 1\]"),
        ({"regions": {"1": [1]}}, "the name of a region must begin with a letter, not '1'; rename it"),
        ({"regions": {"disc ": [1]}}, "the name of a region .*'disc '.*; rename it"),
        ({"regions": {"a\n": [1]}}, "the name of a region|cannot name a region"),
        ({"regions": {"a" * 101: [1]}}, "the name of a region|cannot name a region"),
        (
            {"task": "classification", "labels": {0: "a", 1: "b"}, "regions": {"all": [0, 1]}},
            "regions must be left out for classification, .*; remove them",
        ),
        ({"extra_metrics": "a==1/x"}, "extra_metrics must be a list, not 'a==1/x'"),
        (
            {"extra_metrics": ["dice"]},
            "extra_metrics.0 must be a part of a package, as 'package==1.2.0/name', not 'dic",
        ),
        ({"extra_metrics": [f"a==1/x{n}" for n in range(9)]}, "extra_metrics must be at most 8 values"),
        ({"extra_metrics": ["a==1/x", "a==1/x"]}, "two of extra_metrics have one name after the slash.*; remove one"),
        ({"extra_metrics": ["a==1/x", "b==2/x"]}, "two of extra_metrics have one name after the slash"),
        (
            CLASSES | {"extra_metrics": ["a==1/x"]},
            r"extra_metrics must be left out for classification, .* not \['a==1/x'\]; remove them",
        ),
        ({"task": "multilabel", "labels": {0: "a"}}, "labels must be at least 2 for multilabel, not 1"),
        (
            {"task": "multilabel", "labels": {n: f"f{n}" for n in range(63)}},
            "labels must be at most 62 for multilabel, not 63",
        ),
        (
            {"task": "multilabel", "labels": {0: "mass", 1: "no mass"}},
            "label 'no mass' is named as the absence of another one; remove it",
        ),
        (
            {"task": "multilabel", "labels": {0: "a", 1: "b"}, "metric": "auroc", "model": {"name": "lenet5"}}
            | {"training": {"loss": "cross_entropy", "sampler": "balanced"}},
            "training.sampler must be shuffled for multilabel, .* not balanced; give training.class_weights",
        ),
        ({"task": "multilabel", "labels": {0: "a", 1: "b"}}, "metric must be one of accuracy, .* for multilabel"),
        ({"metric": "accuracy"}, "metric must be one of dice, dice_with_background for segmentation"),
        ({"task": "classification", "labels": {0: "a", 1: "b"}}, "of accuracy, .* for classification"),
        ({"metric": "balanced_accuracy"}, "metric must be one of dice, dice_with_background for segmentation"),
        ({"model": {"name": "lenet5"}}, "model.name must be one of unet for segmentation, not 'lenet5'"),
        ({"model": {"name": "activity_cnn", "dropout": 0.5}}, "model.dropout must be 0 for activity_cnn, .* not 0.5"),
        (
            CLASSES | {"model": {"name": "activity_cnn"}, "data": {"neighbours": 1}},
            "data.neighbours must be 0 for activity_cnn, .*, not 1; remove it",
        ),
        # a file of weights
        ({"model": {"weights": "w.pt"}}, "one of model.weights and model.weights_sha256 is missing"),
        ({"model": {"weights_sha256": "0" * 64}}, "one of model.weights and model.weights_sha256 is missing"),
        ({"model": {"weights": "../w.pt", "weights_sha256": "0" * 64}}, "model.weights must be letters, digits"),
        ({"model": {"weights": "w.pt", "weights_sha256": "abc"}}, "must be the 64 digits of the file's SHA-256.*'abc'"),
        # rules of use and operating points that say nothing
        ({"do_not_use": {}, "algorithm": {"name": "fedsm"}}, "do_not_use states no rule.* remove it"),
        ({"do_not_use": {"on_fallback": True}}, r"'fedavg' never falls back to a global model"),
        ({"do_not_use": {"label_below": 1.5}}, r"do_not_use.*label_below.*1.5"),
        ({"do_not_use": {"on_fall_back": True}}, r"do_not_use\.on_fall_back is not a known key"),
        ({"codes": {"heart": {"code": "80891009", "meaning": "Heart"}}}, "codes must name labels of a seg.*'heart'"),
        ({"codes": {"heart": {"code": "D1", "meaning": "Heart"}}}, "codes.heart.code"),
        (CLASSES | {"operating_point": {}}, r"operating_point asks for both or neither .* as \{specificity: 0\.9\}"),
        (
            CLASSES | {"operating_point": {"specificity": 0.9, "sensitivity": 0.9}},
            "operating_point asks for both or neither",
        ),
        (CLASSES | {"operating_point": {"specificity": 1.5}}, "operating_point.*specificity.*1.5"),
        (
            {"operating_point": {"specificity": 0.9}},
            "the answers of segmentation .* have no threshold",
        ),
        (
            CLASSES | {"labels": {0: "a", 1: "b", 2: "c"}, "operating_point": {"sensitivity": 0.9}},
            "the answers of classification of 3 labels have no threshold",
        ),
    ],
)
def test_a_wrong_study_is_refused_with_one_sentence(changes, message):
    with pytest.raises(ConfigError, match=message) as refusal:
        study(**changes)
    assert "\n" not in str(refusal.value) and str(refusal.value).startswith("study.yaml")


@pytest.mark.parametrize("missing", ["name", "rounds", "algorithm"])
def test_a_key_that_must_be_given_is_named(missing):
    with pytest.raises(ConfigError, match=f"{missing} is missing"):
        parse(Study, {key: value for key, value in MINIMAL.items() if key != missing}, "study.yaml")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "does not exist"),
        ("a: [1", "study.yaml, line 1, column 6: this is not YAML .expected ',' or ']'.*; corr"),
        (
            "name: a\nrounds 40\nseed: 0\n",
            "line 3, column 1: this is not YAML .could not find expected ':'.; correct it$",
        ),
        ("rounds: 3\nseed: 1\nrounds: 4\n", "line 3: 'rounds' is given in line 1 too; remove one"),
        ("just words", "must be keys and values, not str"),
    ],
)
def test_files_that_cannot_be_read_are_told_apart(tmp_path, text, sentence):
    if text is not None:
        (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_study(tmp_path / "study.yaml")


def test_a_file_without_permission_is_told(tmp_path, monkeypatch):
    (tmp_path / "study.yaml").write_text("rounds: 3")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError()))
    with pytest.raises(ConfigError, match="study.yaml is unreadable"):
        load_study(tmp_path / "study.yaml")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("rounds: !!int abc", "line 5: the tag 'tag:yaml.org,2002:int' is not allowed"),
        ("rounds: !!python/object/apply:os.system [ls]", "line 5: the tag"),
        ("rounds: &a 3\nseed: *a", r"line 6: '\*' refers to another value; write the value itself"),
        ("labels: {<<: {1: a}}", "labels.<<.* must be"),
        ("rounds: 2026-13-45", "rounds must be a valid integer, not '2026-13-45'"),
        ("rounds: " + "9" * 5000, "this is not YAML .Exceeds the limit"),
        ("rounds: 1" + ":1" * 4000 + ".0", "line 5: 1:1.* is not a finite decimal number"),
        ("rounds: " + "[" * 40, "line 5: values are nested more than 32 deep"),
        ("rounds: " + "[" * 100_000, "line 5: values are nested more than 32 deep"),
        ("\n".join(f"a{i}: 1" for i in range(9000)), "there are more than 5000 keys and values"),
        ("x" * (1 << 18) + ": 1", "study.yaml is larger than 131072 bytes"),
        ('name: "\\ud800"', r"line 5: '\\ud800' holds half a character .*; correct it"),
        ('name: "\\U00110000"', "this is not YAML"),
        ("? [1, 2]\n: 3", "line 6: a key is a list or a table"),
        ("labels: {1: a, 1: b}", "line 5: 1 is given in line 5 too; remove one"),
        ("y" * 1000 + ": 1", r"study.yaml: y+\.\.\. is not a known key$"),
    ],
)
def test_absurd_settings_are_one_short_sentence_in_time(tmp_path, line, sentence):
    path, started = tmp_path / "study.yaml", time.process_time()
    key = line.partition(":")[0]
    path.write_text("".join(f"{name}: {value}\n" for name, value in MINIMAL.items() if name != key) + f"{line}\n")
    with pytest.raises(ConfigError, match=sentence) as refusal:
        load_study(path)
    assert len(str(refusal.value)) < 700 and "\n" not in str(refusal.value)
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    # 8, 90, 10, 16, 3, -8, 1000.5, 5400.5 and infinity in YAML 1.1.
    "number",
    ["010", "1:30", "1_0", "0x10", "0b11", "-010", "1_000.5", "1:30:00.5", ".inf", "-.Inf", ".nan", "1.0e+999"],
)
def test_a_number_that_people_and_yaml_read_differently_is_refused(number):
    for text in (number, f"[{number}]", f"{{rounds: {number}}}", f"{number}: rounds"):
        with pytest.raises(ConfigError, match="line 1: .* is not a finite decimal number, as 10") as error:
            read_value(text)
        assert f"line 1: {number} is not a finite decimal number" in str(error.value)
    assert read_value(f"'{number}'") == number and read_value(f'["{number}"]') == [number]


@pytest.mark.parametrize(
    ("text", "value"),
    [("007", 7), ("0", 0), ("-5", -5), ("+5", 5), ("00.5", 0.5), (".5", 0.5), ("1.", 1.0), ("1e3", 1000.0)]
    + [("1e-3", 0.001), ("1.5E3", 1500.0), (".5e-1", 0.05), ("-1e+2", -100.0)],
)
def test_a_number_is_the_one_that_people_read(text, value):
    number = read_value(text)
    assert number == value and type(number) is type(value)


@pytest.mark.parametrize("text", ["08", "1e", "e3", "1e3x", "v1e3", "2026-01-02", "10:75", "1.2.3", "１２", "0x", "<<"])
def test_what_is_no_number_stays_the_text_that_it_is(text):
    assert read_value(text) == text


@pytest.mark.parametrize(("name", "shown"), [("on", "True"), ("no", "False"), ("007", "7"), ("1e3", "1000.0")])
def test_a_name_that_yaml_takes_for_something_else_wants_quotes(name, shown):
    with pytest.raises(ConfigError, match=f"labels.1 must be a text, not {shown}: put it in quotes"):
        study(labels={1: read_value(name)})


def test_what_is_written_is_read_back_as_it_was():
    texts = ["010", "08", "1.5e3", "on", "1:30", "2026-01-02", "é", "<<", ".inf", ""]
    values = {"name": "1e3", "texts": texts, "numbers": [1e-5, 1e22, 8], "others": [True, None]}
    assert read_value(dump_yaml(values)) == values


def test_pipes_devices_and_folders_are_no_settings_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(ConfigError, match=f"is {kind}"):
            load_study(path)
        with pytest.raises(ConfigError, match=f"is {kind}"):
            read_json(path)


def test_a_sites_folders_are_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("ROOT", "/data")
    path = tmp_path / "site.yaml"
    path.write_text("data: $ROOT/{study}/{site}\nstate_dir: /state/{site}\n")
    site = load_settings(Site, path)
    assert site.data_folder("s", "north") == Path("/data/s/north")
    assert site.cache_folder("s", "north") == Path("/state/north/cache")
    assert Server(run_dir="/runs/{study}/{run}").run_folder("s", "r1") == Path("/runs/s/r1")


def test_a_relative_folder_of_a_site_is_refused(monkeypatch):
    monkeypatch.setenv("SILOFL_DATA", "data/nuclei")
    with pytest.raises(ConfigError, match="data/nuclei/north in site.yaml is not an absolute path"):
        Site(data="$SILOFL_DATA/{site}", state_dir="/state").data_folder("s", "north")


def test_a_placeholder_with_a_slip_is_no_folder(monkeypatch):
    monkeypatch.setenv("SCRATCH", "/scratch")
    site = Site(data="/data/{studie}", state_dir="/state/{study}", cache_dir="${SCRATCH}/{study}")
    with pytest.raises(ConfigError, match=r"site.yaml holds {studie} .did you mean '{study}'"):
        site.data_folder("organs", "north")
    assert str(site.cache_folder("organs", "north")) == "/scratch/organs"


def test_a_site_may_name_a_data_folder_for_each_study(monkeypatch):
    monkeypatch.setenv("ROOT", "/data")
    site = Site(data={"organs": "$ROOT/{site}", "nuclei": "/n"}, state_dir="/state")
    assert site.data_folder("organs", "north") == Path("/data/north")
    assert site.data_folder("nuclei", "north") == Path("/n")
    with pytest.raises(ConfigError, match=r"for study 'organ', only for nuclei, organs \(did you mean 'organs'\?\)"):
        site.data_folder("organ", "north")


def test_a_pinned_study_may_have_a_folder_of_its_own():
    pins = {name: {"sha256": "0" * 64, "lead": "a", **more} for name, more in (("a", {"data": "/own"}), ("b", {}))}
    site = parse(Site, {"data": "/data/{study}", "state_dir": "/state", "studies": pins}, "site.yaml")
    assert [site.data_folder(study, "north") for study in ("a", "b")] == [Path("/own"), Path("/data/b")]
    assert set(site.data_by_study("b")) == {"a", "b"}


@pytest.mark.parametrize("digest", ["", "abc", "0" * 63, "G" * 64, "0" * 64 + "\n"])
def test_a_pin_that_no_study_can_have_is_refused(digest):
    values = {"data": "/d", "state_dir": "/s", "studies": {"organs": {"sha256": digest, "lead": "a"}}}
    with pytest.raises(ConfigError, match="studies.organs.sha256 must be the 64 digits that site check prints, not"):
        parse(Site, values, "site.yaml")


def test_a_digest_does_not_depend_on_the_notation():
    same = [
        study(),
        study(continue_run="organs-1"),
        study(seed=0, data={"channels": 1, "neighbours": 0}),
        study(training={"frozen": []}),
        parse(Study, dict(reversed(MINIMAL.items())), "study.yaml"),
        parse(Study, plain_study(study()), "study.yaml"),
    ]
    (digest,) = {settings.digest for settings in same}
    assert len(digest) == 64


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other"},
        {"rounds": 4},
        {"seed": 1},
        {"labels": {1: "other"}},
        {"federation": {"min_sites": 3}},
        {"federation": {"patience": 10}},
        {"federation": {"sites": ["north", "south"]}},
        {"federation": {"sites": ["north", "south", "west"], "may_miss": 1}},
        {"training": {"local_epochs": 2}},
        {"training": {"frozen": ["conv_0.*"]}},
        {"model": {"weights": "w.pt", "weights_sha256": "0" * 64}},
        {"data": {"neighbours": 1}},
        {"do_not_use": {"label_below": 0.7}},
        {"regions": {"disc": [1]}},
        {"data": {"augment": [{"RandFlip": {"prob": 0.5}}]}},
        {"algorithm": {"name": "fedprox"}},
        {"algorithm": {"name": "harmofl", "preset": "paper"}},
        {"algorithm": {"name": "fedavg", "server_lr": 0.5}},
    ],
)
def test_whatever_a_study_decides_gives_another_digest(changes):
    assert study(**changes).digest != study().digest
    # What is in the file of weights, too.
    assert len({study(model={"weights": "w.pt", "weights_sha256": digit * 64}).digest for digit in "01"}) == 2


PATIENT = {"federation": {"patience": 10}}
PRIVATE = {
    "baseline_comparison": False,
    "privacy": {"dp_sgd": {"noise": 1.0, "clip": 1.0}},
    "model": {"normalization": "group"},
}


@pytest.mark.parametrize(("changes", "is_same"), [(PATIENT, True), ({}, False), (PATIENT | PRIVATE, False)])
def test_more_rounds_with_patience_keep_a_pin_without_epsilon(changes, is_same):
    few, many = study(rounds=200, **changes), study(rounds=400, **changes)
    assert (few.digest == many.digest) == is_same
    pins = {few.name: {"sha256": few.digest, "lead": "a"}}
    site = parse(Site, {"data": "/d", "state_dir": "/s", "studies": pins}, "site.yaml")
    with nullcontext() if is_same else pytest.raises(PinError, match="differs from the one that the site has pinned"):
        site.check_pinned(many.name, many.digest, {"a"}, ["north"])


@pytest.mark.parametrize("value", [float("inf"), float("nan"), [1, float("-inf")], {1: "a"}, {"a": {2: 3}}])
def test_options_that_no_digest_tells_apart_are_refused(value):
    with pytest.raises(ConfigError, match=r"data.transforms.*options must be (finite numbers|keys that are text)"):
        study(data={"transforms": [{"Resize": {"spatial_size": value}}]})


@pytest.mark.parametrize(
    "changes",
    [{"super_model": {"answer": "ensemble"}}, {"selector": {"labels": "best_model"}, "extra_rounds": 2}],
)
def test_a_rule_on_a_missing_fallback_is_refused(changes):
    study(do_not_use={"on_fallback": True}, algorithm={"name": "fedsm"})
    with pytest.raises(ConfigError, match=r"never falls back to the global model"):
        study(do_not_use={"on_fallback": True}, algorithm={"name": "fedsm"} | changes)


@pytest.mark.parametrize(
    ("changes", "is_random"),
    [
        ({}, True),
        ({"model": {"weights": "w.pt", "weights_sha256": "0" * 64}}, False),
        ({"algorithm": {"name": "fedavg", "start_from_pretrained": True}}, False),
    ],
)
def test_frozen_parameters_that_are_the_seeds_are_a_caution(changes, is_random):
    frozen = {"training": {"frozen": ["conv_0.*"]}}
    cautions = study(**frozen | changes, rounds=11).cautions
    assert len(cautions) == is_random
    assert all("training.frozen keeps the seed's random weights of conv_0.*," in caution for caution in cautions)


def test_a_study_starts_from_one_file():
    weights = {"model": {"weights": "w.pt", "weights_sha256": "0" * 64}}
    with pytest.raises(ConfigError, match="model.weights must be left out with algorithm.start_from_pretrained"):
        study(**weights, algorithm={"name": "adafed", "preset": "paper"})
    assert study(**weights).model_file == "w.pt" and study(**weights).starts_from_file
    assert study().model_file is None and not study().starts_from_file


@pytest.mark.parametrize("run", ["", ".", "..", "a/b", "/etc", "a\n"])
def test_a_run_id_that_is_no_plain_name_is_refused(run):
    with pytest.raises(ConfigError, match="the server's run id .* is no plain name"):
        Site(data="/data", state_dir="/state").run_folder("s", "north", run)


def test_a_run_that_lies_in_the_sites_cache_is_refused():
    for cache in (None, "/state/s/cache", "/state/s/cache/x"):
        with pytest.raises(ConfigError, match="run id 'cache' is no plain name, or that of the site's cache"):
            Site(data="/data", state_dir="/state/{study}", cache_dir=cache).run_folder("s", "north", "cache")
    site = Site(data="/data", state_dir="/state/{study}", cache_dir="/scratch/cache")
    for run in ("cache", "s-20260102-030405-0a1f"):
        assert site.run_folder("s", "north", run) == Path("/state/s", run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": "/s"}, r"site.yaml: state is not a known key \(did you mean 'state_dir'\?\)"),
        ({"data": 3}, "site.yaml: data must be keys and values, or a text, not 3"),
        ({"data": {"organs": 3}}, "site.yaml: data.organs must be a text, not 3"),
        ({"may_leave": "weights"}, "site.yaml: may_leave must be a list, not 'weights'"),
        ({"min_patients": -1}, "site.yaml: min_patients must be greater than or equal to 0, not -1"),
        ({"min_patients": True}, "site.yaml: min_patients must be a number, not True"),
        ({"min_partners": True}, "site.yaml: min_partners must be a number, not True"),
        ({"skip_unreadable": True}, "site.yaml: skip_unreadable must be a number, not True"),
    ],
)
def test_a_sites_wrong_value_is_refused_with_its_key(changes, message):
    with pytest.raises(ConfigError, match=message):
        parse(Site, {"data": "/data", "state_dir": "/state"} | changes, "site.yaml")


@pytest.mark.parametrize(
    ("channels", "neighbours", "in_channels", "middle"), [(1, 0, 1, [0]), (3, 0, 3, [0, 1, 2]), (2, 2, 10, [4, 5])]
)
def test_the_network_sees_a_slice_between_its_neighbours(channels, neighbours, in_channels, middle):
    settings = study(data={"channels": channels, "neighbours": neighbours}).data
    assert settings.in_channels == in_channels and list(range(in_channels))[settings.shown] == middle


EYE = {"labels": {1: "rim", 2: "cup"}}
NESTED = {"disc": [1, 2], "cup": [2]}


def test_regions_are_scored_in_place_of_labels():
    nested = study(**EYE, regions=NESTED)
    assert nested.scored == {"disc": (1, 2), "cup": (2,)} and study(**EYE).scored == {1: (1,), 2: (2,)}
    assert nested.out_channels == study(**EYE).out_channels == 3
    assert nested.description()["regions"] == {"disc": (1, 2), "cup": (2,)}
    assert parse(Study, plain_study(nested), "study.yaml") == nested


def test_a_job_folder_is_told_where_its_study_is():
    with pytest.raises(ConfigError, match=r"must be a study.yaml, not a job folder; name .*app/config/study.yaml"):
        load_study(Path(__file__).resolve().parents[1] / "jobs" / "fedavg_phantoms")


@pytest.mark.parametrize(
    ("preset", "normalization", "words"),
    [
        ("recommended", "batch", None),
        ("paper", "group", None),
        ("recommended", "group", "has no BatchNorm to keep at home"),
        ("recommended", "batch_stateless", "has no BatchNorm to keep at home"),
        ("reference", "batch_stateless", "silofl predict refuses a single image"),
        ("reference", "batch_home", None),
        ("recommended", "batch_home", None),
    ],
)
def test_a_normalisation_that_does_not_fit_the_preset_is_told(preset, normalization, words):
    chosen = {"algorithm": {"name": "harmofl", "preset": preset}, "model": {"normalization": normalization}}
    cautions = study(**chosen, rounds=11).cautions
    assert cautions == [] if words is None else any(words in sentence for sentence in cautions)


@pytest.mark.parametrize("normalization", ["batch_stateless", "instance", "group"])
def test_fedbn_without_batchnorm_is_fedavg_and_refused(normalization):
    chosen = {"algorithm": {"name": "fedbn"}, "model": {"normalization": normalization}}
    with pytest.raises(ConfigError, match=f"batch_home if only BatchNorm stays .*, not {normalization}; .* fedavg"):
        study(**chosen)
    # What has begun goes on.
    assert parse(Study, MINIMAL | chosen, "study.yaml", "stored").cautions


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"rounds": 10}, "20"),
        ({"rounds": 11}, None),
        ({"rounds": 3, "federation": {"patience": 3}}, "6"),
        ({"rounds": 4, "federation": {"patience": 3}}, None),
        # Fine-tuning counts, a selector's rounds do not.
        ({"rounds": 10, "algorithm": {"name": "finetuning", "extra_rounds": 1}}, None),
        ({"rounds": 10, "baseline_comparison": False}, None),
        ({"rounds": 10, "algorithm": {"name": "local"}}, None),
    ],
)
def test_rounds_without_a_verdict_are_told_with_enough(changes, remedy):
    told = [one for one in study(**changes).cautions if "no verdict" in one]
    assert bool(told) == (remedy is not None)
    if remedy:
        assert told[0].startswith(f"{changes['rounds']} rounds ") and told[0].endswith(f"--set rounds={remedy}")
        assert not [one for one in study(**changes | {"rounds": int(remedy)}).cautions if "no verdict" in one]


def test_an_operating_point_is_named_and_changes_no_digest():
    asked, two = study(operating_point={"sensitivity": 0.95}, **CLASSES), study(**CLASSES)
    assert asked.called == (1,) and asked.operating_point.wish == "a sensitivity of 0.95"
    assert study(**CLASSES | {"task": "multilabel"}).called == (0, 1)
    assert asked.digest != two.digest


def test_keys_of_release_0_4_are_read_and_their_new_names_said(make_study):
    plain = make_study(name="fedprox", fedprox={"mu": 0.5}, stays="head", baseline_comparison=False)
    values = plain.model_dump(mode="json") | {"guard": False}
    del values["baseline_comparison"]
    algorithm = values["algorithm"]
    algorithm["proximal"] = algorithm.pop("fedprox")
    algorithm["stays_home"] = algorithm.pop("stays")
    study = parse(Study, values, "study.yaml")
    assert study.digest == plain.digest
    assert [text.split(" of study.yaml is now ")[0] for text in study.cautions[:3]] == [
        "guard",
        "algorithm.stays_home",
        "algorithm.proximal",
    ]
    with pytest.raises(ConfigError, match="guard is not a known key"):
        parse(Study, values | {"baseline_comparison": True}, "study.yaml")
