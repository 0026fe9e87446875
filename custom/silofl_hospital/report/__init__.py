"""What people read: tables in the terminal, and the page of an evaluation.

`tables` hold text and `outlines` cases, which a `canvas` draws; `page` is typed, and the templates place it.
"""
