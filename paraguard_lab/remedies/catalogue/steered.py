"""SCANS: steer activations away from refusal, or towards it for harmful requests (Cao
et al., arXiv 2408.11491).
"""

import hashlib
from collections.abc import Iterator
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
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.schemas import Corpus, Traces

STEERING_MULTIPLIERS = (0.05, 0.1, 0.2)
"""Length of the added vector as a share of the layer's mean activation length (ours;
the paper's is absolute).
"""

STEERING_BATCH = 64  # prompts whose activations are read together

ASSENT_TEXT = "Sure"
"""Put behind a prompt: the move of activations from before it to behind it tells
harmful requests (the paper's).
"""


class Steering(NamedTuple):
    """Vectors that are added to or taken from the middle layers, and the rule that
    tells harmful requests.

    The vectors point towards refusal, with the length of multiplier 1; the references
    are the mean transition of harmful requests; both have the shape (layers,
    dimensions). Layers from `first` to before `last` are steered, and transitions are
    read from `first` to the end. A request counts as harmful if its cosine with the
    reference is at least `limit`.
    """

    vectors: np.ndarray
    references: np.ndarray
    first: int
    last: int
    limit: float
    multiplier: float = 0.0

    def on(self, network: Any, sign: int) -> AbstractContextManager[None]:
        """Steer a network towards refusal (1) or away from it (-1) inside a `with`
        block.
        """
        import torch

        like = next(network.parameters())
        moves = torch.tensor(
            sign * self.multiplier * self.vectors,
            dtype=like.dtype,
            device=network.device,
        )
        every = range(self.first, self.last) if self.multiplier else ()
        return inside.change_layers(
            network, {layer: partial(torch.add, moves[layer]) for layer in every}
        )

    def harmful(self, before: np.ndarray, behind: np.ndarray) -> np.ndarray:
        """Return which requests are harmful, from activations before and behind the
        assent.
        """
        return mean_cosines(before - behind, self.references, self.first) >= self.limit


def mean_cosines(moves: np.ndarray, references: np.ndarray, first: int) -> np.ndarray:
    """Return the mean cosine of transitions with the references over layers from
    `first` on, shape (prompts,).
    """
    moves, references = moves[:, first:], references[first:]
    lengths = np.linalg.norm(moves, axis=-1) * np.linalg.norm(references, axis=-1)
    return ((moves * references).sum(axis=-1) / np.maximum(lengths, 1e-12)).mean(
        axis=-1
    )


def choose_cosine_limit(benign: np.ndarray, harmful: np.ndarray) -> float:
    """Return the cosine with the highest balanced accuracy on training requests, the
    lowest among equals.
    """
    values = np.unique(np.concatenate([benign, harmful]))
    return float(
        max(
            values,
            key=lambda value: np.mean(harmful >= value) + np.mean(benign < value),
        )
    )


class SteeredModel(RemediedModel):
    """A model whose middle layers are steered, for each request in its own direction."""

    def __init__(
        self, base: LocalBackend, parameters: dict[str, Any], steering: Steering
    ) -> None:
        parts = (steering.vectors, steering.references, np.array([steering.limit]))
        digest = hashlib.sha256(
            b"".join(part.astype(np.float16).tobytes() for part in parts)
        ).hexdigest()[:8]
        learned = {
            "multiplier": steering.multiplier,
            "limit": round(steering.limit, 4),
            "vectors": digest,
        }
        super().__init__(
            base, parameters, learned, f"steered-{digest}-{steering.multiplier}"
        )
        self.steering, self.harmful = steering, pd.Series(dtype=bool)

    def answers(
        self, corpus: Corpus, context: PromptContext, *rest: Any, **more: Any
    ) -> Iterator[Traces]:
        """Find the harmful requests, and ask."""
        told = self.steering.harmful(
            *read_transitions(LocalBackend(self.model), context, corpus, STEERING_BATCH)
        )
        self.harmful = pd.Series(told, index=corpus["prompt_id"])
        return super().answers(corpus, context, *rest, **more)

    def _asked(
        self, groups: list[Any], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        for group in groups:
            for sign in (1, -1):
                own = [
                    request
                    for request in group
                    if self.harmful[request.prompt_id] == (sign > 0)
                ]
                if own:
                    with self.steering.on(self.model.network, sign):
                        yield from super()._asked([own], prefix, context)


def read_transitions(
    model: LocalBackend, context: PromptContext, prompts: Corpus, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return activations at the last token of prompts, and at the last token of the
    assent behind them.
    """
    behind = replace(context, suffix=context.suffix + ASSENT_TEXT)
    before, after = (
        inside.read_activations(model, one, prompts, batch) for one in (context, behind)
    )
    return before, after


def learn_steering(base: UntouchedSystem, train: Split, validation: Split) -> Steering:
    """Learn vectors and the limit on the training split.

    Choose the multiplier on the validation split.
    """
    context, size, known = (
        base.context,
        base.settings.batch,
        first_token.learn_refusal_rates(base, train),
    )
    benign, harmful = (
        read_transitions(base.local, context, prompts, size) for prompts in train
    )
    away = harmful[0].mean(axis=0) - benign[0].mean(axis=0)
    lengths = np.linalg.norm(benign[0], axis=-1).mean(axis=0)[:, None]
    vectors = away / np.linalg.norm(away, axis=-1, keepdims=True) * lengths
    references = (harmful[0] - harmful[1]).mean(axis=0)
    depth = len(vectors)
    first, last = round(depth / 3), round(depth * 2 / 3)
    cosines = [
        mean_cosines(before - behind, references, first)
        for before, behind in (benign, harmful)
    ]
    untouched = Steering(
        vectors, references, first, last, choose_cosine_limit(*cosines)
    )
    told = [
        untouched.harmful(*read_transitions(base.local, context, prompts, size))
        for prompts in validation
    ]

    def rejected(steering: Steering) -> tuple[np.ndarray, ...]:
        found = []
        for prompts, harmful in zip(validation, told, strict=True):
            p = np.zeros(len(prompts))
            for sign, rows in ((1, harmful), (-1, ~harmful)):
                if rows.any():
                    with steering.on(base.local.model.network, sign):
                        steps = inside.trace_first_steps(
                            base.local, context, prompts[rows], size
                        )
                    p[rows] = refusal.p_refuse(steps, known)
            found.append(p)
        return tuple(found)

    tried = [
        untouched,
        *(untouched._replace(multiplier=one) for one in STEERING_MULTIPLIERS),
    ]
    return (
        first_token.choose_by_youden(
            tried, rejected, float(rejected(untouched)[0].mean())
        )
        or untouched
    )


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Steer every request."""
    parameters = {"multipliers": list(STEERING_MULTIPLIERS), "assent": ASSENT_TEXT}

    def respondent() -> SteeredModel:
        learn = partial(learn_steering, base, train, validation)
        return SteeredModel(
            base.local,
            parameters,
            inside.load_or_learn(base, "steered", parameters, Steering, learn),
        )

    return RemediedSystem.asking(base, "steered", parameters, respondent)


REMEDIES = (Remedy("steered", "inside", "2408.11491", apply, asks=True),)
