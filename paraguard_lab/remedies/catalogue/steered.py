"""SCANS: steer activations away from refusal, or towards it for harmful requests.

(Cao et al., arXiv 2408.11491)
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.guards import refusal
from paraguard_lab.remedies import first_token, inside
from paraguard_lab.remedies.asking import RemediedModel
from paraguard_lab.remedies.contract import (
    RemediedSystem,
    Remedy,
    Split,
    UntouchedSystem,
)
from paraguard_utils.models.local import Batch, LocalBackend
from paraguard_utils.models.prompting import PromptContext, Workload
from paraguard_utils.schemas import Corpus, Traces

STEERING_MULTIPLIERS = (0.05, 0.1, 0.2)
"""Length of the added vector as a share of the layer's mean activation length (ours;
the paper's is absolute).
"""

STEERING_BATCH = 64  # prompts whose activations are read together

ASSENT_TEXT = "Sure"
"""Put behind a prompt: how activations move from before it to behind it identifies
harmful requests (the paper's).
"""


class Steering(NamedTuple):
    """Vectors that steer the middle layers, and the rule that finds harmful requests.

    Attributes
    ----------
    vectors : array, shape (layers, dimensions)
        They point towards refusal, with the length of multiplier 1.
    references : array, shape (layers, dimensions)
        The mean transition of harmful requests.
    first, last : int
        Layers from `first` to before `last` are steered, and transitions are read from
        `first` to the end.
    limit : float
        A request counts as harmful if its cosine with the references is this or more.
    multiplier : float
        Length of the added vectors; 0 changes nothing.
    """

    vectors: np.ndarray
    references: np.ndarray
    first: int
    last: int
    limit: float
    multiplier: float = 0.0

    def on(self, network: Any, sign: int) -> AbstractContextManager[None]:
        """Steer a network inside a `with` block.

        It is steered towards refusal (1) or away from it (-1).
        """
        import torch

        moves = torch.tensor(
            sign * self.multiplier * self.vectors,
            dtype=next(network.parameters()).dtype,
            device=network.device,
        )
        layers = range(self.first, self.last) if self.multiplier else ()
        changes = {layer: partial(torch.add, moves[layer]) for layer in layers}
        return inside.change_layers(network, changes)

    def harmful(self, before: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Return which requests are harmful.

        The activations are those before and behind the assent.
        """
        cosines = mean_cosines(before - behind, self.references, self.first)
        return cosines >= self.limit


def mean_cosines(moves: np.ndarray, references: np.ndarray, first: int) -> np.ndarray:
    """Return the mean cosine of transitions with the references.

    Parameters
    ----------
    moves : array, shape (prompts, layers, dimensions)
    references : array, shape (layers, dimensions)
    first : int
        The mean is over the layers from this one on.

    Returns
    -------
    array, shape (prompts,)
    """
    moves = moves[:, first:]
    references = references[first:]
    lengths = np.linalg.norm(moves, axis=-1) * np.linalg.norm(references, axis=-1)
    products = (moves * references).sum(axis=-1)
    return (products / np.maximum(lengths, 1e-12)).mean(axis=-1)


def choose_cosine_limit(benign: np.ndarray, harmful: np.ndarray) -> float:
    """Return the cosine with the highest balanced accuracy on training requests.

    Among equals it is the lowest.

    Parameters
    ----------
    benign, harmful : array
        Cosines of benign requests and of harmful ones, in any order.
    """

    def accuracy(value: float) -> float:
        return float(np.mean(harmful >= value) + np.mean(benign < value))

    return float(max(np.unique(np.concatenate([benign, harmful])), key=accuracy))


class SteeredModel(RemediedModel):
    """A model whose middle layers are steered, for each request in its direction."""

    def __init__(
        self, base: LocalBackend, parameters: dict[str, Any], steering: Steering
    ) -> None:
        limit = np.array([steering.limit])
        digest = inside.digest_arrays(steering.vectors, steering.references, limit)
        learned = {
            "multiplier": steering.multiplier,
            "limit": round(steering.limit, 4),
            "vectors": digest,
        }
        state = f"steered-{digest}-{steering.multiplier}"
        super().__init__(base, parameters, learned, state)
        self.steering = steering
        self.harmful = pd.Series(dtype=bool)  # by prompt_id

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Find the harmful requests, and query the model."""
        model = LocalBackend(self.model)
        prompts = workload.prompts
        before, behind = read_transitions(model, context, prompts, STEERING_BATCH)
        is_harmful = self.steering.harmful(before, behind)
        self.harmful = pd.Series(is_harmful, index=prompts["prompt_id"])
        return super().answers(workload, context)

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches, and steer harmful and harmless requests differently."""
        for batch in batches:
            harmful = [r for r in batch if self.harmful[r.prompt_id]]
            harmless = [r for r in batch if not self.harmful[r.prompt_id]]
            for sign, requests in ((1, harmful), (-1, harmless)):
                if requests:
                    with self.steering.on(self.model.network, sign):
                        yield from super().answer_batches([requests], prefix, context)


def read_transitions(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return activations at the last token of prompts, and of the assent behind.

    Both have the shape (prompts, layers, dimensions).
    """
    assenting = replace(context, suffix=context.suffix + ASSENT_TEXT)
    before = inside.read_activations(model, context, prompts, batch)
    behind = inside.read_activations(model, assenting, prompts, batch)
    return before, behind


def learn_steering(base: UntouchedSystem, train: Split, validation: Split) -> Steering:
    """Learn vectors and the limit on the training split.

    Choose the multiplier on the validation split.
    """
    model = base.local
    context = base.context
    size = base.settings.batch
    rates = first_token.learn_refusal_rates(base, train)
    untouched = _learn_directions(base, train)
    is_harmful = []
    for prompts in validation:
        transitions = read_transitions(model, context, prompts, size)
        is_harmful.append(untouched.harmful(*transitions))

    def rejected(steering: Steering) -> list[np.ndarray]:
        sides = []
        for prompts, harmful in zip(validation, is_harmful, strict=True):
            p = np.zeros(len(prompts))
            for sign, rows in ((1, harmful), (-1, ~harmful)):
                if not rows.any():
                    continue
                asked = prompts[rows]
                with steering.on(model.model.network, sign):
                    steps = inside.trace_first_steps(model, context, asked, size)
                p[rows] = refusal.p_refuse(steps, rates)
            sides.append(p)
        return sides

    tried = [untouched._replace(multiplier=m) for m in (0.0, *STEERING_MULTIPLIERS)]
    share = rejected(untouched)[0].mean()
    return first_token.choose_by_youden(tried, rejected, share) or untouched


def _learn_directions(base: UntouchedSystem, train: Split) -> Steering:
    """Learn all but the multiplier, which stays 0."""
    model = base.local
    context = base.context
    size = base.settings.batch
    benign, benign_behind = read_transitions(model, context, train.benign, size)
    harmful, harmful_behind = read_transitions(model, context, train.twins, size)
    away = harmful.mean(axis=0) - benign.mean(axis=0)
    lengths = np.linalg.norm(benign, axis=-1).mean(axis=0)[:, None]
    vectors = away / np.linalg.norm(away, axis=-1, keepdims=True) * lengths
    moves = harmful - harmful_behind
    references = moves.mean(axis=0)
    first = round(len(vectors) / 3)
    last = round(len(vectors) * 2 / 3)
    benign_cosines = mean_cosines(benign - benign_behind, references, first)
    harmful_cosines = mean_cosines(moves, references, first)
    limit = choose_cosine_limit(benign_cosines, harmful_cosines)
    return Steering(vectors, references, first, last, limit)


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Steer every request."""
    parameters = {"multipliers": list(STEERING_MULTIPLIERS), "assent": ASSENT_TEXT}

    def respondent() -> SteeredModel:
        learn = partial(learn_steering, base, train, validation)
        steering = inside.load_or_learn(base, "steered", parameters, Steering, learn)
        return SteeredModel(base.local, parameters, steering)

    return RemediedSystem.asking(base, "steered", parameters, respondent)


REMEDIES = (Remedy("steered", "inside", "2408.11491", apply, asks=True),)
