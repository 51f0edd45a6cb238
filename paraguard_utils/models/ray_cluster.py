"""Asking with all machines of a Ray cluster (`docs/method.md`, Asking).

A block is a batch of the plain run and a worker holds one model, on a graphics card or on a node's processors, so that
rows are those of the plain run bit for bit where the processors are. Ray starts a worker that died again and gives its
block to one that lives; blocks come back in any order, and each prompt's row is taken once.
"""

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from tqdm import tqdm

from paraguard_utils.errors import ModelError, UserError
from paraguard_utils.models import loading, local, served
from paraguard_utils.models.prompting import PromptContext, Request
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import CLUSTER
from paraguard_utils.stores import WHOLE

TOLD = "told"
"""The column in which a worker tells of a block, as JSON: the node's id and what failed there, or why it could not."""

Ask = Callable[[pa.Table], tuple[Traces, Counter[str]]]
"""What a worker does with a block: trace rows, and counted faults."""


def connected() -> ModuleType:
    """Return the package ray, connected to the cluster that `RAY_ADDRESS` names; without one, this machine is all.

    Raises
    ------
    ModelError
        There is no such package, or no such cluster.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is reported to its makers
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise ModelError(
            "asking on a cluster needs the package ray on each of its machines; run: make cluster, or python -m pip "
            "install 'paraguard-utils[cluster]'"
        ) from error
    if not ray.is_initialized():
        try:
            ray.init(logging_level=logging.ERROR, log_to_driver=False)
        except (OSError, RuntimeError, ValueError) as error:
            where = os.environ.get("RAY_ADDRESS", "this machine")
            raise ModelError(f"no Ray cluster answers at {where} ({_first_line(error)}); start it first") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    return ray


def respondent(
    source: "loading.Source | served.Server", dtype: str, without_template: str
) -> "ClusterWeights | ClusterServer":
    """Return what asks a model on the cluster's machines.

    Parameters
    ----------
    source : loading.Source or served.Server
        Every machine must find the weights by the same name, or reach the server by the same address.
    dtype, without_template : str
        As for `loading.load`, for weights.
    """
    if isinstance(source, served.Server):
        return ClusterServer(**{name: getattr(source, name) for name in served.Server.__match_args__})
    return ClusterWeights(source, dtype, without_template)


@dataclass
class Told:
    """What workers told.

    Attributes
    ----------
    nodes, faults : Counter
        Rows by node, named by the beginning of its id, and faults by kind.
    """

    nodes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)

    def add(self, block: pd.DataFrame) -> None:
        """Count a block's rows and its faults.

        Raises
        ------
        ModelError
            The worker could not ask.
        """
        about = json.loads(block[TOLD].iloc[0])
        if "error" in about:
            raise ModelError(about["error"])
        self.nodes[about["node"]] += len(block)
        self.faults.update(about["faults"])

    def facts(self) -> dict[str, Any]:
        """Return what a meta file tells."""
        return {"device": CLUSTER, "nodes": dict(self.nodes)}


class ClusterWeights(local.Weights):
    """Weights that every worker loads for itself; prompts are read here.

    Parameters
    ----------
    source : loading.Source
    dtype, without_template : str
        As for `loading.load`.
    """

    def __init__(self, source: loading.Source, dtype: str, without_template: str) -> None:
        super().__init__(loading.load_reader(source, dtype, without_template))
        local = Path(source.argument).expanduser()
        name = str(local.absolute()) if local.exists() else source.argument  # workers start in other folders
        self.load, self.told = partial(load, name, source.weights_id, dtype, without_template), Told()

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""
        return self.told.facts()

    def embeddings(self, ids: list[int]) -> np.ndarray:
        """Return the input embeddings of tokens, as one worker finds them."""
        ray, (_, each) = connected(), places(1)
        with _in_one_line(ray):
            return ray.get(ray.remote(**each)(_embeddings).remote(self.load, ids))

    def _asked(self, groups: list[list[Request]], prefix: tuple[int, ...], context: PromptContext) -> Iterator[Traces]:
        blocks = [pa.Table.from_pylist([asdict(request) for request in group]) for group in groups]
        self.told = Told()
        yield from asked(blocks, partial(_weights_asker, self.load, prefix, context), self.told, *places(len(blocks)))


@dataclass(frozen=True)
class ClusterServer(served.Server):
    """A served model that the cluster's machines ask, each a part; `concurrency` and `per_minute` are shared out."""

    told: Told = field(default_factory=Told, repr=False, compare=False)

    def answers(
        self,
        corpus: pd.DataFrame,
        context: PromptContext,
        target: str,
        known: set[str],
        batch: int,
        progress: bool,
        shard: tuple[int, int] = WHOLE,
    ) -> Iterator[Traces]:
        """Ask what is not known, a batch a block; yield trace rows as blocks come back."""
        for count in (self.faults, self.told.nodes, self.told.faults):
            count.clear()
        corpus = corpus.iloc[shard[0] - 1 :: shard[1]]
        open_ = corpus.loc[~corpus["prompt_id"].isin(known), ["prompt_id", "text"]]
        if open_.empty:
            return
        self.announce(open_, served.Framing(**json.loads(context.prefix)), context.decoding)
        size = min(batch, -(-len(open_) // places(len(open_), cards=False)[0]))  # something for each
        blocks = [
            pa.Table.from_pandas(open_.iloc[i : i + size], preserve_index=False) for i in range(0, len(open_), size)
        ]
        workers, each = places(len(blocks), cards=False)
        pace = self.per_minute and max(1, self.per_minute // workers)
        way = (self.model, self.base_url, max(1, self.concurrency // workers), pace, self.argument)
        make = partial(_server_asker, way, self.telling, context)
        with tqdm(
            total=len(corpus), initial=len(corpus) - len(open_), desc=target, unit="prompt", disable=not progress
        ) as bar:
            for rows in asked(blocks, make, self.told, workers, each):
                yield rows
                bar.update(len(rows))

    def facts(self, traces: Traces) -> dict[str, Any]:
        """Return what a meta file tells beside the context."""
        return super().facts(traces) | self.told.facts() | {"faults": dict(self.faults + self.told.faults)}


def places(blocks: int, cards: bool = True) -> tuple[int, dict[str, int]]:
    """Return how many workers there are, and what each takes of its node.

    One a graphics card, where there are any; else one a node, on as many processors as the smallest node has.

    Parameters
    ----------
    blocks : int, > 0
        No more workers are started.
    cards : bool
        Whether workers could use a card.

    Raises
    ------
    ModelError
        The cluster has neither.
    """
    nodes = [node["Resources"] for node in connected().nodes() if node["Alive"]]
    found = sum(int(node.get("GPU", 0)) for node in nodes) if cards else 0
    if found:
        return min(found, blocks), {"num_gpus": 1}
    processors = [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1]
    if not processors:
        raise ModelError("the Ray cluster has no processors; start its nodes with some (ray start --num-cpus)")
    return min(len(processors), blocks), {"num_cpus": min(processors)}


def asked(
    blocks: list[pa.Table], make: Callable[[], Ask], told: Told, workers: int, each: dict[str, int]
) -> Iterator[Traces]:
    """Ask blocks of prompts on the cluster; yield trace rows as blocks come back.

    Parameters
    ----------
    blocks : list of pyarrow.Table
        With a column prompt_id.
    make : callable
        Makes what asks a block, once in each worker.
    told : Told
        Counts.
    workers, each
        As `places` returns them.

    Raises
    ------
    ModelError
        A worker could not ask, or the cluster did not give every row back; what it gave back was yielded.
    """
    ray = connected()
    # One block a worker at a time, and none behind it: a worker that is slow, or dies, keeps no others waiting. What a
    # worker had that died is asked again, as Ray does where nothing else is said.
    pool = ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1)
    rows = ray.data.from_blocks(blocks).map_batches(
        Worker,
        fn_constructor_args=(make,),
        batch_size=None,
        batch_format="pyarrow",
        compute=pool,
        **each,
    )
    with _in_one_line(ray):
        found = (table.to_pandas() for table in rows.iter_batches(batch_size=None, batch_format="pyarrow"))
        for found_rows in once(found, [name for block in blocks for name in block["prompt_id"].to_pylist()]):
            told.add(found_rows)
            yield found_rows.drop(columns=TOLD)


def once(found: Iterable[pd.DataFrame], wanted: Iterable[str]) -> Iterator[pd.DataFrame]:
    """Yield each wanted prompt's row once, however often it comes.

    Parameters
    ----------
    found : iterable of DataFrame
        With a column prompt_id.
    wanted : iterable of str

    Raises
    ------
    ModelError
        A row did not come.
    """
    left = set(wanted)
    for block in found:
        rows = block[block["prompt_id"].isin(left)]
        left.difference_update(rows["prompt_id"])
        if len(rows):
            yield rows
    if left:
        raise ModelError(f"the Ray cluster gave no row for {len(left)} prompts; run the same command again")


class Worker:
    """One process of the cluster, which asks block after block.

    Parameters
    ----------
    make : callable
        Makes what asks, once.
    """

    ask: Ask | None

    def __init__(self, make: Callable[[], Ask]) -> None:
        self.make, self.ask = make, None
        with suppress(UserError):  # which the first block tells
            self.ask = make()

    def __call__(self, block: pa.Table) -> pa.Table:
        """Return the trace rows of a block's prompts, and what this worker tells of them."""
        import ray

        try:
            self.ask = self.ask or self.make()
            rows, faults = self.ask(block)
        except UserError as error:  # told as data: of what is raised Ray passes on a text of its own
            return pa.table({"prompt_id": block["prompt_id"], TOLD: [json.dumps({"error": str(error)})] * len(block)})
        about = {"node": ray.get_runtime_context().get_node_id()[:8], "faults": faults}
        return pa.Table.from_pandas(rows.assign(**{TOLD: json.dumps(about)}), preserve_index=False)


def load(name: str, weights_id: str, dtype: str, without_template: str) -> loading.Model:
    """Load a model in a worker, on the card that Ray gave it or on its processors.

    Raises
    ------
    ModelError
        The name stands for other weights there.
    """
    import ray

    source = loading.resolve(name)
    if source.weights_id != weights_id:
        raise ModelError(
            f"model {name}: a machine of the cluster has other weights ({source.weights_id[:12]}, not "
            f"{weights_id[:12]}); give all the same"
        )
    return loading.load(source, dtype, "cuda" if ray.get_gpu_ids() else "cpu", without_template)


def _weights_asker(make: Callable[[], loading.Model], prefix: tuple[int, ...], context: PromptContext) -> Ask:

    ask = local.asker(make(), prefix, context)
    return lambda block: (
        ask([Request(**row | {"token_ids": tuple(row["token_ids"])}) for row in block.to_pylist()]),
        Counter(),
    )


def _server_asker(way: tuple[Any, ...], telling: served.Telling, context: PromptContext) -> Ask:
    server = served.Server(*way)
    vars(server)["telling"] = telling  # found out already

    def ask(block: pa.Table) -> tuple[Traces, Counter[str]]:
        server.faults.clear()
        prompts = block.to_pandas()
        rows = pd.concat(server.answers(prompts, context, "", set(), len(prompts), False), ignore_index=True)
        return rows, server.faults

    return ask


def _embeddings(make: Callable[[], loading.Model], ids: list[int]) -> np.ndarray:
    return local.Local(make()).embeddings(ids)


@contextmanager
def _in_one_line(ray: ModuleType) -> Iterator[None]:
    """Turn what Ray raises into one line."""
    try:
        yield
    except ray.exceptions.RayError as error:
        raise ModelError(
            f"the Ray cluster stopped answering ({_first_line(error)}); what it answered is kept: run the same "
            "command again"
        ) from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
