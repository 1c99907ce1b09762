"""python -m workglow_limit: the command workglow-limit."""

import sys

from ._cli import main

sys.exit(main())
