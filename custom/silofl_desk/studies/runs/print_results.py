"""What a run prints as it begins, and once it is finished: what joining gave each site, then its models' numbers."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from silofl.base.schema import read_file
from silofl.core.training_end import LEAST_RISE
from silofl.federation.ledger import read_ledger
from silofl.federation.results import Results
from silofl.inference.evaluations import FILE as EVALUATIONS
from silofl.inference.evaluations import Evaluations
from silofl.parts.load import list_outbound_payloads
from silofl.study import Study
from silofl_desk.report import sentences
from silofl_desk.report.evaluations_page import evaluations_section, list_chance
from silofl_desk.report.result_tables import operating_point_table, site_table
from silofl_hospital.report.page import print_blocks
from silofl_hospital.report.tables import MISSING, print_lines, print_table

WORDS = {"bad": "BAD", "warning": "CAUTION"}


def print_beginning(study: Study, sites: Sequence[str], console: Console) -> None:
    """Print who takes part in a simulation, and what its numbers do not stand for."""
    lines = [f"{study.name}: {len(sites)} sites take part: {', '.join(sites)}", *describe_end(study)]
    if any(payload.is_of_images for payload in list_outbound_payloads(study)):
        lines.append(
            "Note: a simulation has no minimum number of patients (min_patients = 0). In a real network sites with few "
            "patients do not share statistics."
        )
    print_lines([*lines, *(f"CAUTION  {sentence}" for sentence in study.cautions)], console)


def describe_end(study: Study) -> list[str]:
    """Return the sentence on what ends a training earlier than in its last round; none where nothing does."""
    if not study.ends_early:
        return []
    return [
        f"Training takes {study.length}. It ends when none of the last {study.patience} has raised the sites' "
        f"validation by more than {LEAST_RISE:g}; the line of each round says what it took, and the most that is left."
    ]


def print_results(results: Results, console: Console) -> None:
    """Print a run's status with its reasons, its model, its numbers, and what the list of facts states of it."""
    title = f"{results.status}  {results.study}"
    if results.algorithm:
        most = "at most " if results.ended_early else ""
        rounds = "1 round" if results.rounds == 1 else f"{results.rounds} rounds"
        title += f": {results.algorithm}, preset {results.preset}, seed {results.seed}, {most}{rounds}"
    lines = [title, *(f"  - {reason}" for reason in results.reasons)]
    if not results.algorithm:
        # Nothing else is known of a run that failed before its study was read.
        return print_lines(lines, console)
    if results.ended_early:
        lines.append(sentences.early_sentence(results))
    if results.model:
        lines.append(f"model: {sentences.describe_model(results)}")
    lines.append(f"metric: {results.metric or MISSING}")
    lead = sentences.lead_sentence(results)
    if lead:
        lines.append(f"{WORDS['warning']}  {lead}" if sentences.is_guessing(results) else lead)
    print_lines(lines, console)
    joining = sentences.joining_table(results)
    if joining:
        print_table(joining, console)
    # What a run lacks that goes on may still come.
    if results.is_finished:
        problems = sentences.describe_problems(results)
        problems += [("warning", caveat) for caveat in sentences.caveats(results)]
        print_lines([f"{WORDS[tone]}  {sentence}" for tone, sentence in problems], console)
    if results.sites:
        print_table(site_table(results), console)
    # A temperature changes no answer: the page has it.
    has_thresholds = any(point.thresholds for point in results.operating_points_by_site.values())
    points = operating_point_table(results) if has_thresholds else None
    if points:
        print_table(points, console)
        print_lines([sentences.OPERATING_POINTS], console)
    print_lines([*sentences.list_result_notes(results).values()], console)


def print_notes(run: Path, results: Results, console: Console) -> None:
    """Print what the ledger of a run notes for its lead, and what hospitals say of a model that was only tested."""
    ledger = read_ledger(run) or ()
    for record in ledger:
        for note in record.notes:
            print_lines([f"round {record.round}: {note}"], console)
    evaluations = read_file(Evaluations, run / EVALUATIONS)
    # Only a run that tests a finished model has evaluations.
    section = evaluations_section(evaluations)
    if evaluations and section:
        print_blocks(section.blocks, console)
        print_lines([f"{WORDS['warning']}  {sentence}" for sentence in list_chance(evaluations)], console)
    more = sentences.more_rounds_sentence(run, results, ledger)
    print_lines([more] if more else [], console)
