"""Self-CD: what the wrapper adds to the next token is taken back (Shi et al., arXiv 2401.17633)."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.models.local import Local
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.remedies import first_token
from paraguard_utils.remedies.asking import Remedied, ask
from paraguard_utils.remedies.catalogue.threshold import rates
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Splits, Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.remedies.untouched import rows as known_rows
from paraguard_utils.schemas import Corpus, Labels, Table, Traces
from paraguard_utils.stores import read_meta

PLAIN = "none"
"""The wrapper whose distribution is contrasted with the target's own."""

ALPHAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""0 is the wrapped prompt, 1 the plain one; beyond, the plain one exaggerated."""

LIKELY = 0.5
"""Share of refusals from which on a first token counts as one."""

ROWS = 16
"""Prompts that are generated at once, each twice."""


def simulated(wrapped: Traces, plain: Traces, alpha: float) -> np.ndarray:
    """Return the first tokens that Self-CD would choose, from recorded distributions.

    Parameters
    ----------
    wrapped, plain : DataFrame
        Traces of the same prompts, in the same order.
    alpha : float, >= 0

    Returns
    -------
    numpy.ndarray of int
        The token of the highest y - alpha (y - y') among those whose log-probabilities y, wrapped, and y', plain, are
        both recorded; the wrapped prompt's own where none is.
    """
    found = []
    for one, other in zip(wrapped.itertuples(), plain.itertuples(), strict=True):
        ids, mine, theirs = np.intersect1d(one.next_ids, other.next_ids, return_indices=True)
        if not len(ids):
            found.append(int(one.next_ids[0]))
            continue
        y, y_plain = np.asarray(one.next_logprobs, float)[mine], np.asarray(other.next_logprobs, float)[theirs]
        found.append(int(ids[np.argmax(y - alpha * (y - y_plain))]))
    return np.array(found, int)


def chosen_alpha(base: Untouched, train: Third, validation: Third) -> float:
    """Choose alpha on the validation third, by simulating the first step."""
    known = rates(base, train)

    def rejected(alpha: float) -> tuple[np.ndarray, ...]:
        return tuple(
            known.of(simulated(base.traces(of, prompts), base.traces(of, prompts, PLAIN), alpha)) >= LIKELY
            for of, prompts in zip(base.corpora, validation, strict=True)
        )

    # At 0 the first step is the wrapped prompt's own.
    return first_token.best(ALPHAS, rejected, float(rejected(0.0)[0].mean())) or 0.0


class Contrasting(Remedied):
    """A model whose next token is that of two prompts, with and without the wrapper."""

    texts: dict[str, str]

    def _asked(self, groups: list, prefix: tuple[int, ...], context: PromptContext) -> Iterator[Traces]:
        plain = Local(self.model).context("", context.decoding)
        for group in groups:
            yield pd.concat(
                [self._generated(group[i : i + ROWS], context, plain) for i in range(0, len(group), ROWS)],
                ignore_index=True,
            )

    def _generated(self, group: list, context: PromptContext, plain: PromptContext) -> Traces:
        """Generate with transformers' classifier-free guidance: of the plain prompt, against the wrapped one."""
        import torch

        from paraguard_utils.models.engine import TOP, stop_ids

        tokenizer, network = self.reader.tokenizer, self.model.network
        own = [self.texts[request.prompt_id] for request in group]
        sides = [
            tokenizer(
                [one.prefix + text + one.suffix for text in own],
                add_special_tokens=False, padding=True, padding_side="left", return_tensors="pt",
            ).to(network.device)
            for one in (plain, context)
        ]  # fmt: skip
        with torch.inference_mode():
            generate: Any = network.generate
            made = generate(
                **sides[0],
                negative_prompt_ids=sides[1]["input_ids"],
                negative_prompt_attention_mask=sides[1]["attention_mask"],
                guidance_scale=self.learned["alpha"],
                max_new_tokens=context.decoding.max_new_tokens,
                do_sample=False,
                repetition_penalty=1.0,  # some models' settings punish it; the usual answers know nothing of that
                eos_token_id=stop_ids(self.model),
                pad_token_id=stop_ids(self.model)[0],
                return_dict_in_generate=True,
                output_scores=True,
            )
        answers = made.sequences[:, sides[0]["input_ids"].shape[1] :]
        scores = made.scores[0].cpu().double()
        top = torch.log_softmax(scores, dim=-1).topk(min(TOP, scores.shape[-1]))
        ends = set(stop_ids(self.model))
        rows = []
        for request, tokens, ids, logprobs in zip(group, answers.tolist(), top.indices, top.values, strict=True):
            stop = next((i for i, token in enumerate(tokens) if token in ends), None)
            rows.append(
                {
                    "prompt_id": request.prompt_id,
                    "key": request.key,
                    "response": str(tokenizer.decode(tokens[:stop], skip_special_tokens=True)).strip(),
                    "finish_reason": "length" if stop is None else "stop",
                    "token_ids": np.array(request.token_ids, np.int32),
                    "token_nll": np.full(len(request.token_ids), np.nan, np.float32),  # no one prompt has them
                    "user_start": request.user_start,
                    "user_end": request.user_end,
                    "next_ids": ids.numpy().astype(np.int32),
                    "next_logprobs": logprobs.numpy().astype(np.float32),
                    "tail_mass": float(max(0.0, 1.0 - logprobs.exp().sum())),
                }
            )
        return pd.DataFrame(rows)

    def prepare(self, corpus: Corpus, context: PromptContext) -> None:
        """Keep the user's words, which are needed twice."""
        self.texts = dict(zip(corpus["prompt_id"], corpus["text"], strict=True))


def apply(base: Untouched, train: Third, validation: Third) -> Target:
    """Contrast the wrapped and the plain prompt at every step."""
    parameters = {"plain": PLAIN, "alphas": list(ALPHAS)}

    @cache
    def respondent() -> Contrasting:
        alpha = chosen_alpha(base, train, validation)
        return Contrasting(base.local, parameters, {"alpha": alpha}, f"self-cd-{alpha}")

    def decide(of: str, prompts: Corpus | None) -> Labels:
        numbers = of in base.corpora  # to hold the first token against the simulated one
        return ask(base, "self-cd", parameters, respondent, of, prompts, numbers=numbers).assign(queries=2)

    return Target(decide, respondent)


def checked(base: Untouched, folds: Sequence[Splits]) -> Table:
    """Hold the simulated first step against the real one.

    Parameters
    ----------
    base : Untouched
    folds : sequence of Splits
        From `splits.folds`.

    Returns
    -------
    DataFrame, one row per third and corpus
        target, third, prompts, n, alpha, agrees (the share of prompts whose first token is the simulated one, with its
        interval); no rows where the target was not asked.
    """
    rows = []
    sides = [(fold.third, *side) for fold in folds for side in zip(base.corpora, fold.test, strict=True)]
    for third, of, prompts in sides:
        folder = base.reported_on(third).folder(of, "self-cd")
        if not base.store.has("traces", folder, base.name):
            continue
        real = first_token.first(known_rows(base.store.read("traces", folder, base.name), prompts))
        alpha = read_meta(base.store.path("labels", folder, base.name))["learned"]["alpha"]
        same = simulated(base.traces(of, prompts), base.traces(of, prompts, PLAIN), alpha) == real
        agrees = ClusterBootstrap(prompts["cluster_id"]).share(prompts["cluster_id"], same)
        about = {"target": base.name, "third": third, "prompts": of, "n": len(prompts), "alpha": alpha}
        rows.append(about | to_columns({"agrees": agrees}))
    return pd.DataFrame(rows)


REMEDIES = (Remedy("self-cd", "decision", "2401.17633", apply, asks=True, queries=2),)
