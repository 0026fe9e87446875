"""From a file's bytes to one image or label map with its grid; knows no study.

The argument ``name`` is what messages call a file: its path within the data folder, never an absolute one.
"""

import warnings

# They would print the library's path; what is wrong with a file, our own sentences say.
warnings.filterwarnings("ignore", module="pydicom")
