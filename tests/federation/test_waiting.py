"""The seconds that sites have for a task: the study's own, or what the job has seen so far."""

from silofl.federation.waiting import Waiting


def limits(waiting, seconds, task="train"):
    """Return the limit of each round in which the slowest site needs so long."""
    found = []
    for number, longest in enumerate(seconds, start=1):
        found.append(waiting.limit_s(task, number))
        waiting.answered(task, longest / 2)
        waiting.answered(task, longest)
        # A faster site that answers last changes nothing.
        waiting.answered(task, longest / 3)
    return found


def test_limit_is_the_studys_or_five_times_the_longest():
    assert limits(Waiting(90.0), [1000, 1, 1]) == [90.0, 90.0, 90.0]
    assert limits(Waiting(None), [5, 20, 20, 20]) == [3600, 3600, 600, 600]
    # 5 * 3000 in the second round already: the slowest round so far, not the last one, decides.
    assert limits(Waiting(None), [3000, 200, 400, 1]) == [3600, 15000, 15000, 15000]
    # Each task has a limit of its own: the test at the end may take longer than any training.
    waiting = Waiting(None)
    assert limits(waiting, [1, 1, 1]) and waiting.limit_s("test", 3) == 3600 and waiting.limit_s("train", 4) == 600


def test_repeated_task_counts_once_and_continued_job_anew():
    # Sites that have lost their state are asked again.
    waiting = Waiting(None)
    assert [waiting.limit_s("train", number) for number in (1, 1, 1, 2, 3)] == [3600, 3600, 3600, 3600, 600]
    # The first round of a job that goes on is number 7; the sites load everything again.
    assert [Waiting(None).limit_s("train", number) for number in (7, 8)] == [3600, 3600]


def test_always_late_site_has_twice_the_others_time():
    waiting = Waiting(None)
    waiting.answered("train", 30)
    found = []
    for _ in range(4):
        found.append(waiting.site_limit_s("south", "train", 600))
        waiting.waited_in_vain("south")
    assert found == [600, 600, 60, 60]
    assert waiting.site_limit_s("north", "train", 600) == 600
    # Nobody has tested yet: nothing is known of how long that takes.
    assert waiting.site_limit_s("south", "test", 600) == 600
    waiting.heard_from("south")
    assert waiting.site_limit_s("south", "train", 600) == 600
