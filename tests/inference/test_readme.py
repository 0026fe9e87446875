from silofl.data.domain import Domain
from silofl.inference.readme import bundle_readme, super_model_readme


def test_a_readme_names_labels_sites_and_size(make_study):
    text = super_model_readme(
        make_study(), ("north", "south"), (1, 32, 32), Domain(("volumes",), modalities=("MR", "CT"))
    )
    for part in (
        "1 = organ, 2 = lesion",
        "north, south",
        "1 x 32 x 32",
        "learnt from volumes, MR or CT",
        "predict THIS_FOLDER scan.nii.gz dicom_folder -o",
        "SuperModel.load",
    ):
        assert part in text
    assert "no statistics" not in text


def test_a_network_without_statistics_is_said(make_study):
    study = make_study(model={"normalization": "batch_stateless"})
    assert "keeps no statistics" in super_model_readme(study, (), (1, 32, 32), Domain())


def test_a_bundles_readme_names_its_members_and_commands(make_study):
    text = bundle_readme(make_study(), ["global", "north"], (1, 32, 32))
    assert "global, north" in text and "(n, 1, 32, 32)" in text and "monai.bundle run" in text


def test_neighbours_are_said_where_there_are_some(make_study):
    for neighbours in (0, 1):
        study = make_study(data={"neighbours": neighbours})
        for text in (super_model_readme(study, (), (1, 32, 32), Domain()), bundle_readme(study, ["a"], (1, 32, 32))):
            assert ("An image holds 3 slices of its volume as channels" in text) == (neighbours == 1)


def test_contrasts_are_named_where_the_study_names_them(make_study):
    for names in ([], ["T1", "T2"]):
        study = make_study(data={"channels": 2, "channel_names": names})
        for text in (super_model_readme(study, (), (2, 32, 32), Domain()), bundle_readme(study, ["a"], (2, 32, 32))):
            assert ("the contrasts T1, T2 as channels" in text and "`T1=FILE,T2=FILE`" in text) == bool(names)
