"""Moved to `paraguard_tools.harness` in 1.0.0; this name goes with 1.1."""

import sys
import warnings
from importlib import import_module

warnings.warn(
    "import paraguard_utils.harness: write paraguard_tools.harness instead",
    DeprecationWarning,
    stacklevel=2,
)
sys.modules[__name__] = import_module("paraguard_tools.harness")
