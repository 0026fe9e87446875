"""``silofl estimate``: the traffic, disk, memory and time that a job will need, and the timeout that follows."""

import argparse
import json
import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.options import make_console
from silofl.data.site_data import SiteData
from silofl.federation import needs
from silofl.federation.server import ServerRounds
from silofl.federation.step_cost import STEPS, StepCost, measure_cost
from silofl.flare.line import parse_bandwidth
from silofl.models.networks import check_network
from silofl.models.weights import read_weights
from silofl.parts.guard import goes_on, list_local_studies
from silofl.parts.part import AFTER
from silofl.parts.task import TRAIN, Exchange
from silofl.parts.work import Work
from silofl.report.tables import format_duration, print_lines
from silofl.study import Study
from silofl.training.device import choose_device
from silofl.training.local_model import own_rounds
from silofl.training.private import compute_study_epsilon, spent_in_round
from silofl_desk.options import read_changes
from silofl_desk.studies.progress import QUIET_S, repeat_in_background
from silofl_desk.studies.random_examples import has_own_size, image_shape, prepared_shape, random_part, random_volume
from silofl_desk.studies.simulation import changed_study, copy_job, study_file
from silofl_desk.studies.traffic import Traffic, count_traffic

# Other programs, slower machines and the reading of data in the first round.
SAFETY = 3
LEAST_TIMEOUT_S = 600
# What NVFlare takes in a training process beside what this one has loaded too; measured.
NVFLARE_BYTES = 100 << 20


@dataclass(frozen=True)
class Setting:
    """The conditions for which a run is estimated.

    Attributes:
        sites: Sites that take part in every round.
        bandwidth: Bits a second of the server's line, which the sites share; no site's line is slower.
        examples: Training examples of the largest site.
        seconds_per_step: Of the slowest site; measured on this machine where None.
        image_size: (H, W) of the sites' images, or (X, Y, Z), for studies that leave it open or learn from patches.
        patients: In training at a site, for differential privacy; as many as examples where None.
    """

    sites: int
    bandwidth: float
    examples: int = 500
    seconds_per_step: float | None = None
    image_size: tuple[int, ...] | None = None
    patients: int | None = None


@dataclass(frozen=True)
class JobEstimate:
    """The needs of a run, in bytes and seconds.

    Attributes:
        study: The study's name.
        digest: Of its settings; hospitals compare it.
        num_rounds: All rounds.
        ends_early: Whether they are only the most.
        sites: Sites that take part.
        examples: Training examples of the largest site.
        image_shape: (C, *spatial) of the examples, or patches.
        volume_shape: (C, X, Y, Z) of a prepared volume, which is evaluated as a whole; None in a study without patches.
        is_size_assumed: Whether neither the study nor the setting says how large images, or volumes, are.
        traffic: Bytes for each site.
        server_memory_bytes: Memory of the server's processes, roughly.
        server_disk_bytes: Files of a run at the server, roughly.
        site_disk_bytes: Files of a run at a site, without the cache of its images.
        site_memory_bytes: The most that a few training steps, or a look at a whole volume, took, of the GPU where they
            ran on one, else of a site's training process; None where no step was measured.
        is_on_gpu: Whether it is memory of a GPU.
        seconds_per_step: Of one training step, with all models that train in it.
        guard_share: Share of it that each site's own model takes; None without one, or where no step was measured.
        own_seconds: The most that each site's own model learns after the federation; None where that share is.
        guard_disk_bytes: Of a site's disk, what its own model takes.
        training_seconds: Of a round at the largest site.
        round_seconds: Of the first round in a network, whose sites train at once and share the server's line.
        transfer_seconds: Of the entire run, all sites' messages one after the other on the server's line.
        hours: Of the entire run in a network, whose sites train at once.
        alone_hours: Of its training in one process, where sites take turns, as many as the largest one's examples each.
        task_timeout_s: What federation.task_timeout_s should be.
        saved_bytes: On a site's line in the entire run, what frozen parameters save.
        normalizations: Of the own models of each site, which are two where the normalisation is free.
        epsilon: What all rounds spend at the site, where the study has differential privacy.
    """

    study: str
    digest: str
    num_rounds: int
    ends_early: bool
    sites: int
    examples: int
    image_shape: tuple[int, ...]
    volume_shape: tuple[int, ...] | None
    is_size_assumed: bool
    traffic: Traffic
    server_memory_bytes: int
    server_disk_bytes: int
    site_disk_bytes: int
    site_memory_bytes: int | None
    is_on_gpu: bool
    seconds_per_step: float
    guard_share: float | None
    own_seconds: float | None
    guard_disk_bytes: int
    training_seconds: float
    round_seconds: float
    transfer_seconds: float
    hours: float
    alone_hours: float
    task_timeout_s: int
    saved_bytes: int = 0
    normalizations: tuple[str, ...] = ()
    epsilon: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rounds = zip(self.traffic.bytes_to, self.traffic.bytes_from, strict=True)
        by_round = [{"round": n, "bytes_to": to, "bytes_from": back} for n, (to, back) in enumerate(rounds, start=1)]
        plain = {key: value for key, value in asdict(self).items() if key not in ("traffic", "task_timeout_s")}
        whole = {"finish_bytes_to": self.traffic.finish_bytes_to, "bytes_per_site": self.traffic.site_bytes}
        return plain | {"rounds": by_round} | whole | {"federation": {"task_timeout_s": self.task_timeout_s}}


