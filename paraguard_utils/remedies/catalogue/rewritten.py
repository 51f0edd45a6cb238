"""A rewritten wrapper: the safety wrapper, with the advice to answer what is harmless in context (ours)."""

from functools import partial

from paraguard_utils.remedies.asking import Remedied, ask
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Third
from paraguard_utils.remedies.untouched import Untouched

WRAPPER = "permissive"


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Ask under the other wrapper."""
    parameters = {"wrapper": WRAPPER}
    return Target(
        partial(ask, base, "rewritten", parameters, lambda: Remedied(base.local, parameters), wrapper=WRAPPER)
    )


REMEDIES = (Remedy("rewritten", "decision", "ours", apply, asks=True),)
