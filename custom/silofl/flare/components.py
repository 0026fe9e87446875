"""The executor and the controller that a job's configurations name: those of a paper, or the ones for any algorithm."""

from pathlib import Path
from typing import Any

from silofl.base.errors import ConfigError
from silofl.base.files import read_json, write_json
from silofl.study import Study

# Configuration -> the class that runs the study of any algorithm.
GENERIC = {
    "config_fed_client.json": "silofl.flare.executor.SiteExecutor",
    "config_fed_server.json": "silofl.flare.controller.RoundsController",
}
# Algorithm -> how its paper's classes begin, in the file of `silofl.flare` that has its name.
PAPERS = {"fedavg": "FedAvg", "harmofl": "HarmoFL", "fedsm": "FedSM", "adafed": "AdaFed"}
ROLES = {"config_fed_client.json": "Executor", "config_fed_server.json": "Controller"}


def find_component(file: str, algorithm: str) -> str:
    """Return the class that a configuration names for an algorithm.

    Args:
        file: ``config_fed_client.json`` or ``config_fed_server.json``.
        algorithm: The study's ``algorithm.name``.
    """
    # Only the published algorithms have classes of their own.
    if algorithm not in PAPERS:
        return GENERIC[file]
    return f"silofl.flare.{algorithm}.{PAPERS[algorithm]}{ROLES[file]}"


def list_components(file: str) -> list[str]:
    """Return all classes that a configuration may name for an algorithm, the generic one first."""
    return [GENERIC[file], *(find_component(file, algorithm) for algorithm in PAPERS)]


def check_algorithm(component: object, algorithm: str | None, study: Study) -> None:
    """Refuse a study of another algorithm than the one that an executor or a controller is named after.

    Args:
        component: The executor or controller.
        algorithm: Its algorithm; None for any.

    Raises:
        ConfigError: The study names another algorithm.
    """
    name = study.algorithm.name
    if algorithm in (None, name):
        return
    named = type(component).__name__
    file = next(file for file, role in ROLES.items() if named.endswith(role))
    raise ConfigError(_disagreement(f"{named} of {file}", algorithm, file, name))


def check_components(configurations: Path, algorithm: str) -> None:
    """Refuse a job whose configurations name the executor or controller of another algorithm than its study's.

    Args:
        configurations: The job's folder ``app/config``.
        algorithm: The ``algorithm.name`` of its study.

    Raises:
        ConfigError: They disagree, or a configuration cannot be read.
    """
    for file in GENERIC:
        papers = {find_component(file, paper): paper for paper in PAPERS if paper != algorithm}
        for entry in _list_entries(read_json(configurations / file)):
            if (path := entry.get("path")) in papers:
                raise ConfigError(_disagreement(f"{path} of {configurations / file}", papers[path], file, algorithm))


def name_components(configurations: Path, algorithm: str) -> None:
    """Have a job's configurations name the executor and the controller of an algorithm.

    A class of another package stays.
    """
    for file in GENERIC:
        content = read_json(configurations / file)
        for entry in _list_entries(content):
            if entry.get("path") in list_components(file):
                entry["path"] = find_component(file, algorithm)
        write_json(configurations / file, content)


def _disagreement(what: str, algorithm: str, file: str, name: str) -> str:
    return (
        f"{what} must have a study whose algorithm.name is {algorithm}, not {name}; name "
        f"{find_component(file, name)} there, or correct study.yaml"
    )


def _list_entries(configuration: dict[str, Any]) -> list[dict[str, Any]]:
    """Return where a configuration names executors and controllers."""
    executors: list[dict[str, Any]] = [entry["executor"] for entry in configuration.get("executors", ())]
    return [*executors, *configuration.get("workflows", [])]
