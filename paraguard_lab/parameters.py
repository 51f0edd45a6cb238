"""Check the parameters that the thin package only hands on.

`settings` calls `check_parameters` by an entry point of the group
`paraguard.parameters`, before anything is loaded.
"""

from paraguard_lab.guards.makers import check_guard_name
from paraguard_utils.errors import SettingsError
from paraguard_utils.settings import (
    CorpusSettings,
    GuardChoice,
    QuerySettings,
    StudySettings,
)

FILE_SCHEME = "file:"  # of a base_url that is a folder of request files
MODEL_PREFIX = "model:"  # begins `candidates` that a model is to write


def check_parameters(settings: StudySettings) -> None:
    """Raise SettingsError about guards, candidates, a judge or a stop."""
    if isinstance(settings, GuardChoice):
        for name in settings.asked_guards():
            check_guard_name(name)
    if isinstance(settings, CorpusSettings):
        _check_writer(settings)
    if isinstance(settings, QuerySettings) and settings.stop:
        _check_stop(settings)


def _check_writer(settings: CorpusSettings) -> None:
    if settings.candidates == MODEL_PREFIX:
        raise SettingsError(
            "parameter 'candidates': model: names no model; name it, as in model:NAME"
        )
    if settings.judge_base_url and not settings.intent_judge:
        raise SettingsError(
            "parameter 'judge_base_url': a server is asked for a judge; name it, as in"
            " intent_judge=openai/NAME"
        )


def _check_stop(settings: QuerySettings) -> None:
    sends_files = settings.base_url.startswith(FILE_SCHEME)
    is_partial = settings.limit or settings.shard or sends_files
    if is_partial or settings.open_store().recorded:
        raise SettingsError(
            "parameter 'stop': a live store asks until it is sure, without limit, shard"
            " and batch files"
        )
