"""A job's result as it comes to its lead's machine: into the folder of the download, and nowhere else.

NVFlare 2.9 writes a file to wherever the server's name of it leads, over what is there.
"""

from pathlib import PurePath
from typing import Any

from nvflare.fuel.hci.client import file_transfer
from nvflare.fuel.hci.client.api_spec import CommandContext

from silofl.base.errors import TrainingError, quote_value


class Download(file_transfer.FileTransferModule):
    """NVFlare's commands that bring files, with names that stay in one folder."""

    def pull_binary_file(self, args: list[str], ctx: CommandContext) -> dict[str, Any]:
        """Fetch a file.

        Raises:
            TrainingError: The server names one elsewhere.
        """
        # NVFlare's order: command, source, transaction, reference, folder, file.
        check_inside(args[5])
        reply: dict[str, Any] = super().pull_binary_file(args, ctx)
        return reply

    def _tx_path(self, tx_id: str, folder_name: str) -> str:
        # Of this folder NVFlare deletes what a failed download has left.
        check_inside(f"{folder_name}__{tx_id}")
        return str(super()._tx_path(tx_id, folder_name))


def check_inside(name: str) -> None:
    """Refuse the name of a file that does not lie below the folder that it is put into.

    Raises:
        TrainingError: It is absolute, or leads upwards.
    """
    path = PurePath(name)
    if path.is_absolute() or ".." in path.parts:
        raise TrainingError(
            f"the server names {quote_value(name)}, a file outside the job's folder, and nothing more was downloaded; "
            "ask the server's operator"
        )


def keep_downloads_inside() -> None:
    """Have NVFlare's sessions of people that begin from now on use `Download`."""
    # NVFlare's session takes the class from its module when it begins.
    file_transfer.FileTransferModule = Download
