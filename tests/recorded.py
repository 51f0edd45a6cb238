"""What the record has of the published systems; a new one may wait for its record."""

from paraguard_utils import registry
from paraguard_utils.settings import CORPUS
from paraguard_utils.stores import Store


def recorded_systems(*kinds):
    """The published systems of some kinds whose decisions are recorded."""
    names = registry.published_systems(*kinds).index
    return [name for name in names if Store("recorded").has("labels", CORPUS, name)]