def run(options: argparse.Namespace) -> int:
    """Print an estimate and, with ``--write``, write the job with the new timeout."""
    setting = Setting(
        sites=options.sites,
        bandwidth=parse_bandwidth(options.bandwidth),
        examples=options.examples,
        seconds_per_step=options.seconds_per_step,
        image_size=parse_size(options.image_size) if options.image_size else None,
        patients=options.patients,
    )
    changes = read_changes(options)
    study = changed_study(options.job, changes)
    start = read_weights(study_file(options.job).with_name(study.model.weights), study) if study.model.weights else None
    console, began = make_console(options), time.monotonic()
    if options.write and options.write.exists():
        raise ConfigError(f"--write must name a new folder, not {options.write}, which exists; name another")

    def show_life() -> None:
        console.print(f"measuring a training step: {format_duration(time.monotonic() - began)} so far")

    with repeat_in_background(show_life, QUIET_S):
        found = estimate(study, setting)
    timeout = {"federation.task_timeout_s": found.task_timeout_s}
    written = copy_job(options.job, options.write, {**changes, **timeout}) if options.write else None
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        print_estimate(found, console)
    print_lines([*([start.sentence] if start else []), *(f"CAUTION  {one}" for one in study.cautions)], console)
    if written:
        sentence = f"{options.write} has the new timeout, digest {written.digest}; its study.yaml has lost its comments"
        console.print(sentence, markup=False)
    return ExitCode.COMPLETE


def parse_size(text: str) -> tuple[int, ...]:
    """Return height and width of a text as ``96x128``, or X, Y and Z of one as ``96x96x32``.

    Raises:
        ConfigError: It is not two or three whole numbers above 0.
    """
    sides = tuple(int(side) for side in text.split("x")) if re.fullmatch(r"\d+(x\d+){1,2}", text) else (0,)
    if not all(sides):
        raise ConfigError(
            "--image-size must be HxW in pixels, as 96x128, or XxYxZ of volumes, as 96x96x32 (in mm if the study has "
            f"Spacing, else in voxels), not {quote_value(text)}"
        )
    return sides


def estimate(study: Study, setting: Setting) -> JobEstimate:
    """Estimate the needs of a study.

    Raises:
        ConfigError: The setting is not possible, or the study does not allow so many sites.
    """
    _check_setting(study, setting)
    shape = image_shape(study, setting.image_size)
    traffic = count_traffic(study, setting.sites, shape)
    volume = prepared_shape(study, setting.image_size) if study.data.patches else None
    cost = None if setting.seconds_per_step else _measure_cost(study, shape, volume, setting.sites)
    bare = study.model_copy(update={"guard": False})
    unfrozen = count_traffic(study.unfrozen, setting.sites, shape) if study.training.frozen else traffic
    guard_share = None
    if cost is not None and study.is_guarded:
        guard_share = max(0.0, 1 - _measure_cost(bare, shape, None, setting.sites).seconds / cost.seconds)
    # Where each site trains alone, its whole training goes on.
    own_share = 1.0 if study.recipe.stays_home == "everything" and goes_on(study) else guard_share
    # A time that is given is of a step with all that goes with it.
    cost_of_step = cost or StepCost(float(setting.seconds_per_step or 0), 0, 0)
    is_on_gpu = cost is not None and choose_device(study.device).type == "cuda"
    training = cost_of_step.of_round(study.steps_an_epoch(setting.examples), _count_passes(study, setting.sites))
    transfer = setting.sites * traffic.site_bytes * 8 / setting.bandwidth
    rounds = zip(traffic.bytes_to, traffic.bytes_from, strict=True)
    largest = max([to + back for to, back in rounds] + [traffic.finish_bytes_to + traffic.finish_bytes_from])
    first = sum(traffic.bytes_to[:1]) + sum(traffic.bytes_from[:1])
    # A run that may end early may do so as soon as it has had patience after its first round.
    end = min(study.training_rounds, 1 + study.patience) if study.ends_early else study.training_rounds
    # At worst the messages of all other sites stand before the last one's on the server's line.
    slowest = training + setting.sites * largest * 8 / setting.bandwidth
    return JobEstimate(
        study=study.name,
        digest=study.digest,
        num_rounds=study.total_rounds,
        ends_early=study.ends_early,
        sites=setting.sites,
        examples=setting.examples,
        image_shape=shape,
        volume_shape=volume,
        is_size_assumed=setting.image_size is None and not has_own_size(study),
        traffic=traffic,
        server_memory_bytes=needs.server_memory_bytes(study, setting.sites),
        server_disk_bytes=needs.server_disk_bytes(study, setting.sites),
        site_disk_bytes=needs.site_disk_bytes(study, setting.sites),
        site_memory_bytes=None if cost is None else cost.peak_bytes + (0 if is_on_gpu else NVFLARE_BYTES),
        is_on_gpu=is_on_gpu,
        seconds_per_step=cost_of_step.seconds,
        guard_share=guard_share,
        own_seconds=None if own_share is None else own_share * training * own_rounds(study, end),
        guard_disk_bytes=needs.site_disk_bytes(study, setting.sites) - needs.site_disk_bytes(bare, setting.sites),
        training_seconds=training,
        round_seconds=training + setting.sites * first * 8 / setting.bandwidth,
        transfer_seconds=transfer,
        hours=(transfer + training * study.total_rounds) / 3600,
        alone_hours=setting.sites * training * study.total_rounds / 3600,
        task_timeout_s=max(LEAST_TIMEOUT_S, math.ceil(SAFETY * slowest)),
        saved_bytes=unfrozen.site_bytes - traffic.site_bytes,
        normalizations=tuple(local.model.normalization for local in list_local_studies(study).values()),
        epsilon=_estimate_epsilon(study, setting) if study.is_private else None,
    )


