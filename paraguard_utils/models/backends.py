"""Find what answers for a model's name: weights on this machine or a cluster, a server,
or a folder of files.
"""

from pathlib import Path
from typing import TypeAlias

from paraguard_tools.servers import batch_files, ray_cluster, served
from paraguard_utils import registry
from paraguard_utils.models import loading
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.settings import RAY_DEVICE, SERVED_PREFIX, Settings

# The beginning of a `base_url` that is a folder of requests and results
FILE_SCHEME = "file://"

Backend: TypeAlias = (
    LocalBackend
    | ray_cluster.ClusterBackend
    | served.ServerBackend
    | batch_files.BatchFiles
)
"""What answers prompts; its `name` begins system names, and `argument` is the parameter
`model` that named it.
"""

BackendSource: TypeAlias = (
    loading.ModelSource | served.ServerBackend | batch_files.BatchFiles
)
"""What `open_backend` opens: all have `name`, as in system names, `weights_id` and
`argument`.
"""


def resolve_backends(settings: Settings) -> list[BackendSource]:
    """Find the user's model, or the default ones, without loading anything.

    An unknown name raises `ModelError`.
    """
    if not settings.base_url:
        names = [settings.model] if settings.model else registry.list_default_models()
        return [loading.resolve_model(name) for name in names]
    name = settings.model.removeprefix(SERVED_PREFIX)
    if settings.base_url.startswith(FILE_SCHEME):
        folder = Path(settings.base_url.removeprefix(FILE_SCHEME)).expanduser()
        return [batch_files.BatchFiles(name, folder, settings.model)]
    return [
        served.ServerBackend(
            name,
            settings.base_url,
            settings.concurrency,
            settings.per_minute,
            settings.model,
        )
    ]


def open_backend(source: BackendSource, settings: Settings) -> Backend:
    """Return what can be asked: local weights are loaded now, a cluster's when its
    workers are first asked.
    """
    if not isinstance(source, loading.ModelSource):
        return source
    if settings.device == RAY_DEVICE:
        return ray_cluster.ClusterBackend(
            source, settings.dtype, settings.without_template
        )
    return LocalBackend(
        loading.load_model(
            source, settings.dtype, settings.device, settings.without_template
        )
    )
