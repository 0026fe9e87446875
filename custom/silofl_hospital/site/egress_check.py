"""``silofl site egress-check``: whether the record of what left a site is as it was written."""

import argparse

from silofl.base.errors import ConfigError, ExitCode
from silofl.federation.egress_chain import check_chain
from silofl.federation.egress_log import FILE


def run(options: argparse.Namespace) -> int:
    """Print whether a record is whole, and the first fault where it is not; the exit code is 0 only without one."""
    path = options.file / FILE if options.file.is_dir() else options.file
    if not path.is_file():
        raise ConfigError(f"{path} is not there. Give {FILE} of a run, or the run's folder.")
    verdict = check_chain(path.read_bytes())
    numbers = {link.hash: link.number for link in verdict.links}
    faults = [verdict.fault] if verdict.fault else []
    if options.noted and options.noted not in numbers:
        faults.append(
            f"none of the {len(numbers)} sound records has the noted hash, {options.noted}: the end was cut off since, "
            "or the records were written anew"
        )
    if faults:
        print("\n".join(faults))
        return ExitCode.FAILED
    last = verdict.last
    print(f"{last.number} records, each as it was written, in their order; none is missing before the last one")
    if verdict.is_torn:
        # It is no fault, because a kill leaves it too.
        print("a further line without its end is no record: a kill cut it off before its answer left, or somebody did")
    print(f"last record: number {last.number}, hash {last.hash}")
    if options.noted:
        print(f"the noted hash is that of record {numbers[options.noted]}: up to there nothing was changed or cut off")
    else:
        print(
            "this cannot show whether records were cut off at the end, or all of them written anew: note the last hash "
            "at another place, and give it with --noted the next time"
        )
    return ExitCode.COMPLETE
