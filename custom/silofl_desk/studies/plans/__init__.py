"""Before a run: the survey of data, a new study, and what a round would cost."""
