"""ParaGuard: how consistently does a system refuse? The functions behind the notebooks.

What is named here can be imported alone: `from paraguard_utils import
disagreement_ratio`.
"""

import warnings
from importlib import import_module
from typing import Any

__version__ = "1.0.0"

_PUBLIC = {
    "Estimate": "core.estimates",
    "confusion_index": "core.confusion",
    "disagreement_ratio": "core.disagreement",
    "isolation": "core.disagreement",
}
"""Public names and their modules, which are imported when a name is used: no command
waits for what it does not need."""

_MOVED = {
    "Decisions": "paraguard_tools",
    "audit": "paraguard_tools",
    "compare": "paraguard_tools",
    "false_refusal_rate": "paraguard_lab",
    "label_refusals": "paraguard_tools",
    "rephrasing_odds": "paraguard_lab",
}
"""Names that are in another package since 1.0.0, and work here until 1.1."""

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Return a public name."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    if name in _MOVED:
        package = _MOVED[name]
        message = f"from paraguard_utils import {name}: write from {package} instead"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(import_module(package), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
