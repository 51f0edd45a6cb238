"""From a model's name to what answers for it: weights here, on a cluster, a server, or a folder of files."""

from pathlib import Path

from paraguard_utils import registry
from paraguard_utils.models import batch_files, loading, ray_cluster, served
from paraguard_utils.models.local import Local, Respondent
from paraguard_utils.settings import CLUSTER, Settings

FILES = "file://"
"""How a `base_url` begins that is a folder of requests and results."""

Source = loading.Source | served.Server | batch_files.BatchFiles
"""What may become a respondent: all have the `name` that target names begin with, `weights_id` and `argument`."""


def sources(settings: Settings) -> list[Source]:
    """Find the user's model, or the default ones, without loading anything.

    Parameters
    ----------
    settings : settings.Settings
        model, base_url, concurrency and per_minute are used. With a base_url the model is a served one, with or without
        `openai/` before its name; `file://FOLDER` asks it by files.

    Raises
    ------
    ModelError
        There is no such model.
    """
    if settings.base_url:
        name = settings.model.removeprefix("openai/")
        if settings.base_url.startswith(FILES):
            folder = Path(settings.base_url.removeprefix(FILES)).expanduser()
            return [batch_files.BatchFiles(name, folder, settings.model)]
        given = (settings.base_url, settings.concurrency, settings.per_minute, settings.model)
        return [served.Server(name, *given)]
    return [loading.resolve(name) for name in ([settings.model] if settings.model else registry.default_models())]


def opened(source: Source, settings: Settings) -> Respondent:
    """Return what can be asked; local weights are loaded, those of a cluster when its workers are asked.

    Parameters
    ----------
    source : Source
    settings : settings.Settings
        dtype, device and without_template are used, for local weights.
    """
    if settings.device == CLUSTER and not isinstance(source, batch_files.BatchFiles):
        return ray_cluster.respondent(source, settings.dtype, settings.without_template)
    if not isinstance(source, loading.Source):
        return source
    return Local(loading.load(source, settings.dtype, settings.device, settings.without_template))
