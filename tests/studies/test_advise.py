"""What hospitals that are made up differ in: textures in two classes, some patients each."""

import json
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from silofl.algorithms.advice.comparison import KINDS
from silofl.models import build_plain_model
from silofl.studies.compared_runs import plan_runs
from silofl.studies.methods import find_method_algorithm
from silofl.studies.simulation import Simulation, settle_job, study_file
from silofl.study import load_study

JOBS = Path(__file__).resolve().parents[2] / "jobs"
SIDE = 16
# d-AdaFed, which compares no BatchNorm.
GROUP = ("--set", "model.normalization=group", "--set", "algorithm.statistics={layers: last}")


@pytest.fixture
def job(tmp_path):
    folder = tmp_path / "small"
    shutil.copytree(JOBS / "adafed_mednist", folder)
    path = study_file(folder)
    study = yaml.safe_load(path.read_text()) | {"labels": {0: "smooth", 1: "rough"}, "device": "cpu"}
    study["data"]["split_unit"] = "patient"
    path.write_text(yaml.safe_dump(study))
    return folder


@pytest.fixture
def write_sites(tmp_path):
    """Write sites of 8 patients with 6 images each, by each site's contrast and its share of the second class."""

    def write(contrasts=(1, 1, 1), shares=(0.5, 0.5, 0.5), patients=8, has_names=True):
        root = tmp_path / "data"
        for number, (contrast, share) in enumerate(zip(contrasts, shares, strict=True)):
            rng, folder = np.random.default_rng(number), root / f"site{number}"
            folder.mkdir(parents=True)
            labels = rng.random(6 * (patients + 2)) < share
            noise = rng.normal(0, 1, (len(labels), SIDE, SIDE))
            smooth = noise + np.roll(noise, 1, 1) + np.roll(noise, 1, 2)
            images = 128 + 25 * contrast * np.where(labels[:, None, None], noise, smooth / 3)
            np.savez(folder / "images.npz", images=np.uint8(np.clip(images, 0, 255)))
            records = [
                {"image": "images.npz", "index": i, "label": int(label)}
                | ({"patient": f"p{i // 6}"} if has_names else {"case": f"c{i}"})
                for i, label in enumerate(labels)
            ]
            parts = {"training": records[:-12], "test": records[-12:]}
            unit = {} if has_names else {"split_unit": "unknown"}
            content = {"task": "classification", "labels": {"0": "smooth", "1": "rough"}, **unit, **parts}
            (folder / "dataset.json").write_text(json.dumps(content))
        return root

    return write


@pytest.fixture
def advice(silofl, job):
    def ask(data, *options):
        code, out, error = silofl("advise", job, "--data", data, "--json", *options)
        assert code == 0, error
        return json.loads(out)

    return ask


def test_sites_that_differ_in_nothing_have_two_noes_and_the_same_numbers_with_the_same_seed(advice, write_sites):
    data = write_sites()
    found = advice(data)
    assert not any(one["is_yes"] for one in found["findings"].values()) and found["notes"] == []
    assert all(0.5 < found["ratios"][kind]["value"] < 1.5 for kind in KINDS)
    assert found["cases"] == {"site0": 48, "site1": 48, "site2": 48}
    assert found == advice(data, "--seed", 0) != advice(data, "--seed", 1)


def test_another_scanner_is_seen_in_the_images_and_named_whatever_the_networks_normalisation(advice, write_sites):
    data = write_sites(contrasts=(1, 1, 2.5))
    found = advice(data)
    assert {kind: one["is_yes"] for kind, one in found["findings"].items()} == {"amplitude": True, "labels": False}
    pairs = found["ratios"]["amplitude"]["pairs"]
    assert pairs["site0"]["site1"] < 1.5 < pairs["site0"]["site2"] and pairs["site2"]["site2"] == 0
    # Without BatchNorm it is measured with it.
    assert advice(data, *GROUP)["ratios"] == found["ratios"]


def test_other_labels_are_seen_in_every_halving(advice, write_sites):
    found = advice(write_sites(shares=(0.05, 0.5, 0.95)))["findings"]["labels"]
    assert found["is_yes"] and found["agreeing"] == found["halvings"] == 40


def test_features_may_be_those_of_a_pretrained_model_or_of_the_weights_that_training_starts_from(
    silofl, advice, write_sites, job, tmp_path
):
    data, study, file = write_sites(), load_study(study_file(job)), tmp_path / "w.pt"
    torch.save(build_plain_model(study, 5).state_dict(), file)
    plain, pretrained = (advice(data, *options)["ratios"] for options in ((), ("--pretrained", file)))
    assert plain["amplitude"] == pretrained["amplitude"] and plain["features"] != pretrained["features"]
    weights = ("--weights", file, "--set", "algorithm={name: fedavg}")
    assert advice(data, *weights)["ratios"] == pretrained
    assert silofl("advise", job, "--data", data, *weights)[1].endswith(f" --weights {file}\n")


def test_a_pretrained_model_without_batchnorm_is_refused(refused, job, write_sites, tmp_path):
    (tmp_path / "f.pt").touch()
    error = refused("advise", job, "--data", write_sites(), "--pretrained", tmp_path / "f.pt", *GROUP)
    assert "--pretrained must go with model.normalization: batch, at whose layers sites are compared, not" in error


