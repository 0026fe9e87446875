"""How long the server waits for the sites' answers to a task."""

from dataclasses import dataclass, field

# Libraries are loaded and data read in a job's first round, and its second one brings the first validation.
FIRST_ROUNDS, FIRST_S = 2, 3600.0
# After that: enough for a network that is cut for minutes, and for a site that others keep busy.
LEAST_S, MULTIPLE = 600.0, 5.0
# A site that has been late so often in a row has only a short try: so many times the longest that any site has needed.
LATE_TIMES, SHORT_MULTIPLE = 2, 2.0


@dataclass
class Waiting:
    """The limits of one job's tasks; a job that continues a run begins anew, as its sites' processes do.

    Attributes:
        fixed_s: The study's own limit in seconds, which then is that of every task.
    """

    fixed_s: float | None
    _rounds: dict[str, set[int]] = field(default_factory=dict)
    _longest_s: dict[str, float] = field(default_factory=dict)
    _late: dict[str, int] = field(default_factory=dict)

    def limit_s(self, task: str, number: int) -> float:
        """Return the seconds that sites have for a task in a round.

        Without a limit of the study, an hour in the first two rounds in which the job gives the task; later five times
        the longest that any site has needed for it in this job, and at least ten minutes.
        """
        if self.fixed_s is not None:
            return self.fixed_s
        # A set, because a task that is given twice in a round counts once.
        rounds = self._rounds.setdefault(task, set())
        rounds.add(number)
        least = FIRST_S if len(rounds) <= FIRST_ROUNDS else LEAST_S
        return max(least, MULTIPLE * self._longest_s.get(task, 0.0))

    def site_limit_s(self, site: str, task: str, limit_s: float) -> float:
        """Return the seconds of a task's limit that are waited for a site.

        One that comes back after it was late has all of them, since it may have been cut off. Where it is late again
        and again, as one that takes every task and answers none, it does not cost each round the whole limit.
        """
        longest_s = self._longest_s.get(task, 0.0)
        if self._late.get(site, 0) < LATE_TIMES or longest_s == 0:
            return limit_s
        return min(limit_s, SHORT_MULTIPLE * longest_s)

    def answered(self, task: str, seconds: float) -> None:
        """Take in how long a site has needed for a task."""
        self._longest_s[task] = max(seconds, self._longest_s.get(task, 0.0))

    def heard_from(self, site: str) -> None:
        """Take in that a site has answered in time."""
        self._late.pop(site, None)

    def waited_in_vain(self, site: str) -> None:
        """Take in that a site was waited for and was late."""
        self._late[site] = self._late.get(site, 0) + 1
