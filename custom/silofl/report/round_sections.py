"""The sections of a run's page on its rounds: training, traffic, who took part, and who listens to whom."""

from collections.abc import Sequence

from silofl.federation.ledger import Round
from silofl.report.page import (
    Blocks,
    Heading,
    HeatCell,
    HeatRow,
    HeatTable,
    PageSection,
    Picture,
    Table,
    Text,
    make_items,
    make_note,
    make_picture,
    make_section,
)
from silofl.report.round_tables import participation_table, traffic_table
from silofl.report.rounds import curve_images, traffic_image
from silofl.report.run_records import RunRecords
from silofl.report.sentences import list_incidents
from silofl.report.tables import format_number
from silofl.report.weights_map import history_sentence, weights_image

NO_ROUND = Text("No round has finished.")
PARTICIPATION_NOTE = (
    "Rounds in which the server asked the site, in which its update was mixed, and in which it was not."
)


def training_section(run: RunRecords) -> PageSection:
    """Return the section of the curves by round."""
    curves = [Picture(image) for image in curve_images(run)]
    return make_section("training", "Training", "Training", curves or NO_ROUND)


def traffic_section(run: RunRecords) -> PageSection:
    """Return the section on bytes and seconds."""
    if not run.ledger:
        return make_section("traffic", "Traffic", "Traffic and time", NO_ROUND)
    table, image = traffic_table(run.ledger, run.sites), traffic_image(run)
    return make_section("traffic", "Traffic", "Traffic and time", Table(table, ""), make_picture(image))


def sites_section(run: RunRecords) -> PageSection:
    """Return the section on which sites were asked and answered, and on what happened else."""
    incidents = list_incidents(run.ledger)
    took_part = [Table(participation_table(run.ledger, run.sites), ""), make_note(PARTICIPATION_NOTE)]
    return make_section(
        "sites",
        "Who took part",
        "Who took part",
        took_part if run.ledger else NO_ROUND,
        [Heading("What else happened, and why"), make_items(incidents)] if incidents else None,
    )


def weights_section(run: RunRecords) -> PageSection:
    """Return the section on the weights between sites."""
    return make_section("weights", "Weights", "Who listens to whom", _weight_blocks(run))


def _weight_blocks(run: RunRecords) -> Blocks:
    """Show the weights that statistics gave, otherwise those of the last round."""
    if run.site_weights:
        note = (
            f"{history_sentence(run.site_weights)} In a round without some sites, the others share their weight. For "
            "this each site sent these statistics, and no image."
        )
        return [Picture(weights_image(run.site_weights[-1])), make_note(note)]
    if run.results.recipe_value("stays_home") == "everything":
        return [Text("No model is mixed: each site trains alone.")]
    table = weights_table(run.ledger)
    if table is None:
        return [NO_ROUND]
    note = f"How much each site's update counts in round {run.ledger[-1].round}, the last: a row sums to 1."
    found = run.results.super_model
    of_models = " These are the weights of the personalised models." if found and found.models else ""
    return [table, make_note(note + of_models)]


def weights_table(ledger: Sequence[Round]) -> HeatTable | None:
    """Return the weights of the last round; equal rows become one, ``every site``; None before the first round."""
    if not ledger or not ledger[-1].weights:
        return None
    weights = ledger[-1].weights
    columns = list(next(iter(weights.values())))
    rows = [HeatRow(listener, [_weight_cell(row.get(site)) for site in columns]) for listener, row in weights.items()]
    is_shared = all(row == next(iter(weights.values())) for row in weights.values())
    return HeatTable("listener", columns, [HeatRow("every site", rows[0].cells)] if is_shared else rows)


def _weight_cell(weight: float | None) -> HeatCell:
    return HeatCell(format_number(weight), weight)
