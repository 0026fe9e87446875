"""One run in a simulation: its command, its sites, what it prints, and what is done with it afterwards."""
