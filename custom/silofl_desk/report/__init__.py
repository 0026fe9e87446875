"""What people read of a run: its sentences, pictures and page.

`run_records` reads a run's folder. `sentences` say what it holds, `rounds` and `result_pictures` draw it. `run_page`
and `super_model_page` prepare the typed page of `silofl_hospital.report.page`.
"""
