from types import SimpleNamespace

import pytest
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.fuel.f3.comm_config import CommConfigurator
from nvflare.private.fed.client.client_runner import ClientRunner, ClientRunnerConfig, TaskRouter

from silofl.base.errors import ConfigError
from silofl.flare.line import WAIT, make_settings, parse_bandwidth, wait_for_line


@pytest.mark.parametrize(
    ("text", "bits"), [("50Mbit", 50e6), ("1.5Gbit", 1.5e9), ("800 kbit", 800e3), ("0.5Mbit", 500e3)]
)
def test_bandwidth_is_read_in_bits_a_second(text, bits):
    assert parse_bandwidth(text) == bits


@pytest.mark.parametrize("text", ["50", "50MB", "0Mbit", "", "nanMbit", "50mbit"])
def test_another_unit_is_refused(text):
    with pytest.raises(ConfigError, match="--bandwidth must be a number above 0 and kbit, Mbit, Gbit, as 50Mbit"):
        parse_bandwidth(text)


def test_thin_line_resends_only_after_all_has_come():
    settings = make_settings(24e6, 3)
    # Three sites' 4 MiB are 100.7 Mbit, at 24 Mbit/s 4.2 s; twice that is waited for, six times before giving up.
    assert settings[WAIT] == 9 and settings["streaming_retry_timeout"] == 60
    assert make_settings(1e6, 3)["streaming_retry_timeout"] == 6 * make_settings(1e6, 3)[WAIT] == 6 * 202
    assert make_settings(1e10, 3)[WAIT] == 5


@pytest.mark.parametrize(("kit", "wait_s"), [({}, 5), (make_settings(1e6, 3), 202)])
def test_site_waits_as_long_as_round_and_line_allow(monkeypatch, kit, wait_s):
    monkeypatch.setattr(CommConfigurator, "get_streaming_retry_wait", lambda self, default: kit.get(WAIT, default))
    waited = []
    engine = SimpleNamespace(
        register_aux_message_handler=lambda **_: None,
        send_aux_request=lambda targets, timeout, **_: waited.append(timeout) or {targets[0]: make_reply("OK")},
        send_task_result=lambda result, fl_ctx, timeout: not waited.append(timeout),
    )
    runner = ClientRunner({}, ClientRunnerConfig(TaskRouter(), {}, {}), "job", engine)
    wait_for_line(runner, 912)
    # The question whether the server still waits for the answer, and the answer.
    assert runner._send_task_result(Shareable(), "task", FLContext()) and waited == [wait_s, 912]
