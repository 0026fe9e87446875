"""Known public layouts, one file each: what an import would write, planned before anything is written."""
