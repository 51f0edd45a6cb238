"""Find what answers for a model's name: weights on this machine or a cluster, a server, or a folder of files."""

from pathlib import Path

from paraguard_utils import registry
from paraguard_utils.models import batch_files, loading, ray_cluster, served
from paraguard_utils.models.local import Local, Respondent
from paraguard_utils.settings import CLUSTER, Settings

FILES = "file://"
"""The beginning of a `base_url` that is a folder of requests and results."""

Source = loading.Source | served.Server | batch_files.BatchFiles
"""What `opened` turns into a respondent: all have `name`, as in target names, `weights_id` and `argument`."""


def sources(settings: Settings) -> list[Source]:
    """Find the user's model, or the default ones, without loading anything; an unknown name raises `ModelError`.

    With a `base_url` the model is a served one, with or without `openai/` before its name; `file://FOLDER` asks it by
    files.
    """
    if not settings.base_url:
        return [loading.resolve(name) for name in ([settings.model] if settings.model else registry.default_models())]
    name = settings.model.removeprefix("openai/")
    if settings.base_url.startswith(FILES):
        folder = Path(settings.base_url.removeprefix(FILES)).expanduser()
        return [batch_files.BatchFiles(name, folder, settings.model)]
    return [served.Server(name, settings.base_url, settings.concurrency, settings.per_minute, settings.model)]


def opened(source: Source, settings: Settings) -> Respondent:
    """Return what can be asked: local weights are loaded now, a cluster's when its workers are first asked."""
    if not isinstance(source, loading.Source):
        return source
    if settings.device == CLUSTER:
        return ray_cluster.ClusterWeights(source, settings.dtype, settings.without_template)
    return Local(loading.load(source, settings.dtype, settings.device, settings.without_template))
