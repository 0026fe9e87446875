"""A check of the hospital's own switch: whether ``check_pause`` of site.yaml stops the study."""

import difflib

from silofl_hospital.site.candidate import Candidate
from silofl_hospital.site.finding import Finding, ok, warning


def check_pause(candidate: Candidate) -> Finding:
    """Say whether the study is paused, and whether a name in ``check_pause`` is nearly the study's."""
    study, names = candidate.study.name, candidate.settings.paused
    # No failure: a weekly check of a site that is paused on purpose finds all well with it.
    if study in names:
        return warning(
            f"study {study} is paused in site.yaml: the site may join, but answers no task of it; to take part again, "
            "remove its name from paused",
            paused=True,
        )
    close = difflib.get_close_matches(study, names, n=1, cutoff=0.8)
    if close:
        return warning(
            f"paused of site.yaml must name the study letter by letter to pause it, {study!r}, not {close[0]!r}; "
            "correct it where this study is meant: it is not paused",
            paused=False,
        )
    return ok(f"study {study} is not paused", paused=False)