def test_unknown_patients_are_halved_by_case_and_that_is_said(advice, write_sites):
    found = advice(write_sites(has_names=False), "--set", "data.split_unit=unknown")
    assert found["notes"][0].startswith("site0, site1, site2: fewer than 2 patients known, so that halves are of cases")


def test_few_patients_are_said(advice, write_sites):
    assert "fewer than 4 patients, so that there are few ways" in advice(write_sites(patients=3))["notes"][0]


@pytest.mark.parametrize(
    ("shifts", "changes", "methods"),
    [
        ({}, (), "local,fedavg"),
        ({"contrasts": (1, 1, 2.5)}, (), "local,fedavg,fedbn,harmofl"),
        # the classes differ in texture, so that other shares of them look different too
        ({"shares": (0.05, 0.5, 0.95)}, (), "local,fedavg,fedbn,harmofl,f-adafed"),
        ({"contrasts": (1, 1, 2.5)}, GROUP, "local,fedavg,harmofl"),
    ],
)
def test_the_command_compares_the_methods_made_for_what_differs(silofl, job, write_sites, shifts, changes, methods):
    data = write_sites(**shifts)
    code, out, _ = silofl("advise", job, "--data", data / "{site}", *changes)
    assert code == 0 and "amplitudes of the images" in out and "%" not in out.replace("90 %", "")
    assert out.startswith("reading the training data ... ") and "\nmeasuring 3 sites and halves of them ... " in out
    assert f"silofl compare {job} --data {data} --out RUNS --methods {methods} --pretrained f.pt" in out
    for method in methods.split(","):
        settle_job(job, Simulation(str(data)), {"algorithm": find_method_algorithm(method)})


@pytest.fixture
def plan(silofl, tmp_path, monkeypatch):
    """Plan the runs of the comparison that a command prints at its end."""
    asked = []
    monkeypatch.setattr("silofl.studies.compare.compare", lambda plan, *rest: asked.append(plan) or 0)

    def run(out):
        code, _, error = silofl(*shlex.split(out.splitlines()[-1])[3:])
        assert code == 0, error
        return plan_runs(asked.pop(), tmp_path / "runs")

    return run


def test_the_command_compares_under_the_settings_that_were_measured(silofl, job, write_sites, tmp_path, plan):
    data, file = write_sites(), tmp_path / "own f.pt"
    torch.save(build_plain_model(load_study(study_file(job)), 5).state_dict(), file)
    settings = ("--set", "data.background={nan: 0, below: 1}", "--set", "training.batch_size=4")
    # A method brings an algorithm of its own, and the job's row is the job.
    out = silofl("advise", job, "--data", data, *settings, "--set", "algorithm={name: fedavg}", "--pretrained", file)[1]
    assert "--seeds" not in out and "algorithm" not in out.splitlines()[-1]
    for number, found in enumerate((out, silofl("advise", job, "--data", data, *settings, "--seed", 7)[1])):
        if number:
            assert " --pretrained f.pt " in found
            found = found.replace(" f.pt ", f" {shlex.quote(str(file))} ")
        runs = plan(found)
        assert [(run.name, run.seed) for run in runs] == [
            (name, seed) for name in ("small", "local", "fedavg") for seed in ((7,) if number else (0, 1, 2))
        ]
        for run in runs:
            assert run.changes["data.background"] == {"nan": 0, "below": 1}
            assert run.changes["training.batch_size"] == 4
        assert {run.wanted.pretrained for run in runs if run.name == "small"} == {str(file)}


def test_the_command_names_a_pretrained_model_that_no_row_needs_and_the_folder_of_decoded_images_where_given(
    silofl, job, write_sites, tmp_path
):
    scratch = {"algorithm": {"name": "adafed", "start_from_pretrained": False}}
    study_file(job).write_text(yaml.safe_dump(yaml.safe_load(study_file(job).read_text()) | scratch))
    data, cache, file = write_sites(), tmp_path / "cache", tmp_path / "f.pt"
    torch.save(build_plain_model(load_study(study_file(job)), 5).state_dict(), file)
    options = ("--data", data, "--cache", cache)
    assert "--pretrained" not in silofl("advise", job, *options)[1]
    out = silofl("advise", job, *options, "--pretrained", file)[1]
    assert out.endswith(f" --pretrained {file} --cache {cache}\n")
    assert list(cache.glob("*/index.json")) and not (data / ".silofl-cache").exists()


def test_sites_with_images_of_different_sizes_are_named_with_the_remedy(silofl, job, write_sites):
    data = write_sites()
    np.savez(data / "site1" / "images.npz", images=np.random.default_rng(1).integers(0, 255, (60, 18, 18), np.uint8))
    code, _, error = silofl("advise", job, "--data", data)
    assert code and "site 'site1' must have images of the size of site 'site0', (16, 16), not (18, 18)" in error


def test_one_site_alone_cannot_be_compared(refused, job, write_sites):
    data = write_sites((1,), (0.5,))
    error = refused("advise", job, "--data", data, "--set", "federation.min_sites=1")
    assert "--data must hold at least 2 sites to compare, not 1" in error
