"""What the record has of the published systems; a new one may wait for its record."""

import warnings

from paraguard_utils import registry
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import Store


def recorded_systems(*kinds):
    """The published systems of some kinds whose decisions are recorded."""
    names = registry.published_systems(*kinds).index
    return [name for name in names if Store("recorded").has("labels", CORPUS, name)]


def report_new_columns(table, columns, recorded):
    """Warn of computed columns that a recorded table does not have yet.

    The next `make record` records them; only a number that changes is a failure.
    """
    new = [name for name in columns if name not in set(recorded)]
    if new:
        warnings.warn(f"{table}: not recorded yet: {', '.join(new)}", stacklevel=2)
