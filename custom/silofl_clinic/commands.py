"""The commands of the clinic's wheel, which `silofl` finds by the entry point ``silofl.commands``."""

from collections.abc import Mapping

from silofl.command import Command

# Name -> the command; they stand beside `silofl predict`.
COMMANDS: Mapping[str, Command] = {
    "monitor": Command("silofl_clinic.monitor", "say whether a month's answers still look as in the model's own test"),
}
