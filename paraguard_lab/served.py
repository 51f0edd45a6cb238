"""How systems behind a server are recognized in a store."""

from paraguard_utils.models.prompting import model_of_system

SERVED_SUFFIX = "-served"  # the ending of a served model's name in system names
SERVED_DTYPE = "served"  # the dtype that we record for weights that we cannot see


def is_served_system(system: str) -> bool:
    """Return whether a system's model is behind a server."""
    return model_of_system(system).endswith(SERVED_SUFFIX)
