"""The commands of the clinic's wheel, which `silofl` finds by the entry point ``silofl.commands``."""

from collections.abc import Mapping

from silofl.command_line.command import Command

PURPOSES = {
    "receive": "take exams that an archive or a scanner sends, by C-STORE",
    "fetch": "fetch the exams of a list from the archive, by C-MOVE",
    "serve": "answer each new exam with a trained model, and send answer and report to the archive",
    "monitor": "say whether a month's answers still look as in the model's own test",
}
# The help lists commands by who gives them.
ROLES: Mapping[str, Mapping[str, Command]] = {
    "clinic, with its archive": {
        name: Command(f"silofl_clinic.{name}", purpose, f"silofl_clinic.command_line.clinic:add_{name}")
        for name, purpose in PURPOSES.items()
    }
}
