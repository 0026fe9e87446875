"""The command line: what the wheels announce, and how a command is parsed, run and answered for."""
