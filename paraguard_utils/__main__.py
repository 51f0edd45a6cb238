"""Moved to `paraguard_tools` in 1.0.0: `python -m paraguard_utils` goes with 1.1."""

import sys
from importlib import import_module

print("python -m paraguard_utils: write python -m paraguard_tools", file=sys.stderr)
import_module("paraguard_tools.__main__").main()
