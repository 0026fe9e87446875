"""What a researcher or a study lead uses: simulations, comparisons, reports; hospitals do not install this package.

Public are its commands, as ``silofl simulate`` and ``silofl run``, and `silofl_desk.recipes`.
"""
