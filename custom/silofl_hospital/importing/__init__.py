"""A hospital's own files, in the layouts that they come in, to a folder with dataset.json."""
