"""Jobs that name their container, sent to the launchers of prepared kits."""

import pytest
from nvflare.app_opt.job_launcher import docker_launcher

from silofl.flare import launchers

KINDS = ("ClientDockerJobLauncher", "ServerDockerJobLauncher")


@pytest.fixture
def launched(monkeypatch):
    """Note the jobs whose containers NVFlare would start."""
    found = []
    kind = docker_launcher.DockerJobLauncher
    monkeypatch.setattr(kind, "launch_job", lambda self, meta, fl_ctx: found.append(meta))
    return found


def launch(kind, meta):
    # No container is near: NVFlare's constructor asks for one.
    getattr(launchers, kind).launch_job(object.__new__(getattr(launchers, kind)), meta, None)


EVIL = [
    ({"launcher_spec": {"default": {"k8s": {"image": "evil"}}}}, "launcher_spec"),
    ({"resource_spec": {"north": {"docker": {"image": "evil"}}}}, "docker"),
    ({"resource_spec": {"north": {"k8s": {"image": "evil"}, "process": {}}}}, "k8s"),
    ({"resource_spec": {"@default": {"image": "evil"}}}, "image"),
]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_cannot_choose_its_container(launched, kind):
    for meta, word in EVIL:
        with pytest.raises(RuntimeError, match=f"meta.json of the job has {word!r}"):
            launch(kind, {"job_id": "1"} | meta)
    assert launched == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_may_say_how_much_it_needs(launched, kind):
    needs = (None, {}, {"north": None}, {"north": {"num_of_gpus": 1, "memory": "8Gi"}})
    metas = [{"job_id": "1", "resource_spec": resources, "launcher_spec": {}} for resources in needs]
    for meta in metas:
        launch(kind, meta)
    assert launched == metas
