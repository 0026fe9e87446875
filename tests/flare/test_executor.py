import subprocess
import sys

LOADED = """
import sys
import silofl.flare.executor
print(sorted({"monai", "SimpleITK", "nibabel"} & {name.partition(".")[0] for name in sys.modules}))
"""


def test_a_site_loads_none_of_the_libraries_before_it_needs_them():
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "[]\n", done.stderr
