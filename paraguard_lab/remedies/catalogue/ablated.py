"""Remove the direction of false refusal from a model's activations.

It is orthogonal to that of true refusal (Wang et al., arXiv 2410.03415).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, NamedTuple

import numpy as np

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
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.schemas import Traces

ABLATION_DEPTHS = (0.25, 0.375, 0.5, 0.625, 0.75)
"""Depths at which a direction may be taken, as a share of the layers."""

ABLATION_STRENGTHS = (0.5, 1.0)
"""Share of the direction that is removed, the weaker first."""


class Ablation(NamedTuple):
    """A direction that every layer's output loses.

    `direction` has length 1; `layer`, counted from 0, is where it was found; `strength`
    is the share of it that is removed.
    """

    direction: np.ndarray
    layer: int
    strength: float

    def on(self, network: Any) -> AbstractContextManager[None]:
        """Remove the direction from a network's activations inside a `with` block.

        It is removed at every token.
        """
        import torch

        dtype = next(network.parameters()).dtype
        unit = torch.tensor(self.direction, dtype=dtype, device=network.device)

        def remove(output: Any) -> Any:
            return output - self.strength * (output @ unit)[..., None] * unit

        layers = range(len(inside.decoder_layers(network))) if self.strength else ()
        return inside.change_layers(network, dict.fromkeys(layers, remove))


def false_refusal_directions(
    false: np.ndarray, true: np.ndarray, accepted: np.ndarray
) -> np.ndarray:
    """Return for each layer the direction of false refusal.

    It is made orthogonal to that of true refusal.

    Parameters
    ----------
    false, true, accepted : array, shape (prompts, layers, dimensions)
        Activations of refused benign prompts, of refused twins and of accepted benign
        prompts.

    Returns
    -------
    array, shape (layers, dimensions)
        Each direction has length 1.
    """
    toward_false = false.mean(axis=0) - accepted.mean(axis=0)
    toward_true = true.mean(axis=0) - accepted.mean(axis=0)
    toward_true /= np.linalg.norm(toward_true, axis=-1, keepdims=True)
    shared = (toward_false * toward_true).sum(axis=-1, keepdims=True) * toward_true
    direction = toward_false - shared
    return direction / np.linalg.norm(direction, axis=-1, keepdims=True)


class AblatedModel(RemediedModel):
    """A model with a direction removed from its activations."""

    def __init__(
        self, base: LocalBackend, parameters: dict[str, Any], ablation: Ablation
    ) -> None:
        digest = inside.digest_arrays(ablation.direction)
        learned = {
            "layer": ablation.layer,
            "strength": ablation.strength,
            "direction": digest,
        }
        state = f"ablated-{digest}-{ablation.strength}"
        super().__init__(base, parameters, learned, state)
        self.ablation = ablation

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches of requests without the direction."""
        with self.ablation.on(self.model.network):
            yield from super().answer_batches(batches, prefix, context)


def learn_ablation(base: UntouchedSystem, train: Split, validation: Split) -> Ablation:
    """Learn directions on the training split.

    Choose layer and strength on the validation split, by p(refuse).
    """
    model = base.local
    context = base.context
    size = base.settings.batch
    rates = first_token.learn_refusal_rates(base, train)
    benign = inside.read_activations(model, context, train.benign, size)
    harmful = inside.read_activations(model, context, train.twins, size)
    benign_corpus, twins_corpus = base.corpora
    benign_labels = base.decide(benign_corpus, train.benign)["label"]
    twins_labels = base.decide(twins_corpus, train.twins)["label"]
    directions = false_refusal_directions(
        false=benign[benign_labels == "reject"],
        true=harmful[twins_labels == "reject"],
        accepted=benign[benign_labels == "accept"],
    )

    def rejected(ablation: Ablation) -> list[np.ndarray]:
        sides = []
        with ablation.on(model.model.network):
            for prompts in validation:
                steps = inside.trace_first_steps(model, context, prompts, size)
                sides.append(refusal.p_refuse(steps, rates))
        return sides

    untouched = Ablation(directions[0], 0, 0.0)
    tried = [untouched]
    for strength in ABLATION_STRENGTHS:
        for depth in ABLATION_DEPTHS:
            layer = int(depth * len(directions))
            tried.append(Ablation(directions[layer], layer, strength))
    share = rejected(untouched)[0].mean()
    return first_token.choose_by_youden(tried, rejected, share) or untouched


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Make the system whose model lacks the direction of false refusal."""
    parameters = {
        "depths": list(ABLATION_DEPTHS),
        "strengths": list(ABLATION_STRENGTHS),
    }

    def respondent() -> AblatedModel:
        learn = partial(learn_ablation, base, train, validation)
        ablation = inside.load_or_learn(base, "ablated", parameters, Ablation, learn)
        return AblatedModel(base.local, parameters, ablation)

    return RemediedSystem.asking(base, "ablated", parameters, respondent)


REMEDIES = (Remedy("ablated", "inside", "2410.03415", apply, asks=True),)
