"""``silofl site egress-check``: whether the record of what left a site is as it was written."""

import argparse

from silofl.base.errors import ConfigError, ExitCode
from silofl.federation.egress_chain import Verdict, check_chain
from silofl.federation.egress_log import FILE


def run(options: argparse.Namespace) -> int:
    """Print whether a record is whole, and the first fault where it is not; the exit code is 0 only without one."""
    path = options.file / FILE if options.file.is_dir() else options.file
    if not path.is_file():
        raise ConfigError(f"FILE must be a record of what left a site, {FILE} of a run, not {path}, which is no file")
    verdict = check_chain(path.read_bytes())
    faults = [
        fault for fault in (verdict.fault, options.noted and _explain_missing_hash(options.noted, verdict)) if fault
    ]
    print("\n".join(faults or _findings(verdict, options.noted)))
    return ExitCode.FAILED if faults else ExitCode.COMPLETE


def _explain_missing_hash(noted: str, verdict: Verdict) -> str | None:
    """Return that no sound record has a hash that was noted; None where one has."""
    if any(link.hash == noted for link in verdict.links):
        return None
    return (
        f"a record must have the noted hash, {noted}; none of the {len(verdict.links)} sound ones has: the end was cut "
        "off since, or the records were written anew"
    )


def _findings(verdict: Verdict, noted: str | None) -> list[str]:
    last = verdict.last
    lines = [f"{last.number} records, each as it was written, in their order; none is missing before the last one"]
    if verdict.is_torn:
        lines.append(
            "a further line without its end is no record: a kill cut it off before its answer left, or somebody has "
            "since"
        )
    lines.append(f"last record: number {last.number}, hash {last.hash}")
    if noted:
        number = next(link.number for link in verdict.links if link.hash == noted)
        return [*lines, f"the noted hash is that of record {number}: up to there nothing was cut off or written anew"]
    return [
        *lines,
        "this cannot show whether records were cut off at the end, or all of them written anew: note the last hash at "
        "another place, and give it with --noted the next time",
    ]
