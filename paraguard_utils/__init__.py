"""ParaGuard: how sensibly does a system refuse? The functions behind the notebooks.

What is named here can be imported alone: `from paraguard_utils import
disagreement_ratio`.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Decisions": "logs.decisions",
    "Estimate": "core.estimates",
    "audit": "logs.audit",
    "compare": "logs.audit",
    "confusion_index": "core.confusion",
    "disagreement_ratio": "core.disagreement",
    "false_refusal_rate": "core.decisions",
    "isolation": "core.disagreement",
    "label_refusals": "logs.decisions",
    "rephrasing_odds": "core.rephrasing",
}
"""Public names and where they stand; loaded when they are asked for, so that no command
waits for what it needs not.
"""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Return a public name."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
