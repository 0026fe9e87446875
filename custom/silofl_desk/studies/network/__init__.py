"""A study in a network: submit, follow, continue and withdraw, and the test of a finished model."""
