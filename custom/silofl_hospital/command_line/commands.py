"""The commands of the hospital's wheel, which `silofl` finds by the entry point ``silofl.commands``."""

from collections.abc import Mapping

from silofl.command_line.command import Command, name_commands

HOSPITAL = {
    "import": ("site.import_data", "turn image folders or a public data set into sites, each with a dataset.json"),
    "site check": ("site.check_site", "check whether this site may join a study"),
    "site dossier": ("site.dossier", "answer what a privacy or security officer asks of a study at this site"),
    "site egress-check": ("site.egress_check", "check that the record of what left was not altered"),
    "site forget": ("site.forget", "delete what this site keeps of a study or a patient, never its data"),
    "site prune": ("site.prune", "delete job folders and full logs in this kit that are older than keep_days"),
}
SERVER = {"server check": ("site.check_server", "check whether this machine can serve its network")}
CLINIC = {
    "predict": ("inference.command", "label new images with a trained super model"),
    "home-statistics": ("inference.home_statistics", "fit a model with home statistics to a clinic's own images"),
    "evaluate": ("site.evaluate", "test a trained model on a site's labelled cases"),
}
ANYBODY = {
    "doctor": ("site.doctor", "print versions, machine and settings for a report of a fault, and no name"),
    "schema": ("site.schema", "print the JSON schema of study.yaml or site.yaml for an editor"),
}
# Whose commands -> name -> the command.
ROLES: Mapping[str, Mapping[str, Command]] = {
    "hospital, at its own site": name_commands("silofl_hospital", "hospital", HOSPITAL),
    "server of a network, at its machine": name_commands("silofl_hospital", "server", SERVER),
    "clinic, with a trained model": name_commands("silofl_hospital", "clinic", CLINIC),
    "anybody": name_commands("silofl_hospital", "hospital", ANYBODY),
}
