"""From a file's bytes to one image or label map with its grid; knows no study."""
