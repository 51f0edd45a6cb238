"""For people with logs, servers and guards of their own; and the command line.

What is named here can be imported alone: `from paraguard_tools import audit`.
"""

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Decisions": "logs.decisions",
    "audit": "logs.audit",
    "compare": "logs.audit",
    "label_refusals": "logs.decisions",
}
"""Public names and their modules, which are imported when a name is first used."""

__all__ = list(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Return a public name."""
    if name in _PUBLIC:
        return getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