def estimate_training(study: Study, shape: tuple[int, ...], examples: Sequence[int]) -> float:
    """Return the seconds of all rounds' training where sites take turns, by a few steps that are measured here.

    Args:
        shape: (C, *spatial) of what its network learns from.
        examples: Training examples of each site.

    Raises:
        ConfigError: As `check_network` has it.
    """
    cost, passes = _measure_cost(study, shape, None, len(examples)), _count_passes(study, len(examples))
    return study.total_rounds * sum(cost.of_round(study.steps_an_epoch(number), passes) for number in examples)


def print_estimate(found: JobEstimate, console: Console) -> None:
    """Print an estimate as two tables."""
    traffic, mib = found.traffic, 1 << 20
    table = Table("round", "MiB to a site", "MiB from a site", box=SIMPLE_HEAD)
    by_round = zip(range(1, len(traffic.bytes_to) + 1), traffic.bytes_to, traffic.bytes_from, strict=True)
    for (to, back), group in groupby(by_round, key=lambda row: row[1:]):
        numbers = [row[0] for row in group]
        name = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        table.add_row(name, f"{to / mib:.2f}", f"{back / mib:.2f}")
    back = f"{traffic.finish_bytes_from / mib:.2f}" if traffic.finish_bytes_from else "-"
    table.add_row("end", f"{traffic.finish_bytes_to / mib:.2f}", back)
    console.print(table)
    assumed = ", assumed: give --image-size" if found.is_size_assumed else ""
    size, volume = ("x".join(map(str, shape or ())) for shape in (found.image_shape, found.volume_shape))
    size += f" in patches of volumes of {volume}{assumed}" if volume else assumed
    line, training = map(format_duration, (found.transfer_seconds, found.training_seconds))
    hours, alone = (format_duration(3600 * hours) for hours in (found.hours, found.alone_hours))
    a_round, alone_round = map(format_duration, (found.round_seconds, found.sites * found.training_seconds))
    whole = f"at most {found.num_rounds} rounds" if found.ends_early else "the whole run"
    facts = {
        "examples at the largest site": f"{found.examples}, of size {size}",
        "line of each site": f"{traffic.site_bytes / mib:.1f} MiB in {whole}",
        **_describe_saving(found),
        "line of the server": f"{found.sites * traffic.site_bytes / mib:.1f} MiB, {line}",
        "memory of the server": f"about {found.server_memory_bytes / needs.GIB:.1f} GiB",
        "disk of the server": f"about {_format_size(found.server_disk_bytes)}",
        "disk of each site": f"about {_format_size(found.site_disk_bytes)}, and its images' cache",
        **_describe_site_memory(found),
        "training of a round": f"{training} per site, {found.seconds_per_step:.3f} s a step",
        **_describe_guard(found),
        **_describe_privacy(found),
        "a round": f"about {a_round} in a network, where sites train at the same time; about {alone_round} by simulate "
        "--alone, where they take turns. Both without validation and reading of data",
        whole: f"about {hours} in a network; about {alone} by simulate --alone",
        "federation.task_timeout_s": f"{found.task_timeout_s}",
        "digest of the study as it is": found.digest,
    }
    for name, value in facts.items():
        console.print(f"{name}: {value}", markup=False)


