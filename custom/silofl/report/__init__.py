"""What people read of a run: tables in the terminal, pages of HTML.

`run_records` reads a run's folder; `tables` and `sentences` put its numbers into words, `rounds`, `maps` and
`result_pictures` into figures on a `canvas`; `run_page`, `super_model_page` and `comparison_page` make a typed `page`
of them, which the templates place.
"""
