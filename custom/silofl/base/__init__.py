"""What every room reads: errors, files, settings, records, options; no room lies below it."""
