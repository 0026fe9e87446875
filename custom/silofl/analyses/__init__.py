"""What a finished simulation can tell besides its report: a command each, with its table and its picture."""
