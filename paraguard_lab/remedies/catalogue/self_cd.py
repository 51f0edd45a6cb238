"""Self-CD: subtract what the system prompt adds to the next token (Shi et al., arXiv
2401.17633).
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.guards import refusal
from paraguard_lab.remedies import first_token
from paraguard_lab.remedies.asking import RemediedModel, ask_remedied
from paraguard_lab.remedies.contract import RemediedSystem, Remedy, UntouchedSystem
from paraguard_lab.remedies.splits import Split, Splits
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.schemas import Corpus, Labels, Table, Traces, select_prompts
from paraguard_utils.stores import read_meta

# The system prompt whose distribution is contrasted with the system's own
PLAIN_PROMPT = "none"
SELF_CD_ALPHAS = (
    0.5,
    1.0,
    1.5,
    2.0,
    2.5,
    3.0,
)  # 0 is the wrapped prompt, 1 the plain one; more exaggerates that
MIN_REFUSAL_SHARE = (
    0.5  # a first token counts as a refusal if at least this share of its answers are
)
SELF_CD_BATCH = 16  # prompts that are generated at once, each twice


def simulate_first_tokens(wrapped: Traces, plain: Traces, alpha: float) -> np.ndarray:
    """Return the first tokens that Self-CD would choose, from recorded distributions of
    the same prompts.

    That is the token with the highest y - alpha (y - y') among those with recorded
    log-probabilities y, wrapped, and y', plain; if there are none, the wrapped prompt's
    own.
    """
    found = []
    for one, other in zip(wrapped.itertuples(), plain.itertuples(), strict=True):
        ids, mine, theirs = np.intersect1d(
            one.next_ids, other.next_ids, return_indices=True
        )
        if not len(ids):
            found.append(int(one.next_ids[0]))
            continue
        y, y_plain = (
            np.asarray(one.next_logprobs, float)[mine],
            np.asarray(other.next_logprobs, float)[theirs],
        )
        found.append(int(ids[np.argmax(y - alpha * (y - y_plain))]))
    return np.array(found, int)


def choose_alpha(base: UntouchedSystem, train: Split, validation: Split) -> float:
    """Choose alpha on the validation split, by simulating the first step."""
    known = first_token.learn_refusal_rates(base, train)

    def rejected(alpha: float) -> tuple[np.ndarray, ...]:
        return tuple(
            known.of(
                simulate_first_tokens(
                    base.traces(of, prompts),
                    base.traces(of, prompts, PLAIN_PROMPT),
                    alpha,
                )
            )
            >= MIN_REFUSAL_SHARE
            for of, prompts in zip(base.corpora, validation, strict=True)
        )

    return (
        first_token.choose_by_youden(
            SELF_CD_ALPHAS, rejected, float(rejected(0.0)[0].mean())
        )
        or 0.0
    )


class ContrastiveModel(RemediedModel):
    """A model whose next token follows from two prompts, with and without the system
    prompt.
    """

    texts: dict[str, str]

    def _asked(
        self, groups: list, prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        plain = LocalBackend(self.model).context("", context.decoding)
        for group in groups:
            starts = range(0, len(group), SELF_CD_BATCH)
            parts = [
                self._generated(group[i : i + SELF_CD_BATCH], context, plain)
                for i in starts
            ]
            yield pd.concat(parts, ignore_index=True)

    def _generated(
        self, group: list, context: PromptContext, plain: PromptContext
    ) -> Traces:
        """Generate with classifier-free guidance of transformers: the plain prompt
        against the wrapped one.
        """
        import torch

        from paraguard_utils.models.engine import TOP_TOKENS, find_stop_tokens

        tokenizer, network, stops = (
            self.reader.tokenizer,
            self.model.network,
            find_stop_tokens(self.model),
        )
        own = [self.texts[request.prompt_id] for request in group]
        padded = {
            "add_special_tokens": False,
            "padding": True,
            "padding_side": "left",
            "return_tensors": "pt",
        }
        inputs, negative = (
            tokenizer([one.prefix + text + one.suffix for text in own], **padded).to(
                network.device
            )
            for one in (plain, context)
        )
        with torch.inference_mode():
            generate: Any = network.generate
            made = generate(
                **inputs,
                negative_prompt_ids=negative["input_ids"],
                negative_prompt_attention_mask=negative["attention_mask"],
                guidance_scale=self.learned["alpha"],
                max_new_tokens=context.decoding.max_new_tokens,
                do_sample=False,
                # Some models' settings punish repetition, but usual answers ignore them
                repetition_penalty=1.0,
                eos_token_id=stops,
                pad_token_id=stops[0],
                return_dict_in_generate=True,
                output_scores=True,
            )
        answers = made.sequences[:, inputs["input_ids"].shape[1] :]
        scores = made.scores[0].cpu().double()
        top = torch.log_softmax(scores, dim=-1).topk(min(TOP_TOKENS, scores.shape[-1]))
        rows = []
        for request, tokens, ids, logprobs in zip(
            group, answers.tolist(), top.indices, top.values, strict=True
        ):
            stop = next((i for i, token in enumerate(tokens) if token in stops), None)
            rows.append(
                {
                    **vars(request),
                    "response": (
                        str(
                            tokenizer.decode(tokens[:stop], skip_special_tokens=True)
                        ).strip()
                    ),
                    "finish_reason": "length" if stop is None else "stop",
                    "token_ids": np.array(request.token_ids, np.int32),
                    "token_nll": np.full(
                        len(request.token_ids), np.nan, np.float32
                    ),  # no one prompt has them
                    "next_ids": ids.numpy().astype(np.int32),
                    "next_logprobs": logprobs.numpy().astype(np.float32),
                    "tail_mass": float(max(0.0, 1.0 - logprobs.exp().sum())),
                }
            )
        return pd.DataFrame(rows)

    def answers(
        self, corpus: Corpus, context: PromptContext, *rest: Any, **more: Any
    ) -> Iterator[Traces]:
        """Keep the user's words, which are asked twice, and ask."""
        self.texts = dict(zip(corpus["prompt_id"], corpus["text"], strict=True))
        return super().answers(corpus, context, *rest, **more)


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Contrast the wrapped and the plain prompt at every step."""
    parameters = {"plain": PLAIN_PROMPT, "alphas": list(SELF_CD_ALPHAS)}

    @cache
    def respondent() -> ContrastiveModel:
        alpha = choose_alpha(base, train, validation)
        return ContrastiveModel(
            base.local, parameters, {"alpha": alpha}, f"self-cd-{alpha}"
        )

    def decide(of: str, prompts: Corpus | None) -> Labels:
        numbers = of in base.corpora  # for `check_simulation`
        return ask_remedied(
            base, "self-cd", parameters, respondent, of, prompts, numbers=numbers
        ).assign(queries=2)

    return RemediedSystem(decide, respondent)


def check_simulation(base: UntouchedSystem, folds: Sequence[Splits]) -> Table:
    """Compare the simulated first step with the real one.

    No rows if the system was not asked.

    Columns: system, third (number of the test split), prompts (corpus), n, alpha,
    agrees (the share of prompts whose first token is the simulated one, with its
    interval).
    """
    made = []
    sides = [
        (fold.third, *side)
        for fold in folds
        for side in zip(base.corpora, fold.test, strict=True)
    ]
    for third, of, prompts in sides:
        folder = base.reported_on(third).folder(of, "self-cd")
        if not base.store.has("traces", folder, base.name):
            continue
        real = refusal.first_tokens(
            select_prompts(base.store.read("traces", folder, base.name), prompts)
        )
        alpha = read_meta(base.store.path("labels", folder, base.name))["learned"][
            "alpha"
        ]
        same = (
            simulate_first_tokens(
                base.traces(of, prompts), base.traces(of, prompts, PLAIN_PROMPT), alpha
            )
            == real
        )
        agrees = ClusterBootstrap(prompts["cluster_id"]).share(
            prompts["cluster_id"], same
        )
        about = {
            "system": base.name,
            "third": third,
            "prompts": of,
            "n": len(prompts),
            "alpha": alpha,
        }
        made.append(about | to_columns({"agrees": agrees}))
    return pd.DataFrame(made)


REMEDIES = (Remedy("self-cd", "decision", "2401.17633", apply, asks=True, queries=2),)
