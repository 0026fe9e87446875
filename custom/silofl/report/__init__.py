"""What people read of a run: lines while it goes on, tables in the terminal, pages of HTML."""
