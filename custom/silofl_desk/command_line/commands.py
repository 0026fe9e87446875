"""The commands of the desk's wheel, which `silofl` finds by the entry point ``silofl.commands``."""

from collections.abc import Mapping

from silofl.command_line.command import Command, name_commands

RESEARCHER = {
    "demo": ("studies.comparisons.demo", "train on simulated hospitals and write a report"),
    "new-study": ("studies.plans.new_study", "write a job for your own data, from the bundled job that suits them"),
    "survey": ("studies.plans.survey", "count what hospitals' data hold, and measure size, spacing and CT values"),
    "tune": (
        "studies.comparisons.tune",
        "choose learning rate and normalisation on validation data, by a search",
    ),
    "pretrain": ("studies.runs.pretrain", "train a model on pooled data, for AdaFed (simulation only)"),
    "simulate": ("studies.runs.simulate", "run a job with all its sites on this machine"),
    "prepare": ("studies.runs.prepare", "prepare a workspace of nvflare simulator for a job"),
    "resume": ("studies.runs.resume", "continue an interrupted simulation"),
    "compare": ("studies.comparisons.compare", "run jobs and methods with several seeds and print one table"),
    "cross-test": ("studies.comparisons.cross_test", "test each site's model of a run on every site's test data"),
    "report": ("studies.comparisons.comparison_page", "write report.html of one run, or compare several"),
    "export": ("inference.export", "write a super model as a MONAI bundle, which PyTorch loads without SiloFL"),
}
LEAD = {
    "estimate": ("studies.plans.estimate", "count the bytes that a job sends by its declared shapes"),
    "evaluation-job": ("studies.network.evaluation_job", "write the job that tests a trained model at hospitals"),
    "withdraw": ("studies.network.withdraw", "sign the list of withdrawn models, which predict reads"),
    "run": ("studies.network.run", "run a job on a network of hospitals as its study lead"),
    "watch": ("studies.network.watch", "follow a job on a network, as the lead who submitted it"),
    "continue": ("studies.network.continue_run", "continue a run that was stopped on a network"),
}
# Whose commands -> name -> the command.
ROLES: Mapping[str, Mapping[str, Command]] = {
    "researcher, on this machine": name_commands("silofl_desk", "researcher", RESEARCHER),
    "study lead, on a network of hospitals": name_commands("silofl_desk", "lead", LEAD),
}
