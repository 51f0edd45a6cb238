"""What is beyond the paper, and what makes the record.

The notebooks 00 to 05 reach it by entry points only. `from paraguard_lab import
false_refusal_rate, rephrasing_odds` works alone.
"""

from paraguard_lab.core.ratios import false_refusal_rate
from paraguard_lab.core.rephrasing import rephrasing_odds

__all__ = ["false_refusal_rate", "rephrasing_odds"]
