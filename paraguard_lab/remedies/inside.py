"""Read a model's activations, and change them for a while.

(`docs/method.md`, Remedies)
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import stores
from paraguard_utils.errors import ModelError
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import Decoding, PromptContext, Workload
from paraguard_utils.schemas import Corpus, Traces, select_prompts

_Learned = TypeVar("_Learned", bound=NamedTuple)


def decoder_layers(network: Any) -> Sequence[Any]:
    """Return a model's decoder layers; raises ModelError if none are found."""
    layers = getattr(network.get_decoder(), "layers", None)
    if layers is None:
        raise ModelError(
            f"a model of type {network.config.model_type} has no list of layers to look"
            " into"
        )
    return layers


@contextmanager
def change_layers(
    network: Any, changes: Mapping[int, Callable[[Any], Any]]
) -> Iterator[None]:
    """Change the outputs of some layers inside a `with` block.

    Afterwards the model is what it was, bit for bit.

    Parameters
    ----------
    network : torch.nn.Module
    changes : mapping of int to callable
        By the number of the layer, counted from 0; each makes a layer's new output of
        its output, a tensor of the shape (rows, tokens, dimensions).
    """

    def changed(
        change: Callable[[Any], Any], module: Any, given: Any, output: Any
    ) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    layers = decoder_layers(network)
    handles = [
        layers[number].register_forward_hook(partial(changed, change))
        for number, change in changes.items()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _first_steps(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> Iterator[Traces]:
    """Yield batches of traces that end with the first answer token.

    The longest prompts come first.
    """
    workload = Workload(prompts, batch=batch)
    return model.answers(workload, replace(context, decoding=Decoding(1)))


def trace_first_steps(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> Traces:
    """Return traces of prompts up to the first answer token, without generating.

    They are in the order of the prompts.
    """
    traces = pd.concat(list(_first_steps(model, context, prompts, batch)))
    return select_prompts(traces, prompts)


def read_activations(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> np.ndarray:
    """Return every layer's output at each prompt's last token.

    The array is float32, shape (prompts, layers, dimensions).
    """
    network = model.model.network
    seen: list[list[np.ndarray]] = [[] for _ in decoder_layers(network)]

    def keep(layer: int, output: Any) -> Any:
        seen[layer].append(output[:, -1].float().cpu().numpy())
        return output

    order: list[str] = []
    batches: list[np.ndarray] = []
    with change_layers(network, {n: partial(keep, n) for n in range(len(seen))}):
        for traces in _first_steps(model, context, prompts, batch):
            order += traces["prompt_id"].to_list()
            # The engine may first compute the words that all prompts share, and a batch
            # in several parts.
            layers = [np.concatenate(parts)[-len(traces) :] for parts in seen]
            batches.append(np.stack(layers, axis=1))
            for parts in seen:
                parts.clear()
    rows = pd.Index(order).get_indexer(prompts["prompt_id"])
    return np.concatenate(batches)[rows]


def digest_arrays(*arrays: np.ndarray) -> str:
    """Return 8 hex digits that tell what was learned, rounded to half precision."""
    content = b"".join(array.astype(np.float16).tobytes() for array in arrays)
    return hashlib.sha256(content).hexdigest()[:8]


def learned_path(base: UntouchedSystem, name: str) -> Path:
    """Return where a live store keeps what was learned for the test split.

    It is never published.
    """
    folder = base.files(base.benign_corpus, "learned").name
    return base.store.writes / "adapters" / folder / f"{base.name}--{name}"


def load_or_learn(
    base: UntouchedSystem,
    name: str,
    parameters: Mapping[str, Any],
    kind: type[_Learned],
    learn: Callable[[], _Learned],
) -> _Learned:
    """Return what was learned with these parameters.

    If the store does not have it, learn and keep it.

    Parameters
    ----------
    base : UntouchedSystem
    name : str
        The file's, without its ending.
    parameters : mapping
        What was learned with others is learned anew.
    kind : type
        A NamedTuple of arrays and numbers.
    learn : callable
        Returns one of that kind.
    """
    file = learned_path(base, f"{name}.npz")
    identity = json.dumps(dict(parameters), sort_keys=True)
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            arrays = dict(kept)
        if str(arrays.pop("parameters")) == identity:
            values = [
                array if array.ndim else array.item() for array in arrays.values()
            ]
            return kind._make(values)
    learned = learn()
    content = io.BytesIO()
    arrays = learned._asdict() | {"parameters": np.array(identity)}
    np.savez(content, **arrays)
    stores.write_atomically(file, lambda part: part.write_bytes(content.getvalue()))
    return learned
