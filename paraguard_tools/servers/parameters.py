"""Which addresses of servers a notebook's parameters may give, and beside what.

`settings` calls `check_server` by an entry point of the group `paraguard.parameters`,
before anything is loaded.
"""

import re

from paraguard_lab.parameters import FILE_SCHEME, MODEL_PREFIX
from paraguard_utils.errors import SettingsError
from paraguard_utils.settings import (
    RAY_DEVICE,
    SERVED_PREFIX,
    ComputeOptions,
    CorpusSettings,
    GuardChoice,
    StudySettings,
)

_HOST = r"(\[[\da-fA-F:.]+\]|[^\s/@?#:\[\]]+)(:\d+)?"
_ADDRESS = re.compile(rf"(https?://{_HOST}(/[^\s?#]*)?|file://\S+)?")


def check_server(settings: StudySettings) -> None:
    """Raise SettingsError about an address that is none, or that nothing uses.

    The error does not repeat the address, which may hold a password.
    """
    for name in ("base_url", "judge_base_url"):
        if not _ADDRESS.fullmatch(getattr(settings, name, "")):
            raise SettingsError(
                f"parameter {name!r}: it holds a user, a password or a query, which"
                " would be written down, or is no address; give one like"
                " http://127.0.0.1:8000/v1 or file://FOLDER, and the key in"
                " OPENAI_API_KEY"
            )
    if not isinstance(settings, ComputeOptions) or not settings.base_url:
        return
    if not _names_served(settings):
        raise SettingsError(
            "parameter 'base_url': a server is asked for a model; name it, as in"
            " model=openai/NAME, in 01 as in candidates=model:NAME, or in 05 as in"
            " guard=openai/NAME"
        )
    if settings.device == RAY_DEVICE and settings.base_url.startswith(FILE_SCHEME):
        raise SettingsError(
            "parameter 'device': this command writes request files and sends none;"
            " leave device=ray out"
        )


def _names_served(settings: StudySettings) -> bool:
    """Return whether a model is named, or a guard that may be behind a server."""
    if isinstance(settings, CorpusSettings):
        return bool(settings.candidates.startswith(MODEL_PREFIX) or settings.model)
    if isinstance(settings, GuardChoice):
        for name in settings.asked_guards():
            if name.startswith(SERVED_PREFIX) or name.endswith(".yaml"):
                return True
    return bool(settings.model)
