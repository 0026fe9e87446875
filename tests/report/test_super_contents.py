from silofl.report.folder import read_run
from silofl.report.super_contents import super_values, unseen_values


def test_a_run_without_selector_has_nothing_to_say_of_one(finished):
    run = read_run(finished())
    assert super_values(run) is None and unseen_values(run) is None


def test_a_run_with_a_selector_has_tables_and_its_map(finished_super):
    values = super_values(read_run(finished_super()))
    assert list(values["counts"]) == ["slices", "cases"]
    assert values["model_table"].rows[-1][0] == "mean over sites" and "PCA" in values["map"].caption


def test_a_real_federations_run_has_no_map(run, super_results):
    values = super_values(read_run(run().json("results.json", super_results()).path))
    assert values["map"] is None and values["choices"] is not None


def test_a_result_with_nothing_but_its_models_is_shown(run, super_results):
    results = super_results(selector={}, choices={}, by_threshold=[], threshold=None)
    values = super_values(read_run(run().json("results.json", results).path))
    assert values["counts"] == {} and values["choices"] is None and values["by_threshold"] is None


def test_a_left_out_site_without_details_is_still_told(run, super_results):
    files = run().json("results.json", super_results()).json("unseen.json", {"site": "south", "value": 0.5})
    values = unseen_values(read_run(files.path))
    assert "Site south took no part" in values["sentence"]
    assert (values["choices"], values["models"], values["by_threshold"]) == ("", None, None)
