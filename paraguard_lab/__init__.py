"""What is beyond the paper, and what makes the record.

Nothing here is needed by the notebooks 00 to 05. The package adds its kinds of files
where stores are imported. `from paraguard_lab import false_refusal_rate,
rephrasing_odds` works alone.
"""

from paraguard_lab.core.ratios import false_refusal_rate
from paraguard_lab.core.rephrasing import rephrasing_odds
from paraguard_utils import seams

__all__ = ["false_refusal_rate", "rephrasing_odds"]

seams.add_kinds("paraguard_lab.kinds")
