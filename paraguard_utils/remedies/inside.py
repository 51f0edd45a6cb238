"""Reading and changing a model's activations; every change is taken back (`docs/method.md`, Remedies)."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from paraguard_utils import stores
from paraguard_utils.errors import ModelError
from paraguard_utils.models import prompting
from paraguard_utils.models.local import Local
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Traces

LEARNED = "adapters"
"""Where what was learned lies in a live store: never in the record."""

PARAMETERS = "parameters"

if TYPE_CHECKING:
    import torch

    from paraguard_utils.models.prompting import Request

    Change = Callable[[torch.Tensor], torch.Tensor]
    """From a layer's output, shape (rows, tokens, dimensions), to what is to stand there."""


def layers(network: Any) -> Sequence[Any]:
    """Return a model's decoder layers.

    Raises
    ------
    ModelError
        It has none that could be found.
    """
    found = getattr(network.get_decoder(), "layers", None)
    if found is None:
        raise ModelError(f"a model of type {network.config.model_type} has no list of layers to look into")
    return found


@contextmanager
def changed(network: Any, changes: "Mapping[int, Change]") -> Iterator[None]:
    """Change the outputs of some layers inside a `with` block; afterwards the model is what it was, bit for bit.

    Parameters
    ----------
    network : transformers model
    changes : dict of int to callable
        By layer, counted from 0.
    """

    def hook(change: "Change") -> Callable[..., Any]:
        def changing(module: Any, given: Any, output: Any) -> Any:
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        return changing

    every = layers(network)
    handles = [every[number].register_forward_hook(hook(change)) for number, change in changes.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def first_steps(model: Local, context: PromptContext, prompts: Corpus, batch: int) -> Traces:
    """Return traces of prompts up to the first answer token, without generating."""
    return pd.concat([pd.DataFrame(rows) for _, rows in _prefills(model, context, prompts, batch)], ignore_index=True)


def activations(model: Local, context: PromptContext, prompts: Corpus, batch: int) -> np.ndarray:
    """Return every layer's output at the last token of each prompt.

    Parameters
    ----------
    model : local.Local
    context : prompting.PromptContext
    prompts : DataFrame
        Columns prompt_id, text.
    batch : int

    Returns
    -------
    numpy.ndarray of float32, shape (prompts, layers, dimensions)
    """
    number = len(layers(model.model.network))
    seen: list[list[np.ndarray]] = [[] for _ in range(number)]

    def looking(layer: int) -> "Change":
        def look(output: "torch.Tensor") -> "torch.Tensor":
            seen[layer].append(output[:, -1].float().cpu().numpy())
            return output

        return look

    order: list[str] = []
    found: list[np.ndarray] = []
    prefills = _prefills(model, context, prompts, batch)
    while True:
        with changed(model.model.network, {layer: looking(layer) for layer in range(number)}):
            group = next(prefills, None)
        if group is None:
            break
        order += [request.prompt_id for request in group[0]]
        # A batch is computed longest prompt first; before it, perhaps, the words that all share.
        own = [np.concatenate(parts)[-len(group[0]) :] for parts in seen]
        found.append(np.stack(own, axis=1))
        for parts in seen:
            parts.clear()
    places = pd.Series(range(len(order)), index=order)
    return np.concatenate(found)[places.loc[prompts["prompt_id"]].to_numpy()]


def place(base: Untouched, name: str) -> Path:
    """Return where a live store keeps what was learned for the third that a remedy is reported on."""
    own = base.folder(next(iter(base.corpora)), "learned")
    return base.store.writes / LEARNED / own / f"{base.name}--{name}"


def remembered(
    base: Untouched, name: str, parameters: Mapping[str, Any], learn: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return what a live store remembers of what was learned; learn and keep it where there is nothing.

    Parameters
    ----------
    base : Untouched
    name : str
        Of the remedy.
    parameters : dict
        What it was learned with; learned with others, it is learned again.
    learn : callable
        To arrays and numbers by name.

    Returns
    -------
    dict of str to numpy.ndarray or float or int
    """
    file = place(base, f"{name}.npz")
    told = json.dumps(dict(parameters), sort_keys=True)
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept[PARAMETERS]) == told:
                names = [key for key in kept.files if key != PARAMETERS]
                return {key: kept[key] if kept[key].ndim else kept[key].item() for key in names}
    found = learn()
    content = io.BytesIO()
    arrays: dict[str, Any] = {**found, PARAMETERS: np.array(told)}
    np.savez(content, allow_pickle=False, **arrays)
    stores.atomic(file, lambda part: part.write_bytes(content.getvalue()))
    return found


def _prefills(
    model: Local, context: PromptContext, prompts: Corpus, batch: int
) -> "Iterator[tuple[list[Request], list[dict[str, Any]]]]":
    """Yield batches, longest prompts first, with their traces up to the first token; hooks may be on meanwhile."""
    from paraguard_utils.models.engine import Engine, batches, shared_prefix

    asked = prompting.requests(prompts, model.reader.tokenizer, context)
    engine = Engine(model.model, asked[0].token_ids[: shared_prefix(asked)], max_new_tokens=1)
    for group in batches(asked, batch):
        yield group, engine.ask(group)
