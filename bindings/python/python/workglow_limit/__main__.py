"""The command workglow-limit, as python -m workglow_limit."""

import sys

from ._cli import main

if __name__ == "__main__":
    sys.exit(main())
