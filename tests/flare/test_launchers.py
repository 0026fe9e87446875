"""Jobs that name their container, sent to the launchers of prepared kits."""

import pytest
from nvflare.app_opt.job_launcher import docker_launcher, k8s_launcher

from silofl.flare import launchers

KINDS = ("ClientDockerJobLauncher", "ServerDockerJobLauncher", "ClientK8sJobLauncher", "ServerK8sJobLauncher")


@pytest.fixture
def launched(monkeypatch):
    """Note the jobs whose containers NVFlare would start."""
    found = []
    for kind in (docker_launcher.DockerJobLauncher, k8s_launcher.K8sJobLauncher):
        monkeypatch.setattr(kind, "launch_job", lambda self, meta, fl_ctx: found.append(meta))
    return found


def launch(kind, meta):
    # No container is near: NVFlare's constructor asks for one.
    getattr(launchers, kind).launch_job(object.__new__(getattr(launchers, kind)), meta, None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("meta", "word"),
    [
        ({"launcher_spec": {"north": {"docker": {"image": "evil"}}}}, "launcher_spec"),
        ({"launcher_spec": {"default": {"k8s": {"image": "evil"}}}}, "launcher_spec"),
        ({"resource_spec": {"north": {"docker": {"image": "evil"}}}}, "docker"),
        ({"resource_spec": {"north": {"k8s": {"image": "evil"}, "process": {}}}}, "k8s"),
        ({"resource_spec": {"@default": {"image": "evil"}}}, "image"),
    ],
)
def test_a_job_cannot_choose_its_container(launched, kind, meta, word):
    with pytest.raises(
        RuntimeError, match=f"must leave its container to the machine that runs it, and not say {word!r}"
    ):
        launch(kind, {"job_id": "1"} | meta)
    assert launched == []


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("resources", [None, {}, {"north": None}, {"north": {"num_of_gpus": 1, "memory": "8Gi"}}])
def test_a_job_may_say_how_much_it_needs(launched, kind, resources):
    meta = {"job_id": "1", "resource_spec": resources, "launcher_spec": {}}
    launch(kind, meta)
    assert launched == [meta]


def test_nvflares_own_launcher_takes_the_jobs_image():
    """The danger itself: where a later NVFlare asks the machine, the launchers here are no longer needed."""
    assert docker_launcher.get_job_launcher_spec(
        {"launcher_spec": {"north": {"docker": {"image": "evil"}}}}, "north", "docker"
    ) == {"image": "evil"}
