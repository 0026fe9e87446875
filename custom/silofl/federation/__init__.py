"""The engine, which knows no paper: rounds at the server and at a site, state on disk, ledger and results."""
