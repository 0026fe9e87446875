"""What people read of a run: tables in the terminal, and its page.

`run_records` reads a run's folder. `tables` and `sentences` say what it holds, `rounds` and `result_pictures` draw it
on a `canvas`. `run_page` and `super_model_page` prepare the typed `page`, which the templates place.
"""
