"""``python -m silofl``."""

import sys

from silofl.command_line.cli import main
from silofl.parent import end_with_parent

end_with_parent()
sys.exit(main())