def _describe_site_memory(found: JobEstimate) -> dict[str, str]:
    if found.site_memory_bytes is None:
        return {}
    what = "GPU memory of a site" if found.is_on_gpu else "memory of a site"
    how = "a few steps" + (" and the evaluation of a volume" if found.volume_shape else "")
    return {what: f"about {found.site_memory_bytes / needs.GIB:.1f} GiB, measured with {how}"}


def _describe_guard(found: JobEstimate) -> dict[str, str]:
    """Say what each site's own model costs; nothing without one."""
    if not found.guard_disk_bytes and found.own_seconds is None:
        return {}
    part = "" if found.guard_share is None else f"{found.guard_share:.0%} of the training and "
    own = found.own_seconds
    after = "" if own is None else f", and at most {format_duration(own)} per site after the rounds"
    cost = f"{part}{_format_size(found.guard_disk_bytes)} of its disk{after}"
    what = "each site's own model, to compare with"
    if len(found.normalizations) > 1:
        what = f"each site's own models ({' and '.join(found.normalizations)} normalisation), to compare with"
    return {what: f"{cost}; --set guard=false leaves it out"}


def _format_size(size: float) -> str:
    return f"{size / needs.GIB:.1f} GiB" if size >= needs.GIB else f"{size / (1 << 20):.1f} MiB"


def _describe_saving(found: JobEstimate) -> dict[str, str]:
    """Say what frozen parameters save; nothing without any."""
    if not found.saved_bytes:
        return {}
    saved, whole = (size / (1 << 20) for size in (found.saved_bytes, found.saved_bytes + found.traffic.site_bytes))
    return {"frozen parameters": f"save {saved:.1f} MiB of {whole:.1f} MiB on the line of each site"}


def _describe_privacy(found: JobEstimate) -> dict[str, str]:
    if found.epsilon is None:
        return {}
    return {"differential privacy": f"epsilon {found.epsilon:.3g} in the whole run; more at a site with fewer people"}


def _estimate_epsilon(study: Study, setting: Setting) -> float:
    is_by_patient = study.privacy.dp_sgd.unit == "patient" and setting.patients is not None
    units = setting.patients if is_by_patient else setting.examples
    return compute_study_epsilon(study, spent_in_round(study, units, study.steps_an_epoch(setting.examples)))


def _check_setting(study: Study, setting: Setting) -> None:
    if setting.seconds_per_step is not None and not 0 < setting.seconds_per_step < math.inf:
        raise ConfigError(f"--seconds-per-step must be a number above 0, not {setting.seconds_per_step}")
    if setting.image_size and len(setting.image_size) != study.data.dimensions:
        is_resampled = any(one.name == "Spacing" for one in study.data.volume_transforms)
        unit = "pixels" if study.data.dimensions == 2 else "mm" if is_resampled else "voxels"
        raise ConfigError(
            f"--image-size must have {study.data.dimensions} sides, in {unit}, as many as data.dimensions, not "
            f"{len(setting.image_size)}"
        )
    if setting.patients is not None and (not study.is_private or setting.patients > setting.examples):
        raise ConfigError(
            f"--patients must go with privacy.dp_sgd and be at most --examples, {setting.examples}, not "
            f"{setting.patients}; correct it, or leave it out"
        )
    for key, wanted in (("min_sites", study.federation.min_sites), ("sites", study.federation.num_sites or 1)):
        if wanted > setting.sites:
            raise ConfigError(f"--sites must be at least federation.{key}, {wanted}, not {setting.sites}")


def _count_passes(study: Study, sites: int) -> int:
    """Return a round's passes over the data; a further exchange of a part counts like one of all models."""
    server = ServerRounds.start(study, "estimate", needs.site_names(sites), {})
    return study.training.local_epochs * (1 + len(server.asks(AFTER, 1)))


def _measure_cost(study: Study, shape: tuple[int, ...], volume: tuple[int, ...] | None, sites: int) -> StepCost:
    """Measure a step on random examples, with the models that the first round trains, and a look at a whole volume."""
    check_network(study, shape)
    names = needs.site_names(sites)
    task = ServerRounds.start(study, "estimate", names, {}).task(names[0], Exchange(TRAIN, 1))
    part = random_part(study, shape, STEPS * study.training.batch_size)
    # Without validation data no site trains a model of its own.
    data = SiteData(part, part.select_rows([0]), part.select_rows([]))
    work = Work(names[0], study, data, task, choose_device(study.device))
    return measure_cost(work, random_volume(study, volume) if volume else None)
