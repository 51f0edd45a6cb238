"""Query a model on all machines of a Ray cluster (`docs/method.md`, Asking).

A block is a batch of the plain run, so rows equal those of the plain run bit for bit on
equal processors. Ray restarts a worker that died and gives its block to another; blocks
come in any order, and we take each prompt's row once.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from paraguard_utils.errors import ModelError, UserError
from paraguard_utils.models import backends, loading, local
from paraguard_utils.models.local import Batch
from paraguard_utils.models.prompting import PromptContext, Request
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import RAY_DEVICE, QueryOptions


def takes(options: QueryOptions) -> bool:
    """Return whether the parameters name a cluster."""
    return options.device == RAY_DEVICE and not options.base_url


def resolve(options: QueryOptions) -> list[backends.BackendSource]:
    """Find the user's model, or the default ones, on this machine."""
    return [
        ClusterSource(**vars(source), dtype=options.dtype)
        for source in backends.resolve_models(options)
    ]


@dataclass(frozen=True)
class ClusterSource(backends.LocalSource):
    """A model whose weights every machine of a cluster finds by the same name."""

    def open(self, options: QueryOptions) -> "ClusterBackend":
        """Connect to the cluster; the workers load the weights when queried first."""
        connect_ray()
        return ClusterBackend(self, self.dtype, options.without_template)


def connect_ray() -> ModuleType:
    """Return the package ray, connected to a cluster.

    It is the one that `RAY_ADDRESS` names, and else this machine alone.
    """
    # Nothing is reported to its makers
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ModelError(
            "asking on a cluster needs the package ray on each of its machines; run:"
            " make cluster, or python -m pip install 'paraguard-utils[cluster]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise ModelError(
                f"no Ray cluster answers at {where}"
                f" ({loading.first_error_line(error)}); start it first"
            ) from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    return ray


class ClusterBackend(local.WeightsBackend):
    """Weights that every worker loads for itself, and finds by the same name.

    Prompts are tokenized here. `nodes` counts the rows of the last run by node, named
    by the beginning of its id.
    """

    def __init__(
        self, source: loading.ModelSource, dtype: str, without_template: str
    ) -> None:
        super().__init__(loading.load_reader(source, dtype, without_template))
        name = source.argument
        path = Path(name).expanduser()
        if path.exists():
            name = str(path.absolute())  # workers start in other folders
        self.load = partial(
            load_on_worker, name, source.weights_id, dtype, without_template
        )
        self.nodes: Counter[str] = Counter()

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what a meta file says beside the context."""
        return {"device": RAY_DEVICE, "nodes": dict(self.nodes)}

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return the input embeddings of tokens, as one worker finds them."""
        ray = connect_ray()
        load = self.load

        def find_embeddings() -> np.ndarray:
            return local.LocalBackend(load()).embeddings(ids)

        _, resources = plan_workers(1)
        with _in_one_line(ray):
            return ray.get(ray.remote(**resources)(find_embeddings).remote())

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches on all workers, in any order."""
        self.nodes.clear()
        ray = connect_ray()
        blocks = [pa.Table.from_pylist(list(map(asdict, batch))) for batch in batches]
        prompt_ids = [request.prompt_id for request in chain(*batches)]
        workers, resources = plan_workers(len(blocks))
        answered = ray.data.from_blocks(blocks).map_batches(
            ClusterWorker,
            fn_constructor_args=(self.load, prefix, context),
            batch_size=None,
            batch_format="pyarrow",
            # One block a worker and none behind it, so that a slow or dead worker keeps
            # no others waiting
            compute=ray.data.ActorPoolStrategy(
                size=workers, max_tasks_in_flight_per_actor=1
            ),
            **resources,
        )
        with _in_one_line(ray):
            tables = answered.iter_batches(batch_size=None, batch_format="pyarrow")
            frames = (table.to_pandas() for table in tables)
            for traces in deduplicate_rows(frames, prompt_ids):
                if "error" in traces:
                    raise ModelError(traces["error"].iloc[0])
                self.nodes.update(traces["node"])
                yield traces.drop(columns="node")


def plan_workers(blocks: int) -> tuple[int, dict[str, int]]:
    """Return how many workers there are, and what each takes of its node.

    There is one a graphics card, or else one a node.
    """
    nodes = [node["Resources"] for node in connect_ray().nodes() if node["Alive"]]
    cards = sum(int(node.get("GPU", 0)) for node in nodes)
    if cards:
        return min(cards, blocks), {"num_gpus": 1}
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not processors:
        raise ModelError(
            "the Ray cluster has no processors; start its nodes with some (ray start"
            " --num-cpus)"
        )
    return min(len(processors), blocks), {"num_cpus": min(processors)}


def deduplicate_rows(
    blocks: Iterable[pd.DataFrame], prompt_ids: Iterable[str]
) -> Iterator[pd.DataFrame]:
    """Yield the row of each wanted prompt_id once, however often it comes.

    Raise `ModelError` if one never does.
    """
    missing = set(prompt_ids)
    for block in blocks:
        rows = block[block["prompt_id"].isin(missing)]
        missing.difference_update(rows["prompt_id"])
        if len(rows):
            yield rows
    if missing:
        raise ModelError(
            f"the Ray cluster gave no row for {len(missing)} prompts; run the same"
            " command again"
        )


class ClusterWorker:
    """One process of the cluster, which queries block after block.

    It does so with the model that `load` returned once.
    """

    def __init__(
        self,
        load: Callable[[], loading.LoadedModel],
        prefix: tuple[int, ...],
        context: PromptContext,
    ) -> None:
        from paraguard_utils.models.engine import Engine

        self.context = context
        self.engine = cache(lambda: Engine(load(), prefix, context.decoding))
        with suppress(UserError):  # the first block reports it
            self.engine()

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return a block's trace rows with a column `node`.

        If they cannot be computed: prompt_id and a column `error`.
        """
        import ray

        requests = [_make_request(row) for row in block.to_pylist()]
        try:
            traces = local.make_traces(self.engine().ask(requests), self.context)
        # Reported as data: Ray would rewrite the text of an exception
        except UserError as error:
            messages = [str(error)] * len(block)
            return pa.table({"prompt_id": block["prompt_id"], "error": messages})
        node = ray.get_runtime_context().get_node_id()[:8]
        return pa.Table.from_pandas(traces.assign(node=node), preserve_index=False)


def _make_request(row: dict[str, Any]) -> Request:
    token_ids = tuple(row.pop("token_ids"))
    return Request(**row, token_ids=token_ids)


def load_on_worker(
    name: str, weights_id: str, dtype: str, without_template: str
) -> loading.LoadedModel:
    """Load a model in a worker, on its card or processors.

    Raise `ModelError` if its weights are others there.
    """
    import ray

    source = loading.resolve_model(name)
    if source.weights_id != weights_id:
        raise ModelError(
            f"model {name}: a machine of the cluster has other weights"
            f" ({source.weights_id[:12]}, not {weights_id[:12]}); give all the same"
        )
    device = "cuda" if ray.get_gpu_ids() else "cpu"
    return loading.load_model(source, dtype, device, without_template)


@contextmanager
def _in_one_line(ray: ModuleType) -> Iterator[None]:
    """Turn an error of Ray's into one line."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ModelError(
            f"the Ray cluster stopped answering ({loading.first_error_line(error)});"
            " what it answered is kept: run the same command again"
        ) from error
