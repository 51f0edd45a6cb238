"""Ask a model on all machines of a Ray cluster (`docs/method.md`, Asking).

A block is a batch of the plain run, so rows equal those of the plain run bit for bit on
equal processors. Ray restarts a worker that died and gives its block to another; blocks
come in any order, and we take each prompt's row once.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pyarrow as pa

from paraguard_utils.errors import ModelError, UserError
from paraguard_utils.models import loading, local
from paraguard_utils.models.prompting import PromptContext, Request
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import RAY_DEVICE


def connect_ray() -> ModuleType:
    """Return the package ray, connected to the cluster that `RAY_ADDRESS` names, or
    else to this machine alone.
    """
    os.environ.setdefault(
        "RAY_USAGE_STATS_ENABLED", "0"
    )  # nothing is reported to its makers
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
    context.enable_progress_bars = context.print_on_execution_start = False
    return ray


class ClusterBackend(local.WeightsBackend):
    """Weights that every worker loads for itself, and finds by the same name.

    Prompts are tokenized here.
    """

    def __init__(
        self, source: loading.ModelSource, dtype: str, without_template: str
    ) -> None:
        super().__init__(loading.load_reader(source, dtype, without_template))
        path = Path(source.argument).expanduser()
        name = (
            str(path.absolute()) if path.exists() else source.argument
        )  # workers start in other folders
        self.load = partial(
            load_on_worker, name, source.weights_id, dtype, without_template
        )
        self.nodes: Counter[str] = (
            Counter()
        )  # rows of the last run by node, named by the beginning of its id

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""
        return {"device": RAY_DEVICE, "nodes": dict(self.nodes)}

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return the input embeddings of tokens, as one worker finds them."""
        ray, (_, each), load = connect_ray(), plan_workers(1), self.load
        with _in_one_line(ray):
            return ray.get(
                ray.remote(**each)(
                    lambda: local.LocalBackend(load()).embeddings(ids)
                ).remote()
            )

    def _asked(
        self,
        groups: list[list[Request]],
        prefix: tuple[int, ...],
        context: PromptContext,
    ) -> Iterator[Traces]:
        self.nodes.clear()
        blocks = [
            pa.Table.from_pylist([asdict(request) for request in group])
            for group in groups
        ]
        ray, (workers, each) = connect_ray(), plan_workers(len(blocks))
        # One block a worker and none behind it, so that a slow or dead worker keeps no
        # others waiting.
        pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1)
        how = (self.load, prefix, context)
        rows = ray.data.from_blocks(blocks).map_batches(
            ClusterWorker,
            fn_constructor_args=how,
            batch_size=None,
            batch_format="pyarrow",
            compute=pool,
            **each,
        )
        with _in_one_line(ray):
            found = (
                table.to_pandas()
                for table in rows.iter_batches(batch_size=None, batch_format="pyarrow")
            )
            for block in deduplicate_rows(
                found, [request.prompt_id for group in groups for request in group]
            ):
                if "error" in block:
                    raise ModelError(block["error"].iloc[0])
                self.nodes.update(block["node"])
                yield block.drop(columns="node")


def plan_workers(blocks: int) -> tuple[int, dict[str, int]]:
    """Return how many workers there are, one a graphics card or else one a node, and
    what each takes of its node.
    """
    nodes = [node["Resources"] for node in connect_ray().nodes() if node["Alive"]]
    if cards := sum(int(node.get("GPU", 0)) for node in nodes):
        return min(cards, blocks), {"num_gpus": 1}
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not processors:
        raise ModelError(
            "the Ray cluster has no processors; start its nodes with some (ray start"
            " --num-cpus)"
        )
    return min(len(processors), blocks), {"num_cpus": min(processors)}


def deduplicate_rows(
    found: Iterable[pd.DataFrame], wanted: Iterable[str]
) -> Iterator[pd.DataFrame]:
    """Yield the row of each wanted prompt_id once, however often it comes.

    Raise `ModelError` if one never does.
    """
    left = set(wanted)
    for block in found:
        rows = block[block["prompt_id"].isin(left)]
        left.difference_update(rows["prompt_id"])
        if len(rows):
            yield rows
    if left:
        raise ModelError(
            f"the Ray cluster gave no row for {len(left)} prompts; run the same command"
            " again"
        )


class ClusterWorker:
    """One process of the cluster, which asks block after block with the model that
    `load` returned once.
    """

    def __init__(
        self,
        load: Callable[[], loading.LoadedModel],
        prefix: tuple[int, ...],
        context: PromptContext,
    ) -> None:
        self.runner = cache(lambda: local.make_batch_runner(load(), prefix, context))
        with suppress(UserError):  # the first block reports it
            self.runner()

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return a block's trace rows with a column `node`, or else prompt_id and a
        column `error`.
        """
        import ray

        try:
            asked = [
                Request(**row | {"token_ids": tuple(row["token_ids"])})
                for row in block.to_pylist()
            ]
            rows = self.runner()(asked)
        except (
            UserError
        ) as error:  # reported as data: Ray would rewrite the text of an exception
            return pa.table(
                {"prompt_id": block["prompt_id"], "error": [str(error)] * len(block)}
            )
        node = ray.get_runtime_context().get_node_id()[:8]
        return pa.Table.from_pandas(rows.assign(node=node), preserve_index=False)


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
    return loading.load_model(
        source, dtype, "cuda" if ray.get_gpu_ids() else "cpu", without_template
    )


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
