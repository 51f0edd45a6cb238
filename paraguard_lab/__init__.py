"""What is beyond the paper, and what makes the record.

Nothing here is needed by the notebooks 00 to 05. Importing the package adds its kinds
of files. `from paraguard_lab import false_refusal_rate, rephrasing_odds` works alone.
"""

import contextlib

from paraguard_lab.core.ratios import false_refusal_rate
from paraguard_lab.core.rephrasing import rephrasing_odds

# An audit does without the packages that a store needs.
with contextlib.suppress(ModuleNotFoundError):
    from paraguard_lab import kinds

__all__ = ["false_refusal_rate", "kinds", "rephrasing_odds"]
