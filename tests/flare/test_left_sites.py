"""What the server's lasting process tells a job of its sites, from NVFlare's own records of tokens."""

from types import SimpleNamespace

import pytest
from nvflare.apis.client import Client
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import RunProcessKey
from nvflare.apis.fl_context import FLContext

from silofl.flare.left_sites import LEFT, LeftSites, find_left_sites

JOB = [Client("east", "e1"), Client("north", "n1")]


@pytest.mark.parametrize(
    ("connected", "left"),
    [
        (JOB, set()),
        ([Client("east", "e1"), Client("north", "n2")], {"north"}),
        # Without a word: its network may be cut, and come back with the job.
        ([Client("east", "e1")], set()),
        # A site that is no part of the job.
        ([*JOB, Client("west", "w2")], set()),
    ],
    ids=["all there", "started again", "silent", "others"],
)
def test_a_site_has_left_a_job_once_it_is_back_without_it(connected, left):
    assert find_left_sites(JOB, connected) == left


@pytest.fixture
def told():
    """Send an event to the component of a server with two jobs; returns what their processes were told."""

    def send(event, connected):
        said = []
        engine = SimpleNamespace(
            run_processes={
                "one": {RunProcessKey.PARTICIPANTS: {one.token: one for one in JOB}},
                "two": {RunProcessKey.PARTICIPANTS: {"e1": JOB[0]}},
            },
            get_clients=lambda: connected,
            send_app_command=lambda job, topic, data, timeout: said.append((job, topic, data)),
        )
        context = FLContext()
        context.get_engine = lambda: engine
        LeftSites().handle_event(event, context)
        return said

    return send


def test_a_heartbeat_under_a_new_token_is_told_to_the_sites_own_jobs_alone(told):
    back = [JOB[0], Client("north", "n2")]
    assert told(EventType.CLIENT_HEARTBEAT_PROCESSED, back) == [("one", LEFT, {"sites": ["north"]})]
    assert told(EventType.CLIENT_HEARTBEAT_PROCESSED, JOB) == []


def test_other_events_are_not_told(told):
    assert told(EventType.CLIENT_REGISTER_PROCESSED, [JOB[0], Client("north", "n2")]) == []
