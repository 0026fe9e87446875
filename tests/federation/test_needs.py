from silofl.base.settings import parse
from silofl.federation import needs
from silofl.federation.server import ServerRounds
from silofl.parts.task import TRAIN, Exchange
from silofl.study import Study

from ..conftest import SMALL_UNET


def make_study(baseline_comparison=False, **algorithm):
    values = {"name": "small", "task": "segmentation", "labels": {1: "blob"}, "rounds": 2, "algorithm": algorithm}
    values |= {"baseline_comparison": baseline_comparison}
    return parse(Study, values | {"model": SMALL_UNET | {"normalization": "instance"}}, "study.yaml")


def test_a_model_weighs_what_travels_of_it():
    study = make_study(name="fedavg")
    model = ServerRounds.start(study, "run", ["a", "b"]).task("a", Exchange(TRAIN, 1)).num_bytes
    assert needs.models_bytes(study) == model and needs.part_bytes(study, 3) == 0


def test_site_keeps_kept_rounds_with_adam_and_super_model():
    study = make_study(name="fedavg")
    model = needs.models_bytes(study)
    # 6 files x (model + 2 of Adam), and the super model's one
    assert needs.site_disk_bytes(study, 3) == 6 * 3 * model + model
    # ... and 6 files x 2 local models, of both normalisations, x (the model, 2 of Adam, and its best), and what it
    # chose beside its own one
    guarded = make_study(baseline_comparison=True, name="fedavg")
    assert needs.site_disk_bytes(guarded, 3) == needs.site_disk_bytes(study, 3) + 6 * 2 * 4 * model + 2 * model
    assert needs.site_memory_bytes(guarded) == needs.site_memory_bytes(study) + 2 * 4 * model


def test_site_has_all_models_where_super_model_does():
    study = make_study(name="fedsm")
    model = needs.models_bytes(make_study(name="fedavg"))
    few, many = (needs.site_disk_bytes(study, number) for number in (3, 10))
    selectors = needs.part_bytes(study, 10) - needs.part_bytes(study, 3)
    assert many - few == 7 * model + (6 * 3 + 1) * selectors
