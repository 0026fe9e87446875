"""NVFlare's relay, which passes messages between its sites and the server, and none from one site to another.

    python -m silofl.flare.relay -m KIT -s fed_relay.json --set secure_train=true

NVFlare 2.9's relay passes whatever one of its sites sends on to any other, in whose name the sender likes: a site asks
by itself that its message go by way of the server. A relay's kit starts this module in the place of NVFlare's own.
"""

import logging
import sys

from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey, MessagePropKey, ReturnCode
from nvflare.fuel.f3.cellnet.fqcn import FQCN, FqcnInfo
from nvflare.fuel.f3.cellnet.utils import make_reply
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.relay import relay

from silofl.flare.one_machine import refuse_second_machines

logger = logging.getLogger(__name__)


class GuardedCell(Cell):
    """A cell that refuses what `may_pass` does not know, from before it listens."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.core_cell.add_incoming_filter(channel="*", topic="*", cb=self._refuse_message)

    def _refuse_message(self, message: Message) -> Message | None:
        if may_pass(message, self.get_fqcn()):
            return None
        names = (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC, MessageHeaderKey.ORIGIN)
        found = (*map(message.get_header, names), message.get_header(MessageHeaderKey.DESTINATION))
        line = message.get_prop(MessagePropKey.ENDPOINT).name
        logger.warning("a message of %r was refused: channel %r, topic %r, from %r to %r", line, *found)
        return make_reply(ReturnCode.UNAUTHENTICATED, error="the relay passes on no such message")


def may_pass(message: Message, own: str) -> bool:
    """Return whether a relay handles, or passes on, a message.

    What comes on the server's line goes wherever it is to go. A site's own goes to the server alone, but for its
    goodbye to the relay. NVFlare has verified whose line it is, by the certificate.

    Args:
        own: The relay's name as a cell.
    """
    line = message.get_prop(MessagePropKey.ENDPOINT).name
    if line == FQCN.ROOT_SERVER:
        return True
    origin, destination = (message.get_header(key) for key in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION))
    if origin != line and not FQCN.is_ancestor(line, origin):
        return False
    kind = tuple(message.get_header(key) for key in (MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC))
    is_goodbye = destination == own and kind == (CellChannel.CELLNET, CellChannelTopic.Bye)
    return is_goodbye or FqcnInfo(destination).is_on_server


def main() -> int:
    """Run NVFlare's relay on a guarded cell until it is stopped; returns its exit code."""
    relay.Cell = GuardedCell
    refuse_second_machines()
    options = relay.parse_arguments()
    return MainProcessMonitor.run(main_func=relay.main, run_dir=options.workspace, args=options)


if __name__ == "__main__":
    sys.exit(main())
