"""What a server can do to its lead's machine by the names of the files that it sends, by NVFlare's own commands."""

from types import SimpleNamespace

import pytest
from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api_spec import CommandContext
from nvflare.fuel.hci.client.api_status import APIStatus
from nvflare.fuel.hci.cmd_arg_utils import split_to_args
from nvflare.fuel.hci.proto import MetaKey, ProtoKey

from silofl.base.errors import TrainingError
from silofl_desk.flare.download import keep_downloads_inside

JOB = "3a4ab1f3-5838-4363-b0e7-49dce91e418a"


class Server:
    """The part of NVFlare's session that a download talks to: a server that names a transfer and a file as it likes."""

    def __init__(self, folder, transfer, name):
        self.folder, self.transfer, self.name = folder, transfer, name
        keep_downloads_inside()
        self.commands = file_transfer.FileTransferModule(str(folder), str(folder))
        self.fire_session_event = self.debug = lambda *said: None

    def download(self):
        return self.commands.pull_folder(["download_job", JOB], self.context())

    def context(self):
        context = CommandContext()
        context.set_api(self)
        context.set_command_entry(SimpleNamespace(full_command_name=lambda: "download_job", usage=""))
        return context

    def do_command(self, command):
        return self.commands.pull_binary_file(split_to_args(command), self.context())

    def server_execute(self, command, cmd_ctx=None):
        if cmd_ctx is None:
            meta = {MetaKey.FILES: [[self.name, "ref"]], MetaKey.TX_ID: self.transfer, MetaKey.SOURCE_FQCN: "server"}
            return {ProtoKey.STATUS: APIStatus.SUCCESS, ProtoKey.META: meta}
        cmd_ctx.get_requester().send_request(self, None, cmd_ctx)
        return cmd_ctx.get_command_result()

    def download_file(self, source, ref, path):
        """As NVFlare's, which makes the file's folder and moves over what is there."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("from the server")
        return 15


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setattr(file_transfer, "FileTransferModule", file_transfer.FileTransferModule)
    (tmp_path / "transfer").mkdir()
    (tmp_path / "start").write_text("own")
    return lambda transfer, name: Server(tmp_path / "transfer", transfer, name)


def test_a_file_of_a_job_lies_in_its_folder(server, tmp_path):
    assert server("T1", "workspace/results.json").download()[ProtoKey.STATUS] == APIStatus.SUCCESS
    assert (tmp_path / "transfer" / JOB / "workspace" / "results.json").read_text() == "from the server"


@pytest.mark.parametrize(
    ("transfer", "name"),
    [("T1", "../../start"), ("T1", "{}/start"), ("T1", "a/../../../start"), ("x/../../..", "start")],
)
def test_a_file_that_the_server_names_elsewhere_is_refused(server, tmp_path, transfer, name):
    with pytest.raises(TrainingError, match="a file outside the job's folder"):
        server(transfer, name.format(tmp_path)).download()
    assert (tmp_path / "start").read_text() == "own"
