"""Remove the direction of false refusal, orthogonal to that of true refusal (Wang et
al., arXiv 2410.03415).
"""

import hashlib
from collections.abc import Iterator
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
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.schemas import Traces

ABLATION_DEPTHS = (
    0.25,
    0.375,
    0.5,
    0.625,
    0.75,
)  # at which a direction may be taken, as a share of the layers
ABLATION_STRENGTHS = (
    0.5,
    1.0,
)  # share of the direction that is removed, the weaker first


class Ablation(NamedTuple):
    """A direction of length 1, its layer, counted from 0, and the share of it that
    every layer's output loses.
    """

    direction: np.ndarray
    layer: int
    strength: float

    def on(self, network: Any) -> AbstractContextManager[None]:
        """Remove the direction from a network's activations, at every token, inside a
        `with` block.
        """
        import torch

        unit = torch.tensor(
            self.direction,
            dtype=next(network.parameters()).dtype,
            device=network.device,
        )

        def remove(output: Any) -> Any:
            return output - self.strength * (output @ unit)[..., None] * unit

        every = range(len(inside.decoder_layers(network))) if self.strength else ()
        return inside.change_layers(network, dict.fromkeys(every, remove))


def false_refusal_directions(
    false: np.ndarray, true: np.ndarray, accepted: np.ndarray
) -> np.ndarray:
    """Return for each layer the direction of false refusal, made orthogonal to that of
    true refusal.

    `false`, `true` and `accepted` are activations of refused benign prompts, of refused
    twins and of accepted benign prompts, shape (prompts, layers, dimensions). The
    directions have length 1, shape (layers, dimensions).
    """
    wrong, right = (side.mean(axis=0) - accepted.mean(axis=0) for side in (false, true))
    right /= np.linalg.norm(right, axis=-1, keepdims=True)
    found = wrong - (wrong * right).sum(axis=-1, keepdims=True) * right
    return found / np.linalg.norm(found, axis=-1, keepdims=True)


class AblatedModel(RemediedModel):
    """A model with a direction removed from its activations."""

    def __init__(
        self, base: LocalBackend, parameters: dict[str, Any], ablation: Ablation
    ) -> None:
        digest = hashlib.sha256(
            ablation.direction.astype(np.float16).tobytes()
        ).hexdigest()[:8]
        learned = {
            "layer": ablation.layer,
            "strength": ablation.strength,
            "direction": digest,
        }
        super().__init__(
            base, parameters, learned, f"ablated-{digest}-{ablation.strength}"
        )
        self.ablation = ablation

    def _asked(
        self, groups: list[Any], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        with self.ablation.on(self.model.network):
            yield from super()._asked(groups, prefix, context)


def learn_ablation(base: UntouchedSystem, train: Split, validation: Split) -> Ablation:
    """Learn directions on the training split.

    Choose layer and strength on the validation split, by p(refuse).
    """
    context, size, known = (
        base.context,
        base.settings.batch,
        first_token.learn_refusal_rates(base, train),
    )
    benign, harmful = (
        inside.read_activations(base.local, context, prompts, size) for prompts in train
    )
    own, twins = (
        base.decide(of, prompts)["label"]
        for of, prompts in zip(base.corpora, train, strict=True)
    )
    sides = (
        (benign, own == "reject"),
        (harmful, twins == "reject"),
        (benign, own == "accept"),
    )
    every = false_refusal_directions(*(seen[rows.to_numpy()] for seen, rows in sides))

    def rejected(ablation: Ablation) -> tuple[np.ndarray, ...]:
        with ablation.on(base.local.model.network):
            steps = [
                inside.trace_first_steps(base.local, context, prompts, size)
                for prompts in validation
            ]
        return tuple(refusal.p_refuse(step, known) for step in steps)

    untouched = Ablation(every[0], 0, 0.0)
    share = float(rejected(untouched)[0].mean())
    places = [int(depth * len(every)) for depth in ABLATION_DEPTHS]
    tried = [
        Ablation(every[layer], layer, strength)
        for strength in ABLATION_STRENGTHS
        for layer in places
    ]
    return (
        first_token.choose_by_youden([untouched, *tried], rejected, share) or untouched
    )


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Make the system whose model lacks the direction of false refusal."""
    parameters = {
        "depths": list(ABLATION_DEPTHS),
        "strengths": list(ABLATION_STRENGTHS),
    }

    def respondent() -> AblatedModel:
        learn = partial(learn_ablation, base, train, validation)
        return AblatedModel(
            base.local,
            parameters,
            inside.load_or_learn(base, "ablated", parameters, Ablation, learn),
        )

    return RemediedSystem.asking(base, "ablated", parameters, respondent)


REMEDIES = (Remedy("ablated", "inside", "2410.03415", apply, asks=True),)
