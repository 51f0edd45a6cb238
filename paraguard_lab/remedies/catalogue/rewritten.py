"""Ask under a system prompt that adds to the safety instruction (ours).

It adds: answer what is harmless in context.
"""

from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.registry import read_system_prompt


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Ask with the other system prompt."""
    return RemediedSystem.asking(
        base, "rewritten", {"text": read_system_prompt("permissive")}
    )


REMEDIES = (Remedy("rewritten", "decision", "ours", apply, asks=True),)
