"""Read a model's activations, and change them for a while (`docs/method.md`, Remedies)."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from paraguard_utils import stores
from paraguard_utils.errors import ModelError
from paraguard_utils.models import prompting
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.remedies.untouched import UntouchedSystem
from paraguard_utils.schemas import Corpus, Traces

ADAPTERS_FOLDER = "adapters"
"""Folder of a live store for what was learned; it is never published."""

_PARAMETERS_KEY = "parameters"

if TYPE_CHECKING:
    import torch

    from paraguard_utils.models.prompting import Request

    Change = Callable[[torch.Tensor], torch.Tensor]
    """Makes a new output of a layer from its output, shape (rows, tokens, dimensions)."""


def decoder_layers(network: Any) -> Sequence[Any]:
    """Return a model's decoder layers; raises ModelError if none are found."""
    found = getattr(network.get_decoder(), "layers", None)
    if found is None:
        raise ModelError(f"a model of type {network.config.model_type} has no list of layers to look into")
    return found


@contextmanager
def change_layers(network: Any, changes: "Mapping[int, Change]") -> Iterator[None]:
    """Change the outputs of some layers, counted from 0, inside a `with` block; then restore the model, bit for bit."""

    def hook(change: "Change") -> Callable[..., Any]:
        def changing(module: Any, given: Any, output: Any) -> Any:
            return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

        return changing

    every = decoder_layers(network)
    handles = [every[number].register_forward_hook(hook(change)) for number, change in changes.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def trace_first_steps(model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int) -> Traces:
    """Return traces of prompts up to the first answer token, without generating."""
    return pd.concat([pd.DataFrame(rows) for _, rows in _prefills(model, context, prompts, batch)], ignore_index=True)


def read_activations(model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int) -> np.ndarray:
    """Return every layer's output at each prompt's last token, float32, shape (prompts, layers, dimensions)."""
    number = len(decoder_layers(model.model.network))
    seen: list[list[np.ndarray]] = [[] for _ in range(number)]

    def keep(layer: int, output: "torch.Tensor") -> "torch.Tensor":
        seen[layer].append(output[:, -1].float().cpu().numpy())
        return output

    order: list[str] = []
    found: list[np.ndarray] = []
    with change_layers(model.model.network, {layer: partial(keep, layer) for layer in range(number)}):
        for group, _ in _prefills(model, context, prompts, batch):
            order += [request.prompt_id for request in group]
            # The engine may first compute the words that all prompts share, and a batch in several parts.
            found.append(np.stack([np.concatenate(parts)[-len(group) :] for parts in seen], axis=1))
            for parts in seen:
                parts.clear()
    places = pd.Series(range(len(order)), index=order)
    return np.concatenate(found)[places.loc[prompts["prompt_id"]].to_numpy()]


def learned_path(base: UntouchedSystem, name: str) -> Path:
    """Return where a live store keeps what was learned for the test split."""
    own = base.folder(next(iter(base.corpora)), "learned")
    return base.store.writes / ADAPTERS_FOLDER / own / f"{base.name}--{name}"


def load_or_learn(
    base: UntouchedSystem, name: str, parameters: Mapping[str, Any], learn: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the arrays and numbers learned with these parameters; learn and keep them if there are none."""
    file = learned_path(base, f"{name}.npz")
    told = json.dumps(dict(parameters), sort_keys=True)
    if file.is_file():
        with np.load(file, allow_pickle=False) as kept:
            if str(kept[_PARAMETERS_KEY]) == told:
                names = [key for key in kept.files if key != _PARAMETERS_KEY]
                return {key: kept[key] if kept[key].ndim else kept[key].item() for key in names}
    found = learn()
    content = io.BytesIO()
    arrays: dict[str, Any] = {**found, _PARAMETERS_KEY: np.array(told)}
    np.savez(content, allow_pickle=False, **arrays)
    stores.write_atomically(file, lambda part: part.write_bytes(content.getvalue()))
    return found


def _prefills(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> "Iterator[tuple[list[Request], list[dict[str, Any]]]]":
    """Yield batches, longest prompts first, with their traces up to the first answer token."""
    from paraguard_utils.models.engine import Engine, count_shared_tokens, split_into_batches

    asked = prompting.tokenize_prompts(prompts, model.reader.tokenizer, context)
    engine = Engine(model.model, asked[0].token_ids[: count_shared_tokens(asked)], max_new_tokens=1)
    for group in split_into_batches(asked, batch):
        yield group, engine.ask(group)
