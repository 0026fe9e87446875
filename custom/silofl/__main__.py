"""``python -m silofl``."""

import sys

from silofl.cli import main

sys.exit(main())
