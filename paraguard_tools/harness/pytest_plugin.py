"""The fixture `paraguard_gate` of pytest.

Every run of pytest loads this file, so it imports nothing else at once.
"""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from paraguard_tools.harness.pytest_gate import Gate


@pytest.fixture(scope="session")
def paraguard_gate() -> "Gate":
    """Ask the installed corpus: `paraguard_gate.ask(chat).at_most(dr=0.8)`."""
    from paraguard_tools.harness.pytest_gate import Gate

    return Gate()
