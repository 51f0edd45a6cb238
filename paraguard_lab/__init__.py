"""What is beyond the paper, and what makes the record.

Nothing here is needed by the notebooks 00 to 05. Importing the package adds its kinds
of files. `from paraguard_lab import rephrasing_odds` works alone.
"""

import contextlib

from paraguard_lab.core.rephrasing import rephrasing_odds

# An audit does without the packages that a store needs.
with contextlib.suppress(ModuleNotFoundError):
    from paraguard_lab import kinds

__all__ = ["kinds", "rephrasing_odds"]
