"""What people read of a run: tables in the terminal, pages of HTML.

`run_records` reads a run's folder; `tables`, `comparison` and `super_model` put its numbers into tables and
sentences, `rounds`, `maps` and `pictures` into figures on a `canvas`; `pages` fills the templates with them.
"""
