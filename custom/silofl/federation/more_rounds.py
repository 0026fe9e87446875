"""Whether a run that has finished may go on to more rounds."""

from silofl.study import Study


def find_obstacle(before: Study, now: Study, finished: int) -> str:
    """Return why finished rounds would have been others with a new number of rounds; empty where they are the same."""
    shared_before = min(finished, before.recipe.shared_rounds(before.rounds))
    shared_now = min(finished, now.recipe.shared_rounds(now.rounds))
    if now.training.has_falling_rate:
        return "its learning rate falls over all its rounds"
    if finished > before.joint_rounds:
        return "its extra rounds have begun"
    if shared_before != shared_now:
        return "the sites would have shared one model for longer"
    return ""
