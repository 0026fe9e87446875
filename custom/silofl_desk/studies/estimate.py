"""``silofl estimate``: the bytes that a job will send by its declared shapes; hours and memory a rehearsal measures."""

import argparse
import json
import re
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from silofl.base.errors import ConfigError, ExitCode, quote_value
from silofl.base.options import make_console
from silofl.study import Study
from silofl.training.private import compute_study_epsilon, spent_in_round
from silofl_desk.options import read_changes
from silofl_desk.studies.declared_shapes import has_own_size, image_shape
from silofl_desk.studies.simulation import changed_study
from silofl_desk.studies.traffic import Traffic, count_traffic
from silofl_hospital.report.tables import print_lines

MIB = 1 << 20


@dataclass(frozen=True)
class Setting:
    """The conditions for which a run is estimated.

    Attributes:
        sites: Sites that take part in every round.
        examples: Training examples of the largest site, for differential privacy.
        image_size: (H, W) of the sites' images, or (X, Y, Z), for studies that leave it open or learn from patches.
        patients: In training at a site, for differential privacy; as many as examples where None.
    """

    sites: int
    examples: int = 500
    image_size: tuple[int, ...] | None = None
    patients: int | None = None


@dataclass(frozen=True)
class JobEstimate:
    """The bytes of a run.

    Attributes:
        study: The study's name.
        digest: Of its settings; hospitals compare it.
        num_rounds: All rounds.
        sites: Sites that take part.
        image_shape: (C, *spatial) of the examples, or patches.
        is_size_assumed: Whether neither the study nor the setting says how large images are.
        traffic: Bytes for each site.
        epsilon: What all rounds spend at the site, where the study has differential privacy.
    """

    study: str
    digest: str
    num_rounds: int
    sites: int
    image_shape: tuple[int, ...]
    is_size_assumed: bool
    traffic: Traffic
    epsilon: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        rounds = zip(self.traffic.bytes_to, self.traffic.bytes_from, strict=True)
        plain = {key: value for key, value in vars(self).items() if key != "traffic"}
        plain["rounds"] = [{"round": n, "bytes_to": to, "bytes_from": back} for n, (to, back) in enumerate(rounds, 1)]
        plain["finish_bytes_to"] = self.traffic.finish_bytes_to
        plain["bytes_per_site"] = self.traffic.site_bytes
        return plain


def run(options: argparse.Namespace) -> int:
    """Print an estimate."""
    image_size = parse_size(options.image_size) if options.image_size else None
    setting = Setting(options.sites, options.examples, image_size, options.patients)
    study = changed_study(options.job, read_changes(options))
    console = make_console(options)
    found = estimate(study, setting)
    if options.json:
        print(json.dumps(found.as_dict(), indent=1))
    else:
        print_estimate(found, console)
    print_lines([f"CAUTION  {one}" for one in study.cautions], console)
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
    """Count the bytes of a study.

    Raises:
        ConfigError: The setting is not possible, or the study does not allow so many sites.
    """
    _check_setting(study, setting)
    shape = image_shape(study, setting.image_size)
    traffic = count_traffic(study, setting.sites, shape)
    return JobEstimate(
        study=study.name,
        digest=study.digest,
        num_rounds=study.total_rounds,
        sites=setting.sites,
        image_shape=shape,
        is_size_assumed=setting.image_size is None and not study.data.patches and not has_own_size(study),
        traffic=traffic,
        epsilon=_estimate_epsilon(study, setting) if study.is_private else None,
    )


def print_estimate(found: JobEstimate, console: Console) -> None:
    """Print an estimate as a table of rounds and lines."""
    traffic = found.traffic
    table = Table("round", "MiB to a site", "MiB from a site", box=SIMPLE_HEAD)
    by_round = zip(range(1, len(traffic.bytes_to) + 1), traffic.bytes_to, traffic.bytes_from, strict=True)
    for (to, back), group in groupby(by_round, key=lambda row: row[1:]):
        numbers = [row[0] for row in group]
        name = f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        table.add_row(name, f"{to / MIB:.2f}", f"{back / MIB:.2f}")
    back = f"{traffic.finish_bytes_from / MIB:.2f}" if traffic.finish_bytes_from else "-"
    table.add_row("end", f"{traffic.finish_bytes_to / MIB:.2f}", back)
    console.print(table)
    assumed = ", assumed: give --image-size" if found.is_size_assumed else ""
    facts = {
        "size of an example": "x".join(map(str, found.image_shape)) + assumed,
        "line of each site": f"{traffic.site_bytes / MIB:.1f} MiB in {found.num_rounds} rounds",
    }
    facts["line of the server"] = f"{found.sites * traffic.site_bytes / MIB:.1f} MiB"
    if found.epsilon is not None:
        spent = f"epsilon {found.epsilon:.3g} in the whole run; more at a site with fewer people"
        facts["differential privacy"] = spent
    facts["hours and memory"] = "silofl run --rehearse measures them at the hospitals"
    facts["digest of the study as it is"] = found.digest
    for name, value in facts.items():
        console.print(f"{name}: {value}", markup=False)


def _estimate_epsilon(study: Study, setting: Setting) -> float:
    is_by_patient = study.privacy.dp_sgd.unit == "patient" and setting.patients is not None
    units = setting.patients if is_by_patient else setting.examples
    return compute_study_epsilon(study, spent_in_round(study, units, study.steps_an_epoch(setting.examples)))


def _check_setting(study: Study, setting: Setting) -> None:
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
