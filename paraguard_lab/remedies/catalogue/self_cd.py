"""Self-CD: subtract what the system prompt adds to the next token.

(Shi et al., arXiv 2401.17633)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from paraguard_lab.guards import refusal
from paraguard_lab.remedies import first_token
from paraguard_lab.remedies.asking import RemediedModel
from paraguard_lab.remedies.contract import RemediedSystem, Remedy, UntouchedSystem
from paraguard_lab.remedies.splits import Split, Splits
from paraguard_utils import paths
from paraguard_utils.core.estimates import ClusterBootstrap, to_columns
from paraguard_utils.models.local import Batch, LocalBackend
from paraguard_utils.models.prompting import PromptContext, Workload
from paraguard_utils.schemas import Corpus, Labels, Table, Traces, select_prompts
from paraguard_utils.stores import read_meta

# The system prompt whose distribution is contrasted with the system's own
PLAIN_PROMPT = "none"

SELF_CD_ALPHAS = (0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
"""0 is the system's own prompt, 1 the plain one; more exaggerates the difference."""

MIN_REFUSAL_SHARE = 0.5
"""A first token counts as a refusal if at least this share of its answers are."""

SELF_CD_BATCH = 16  # prompts that are generated at once, each twice


def simulate_first_tokens(
    instructed: Traces, plain: Traces, alpha: float
) -> np.ndarray:
    """Return the first tokens that Self-CD would choose, from recorded distributions.

    Among the tokens with recorded log-probabilities y under the system prompt and y'
    without it, that is the one with the highest y - alpha (y - y'); if there are none,
    the first one under the system prompt.

    Parameters
    ----------
    instructed, plain : Traces
        Of the same n prompts, with the system prompt and without it.
    alpha : float

    Returns
    -------
    array of int, shape (n,)
    """
    chosen = []
    for own, other in zip(instructed.itertuples(), plain.itertuples(), strict=True):
        tokens, own_places, other_places = np.intersect1d(
            own.next_ids, other.next_ids, return_indices=True
        )
        if not len(tokens):
            chosen.append(own.next_ids[0])
            continue
        y = np.asarray(own.next_logprobs, float)[own_places]
        y_plain = np.asarray(other.next_logprobs, float)[other_places]
        chosen.append(tokens[np.argmax(y - alpha * (y - y_plain))])
    return np.array(chosen, int)


def _simulate(
    base: UntouchedSystem, corpus_name: str, prompts: Corpus, alpha: float
) -> np.ndarray:
    """Return the first tokens that Self-CD would choose after prompts of a corpus."""
    instructed = base.traces(corpus_name, prompts)
    plain = base.traces(corpus_name, prompts, PLAIN_PROMPT)
    return simulate_first_tokens(instructed, plain, alpha)


def choose_alpha(base: UntouchedSystem, train: Split, validation: Split) -> float:
    """Choose alpha on the validation split, by simulating the first step.

    Returns 0, which changes nothing, if every other alpha rejects more benign prompts.
    """
    rates = first_token.learn_refusal_rates(base, train)

    def rejected(alpha: float) -> list[np.ndarray]:
        sides = []
        for corpus_name, prompts in base.by_corpus(validation).items():
            tokens = _simulate(base, corpus_name, prompts, alpha)
            sides.append(rates.of(tokens) >= MIN_REFUSAL_SHARE)
        return sides

    untouched = rejected(0.0)[0].mean()
    return first_token.choose_by_youden(SELF_CD_ALPHAS, rejected, untouched) or 0.0


class ContrastiveModel(RemediedModel):
    """A model whose next token follows from two prompts.

    One has the system prompt, the other does not.
    """

    texts: dict[str, str]

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Keep the user's words, which both prompts hold, and query the model."""
        prompts = workload.prompts
        self.texts = dict(zip(prompts["prompt_id"], prompts["text"], strict=True))
        return super().answers(workload, context)

    def answer_batches(
        self, batches: Sequence[Batch], prefix: tuple[int, ...], context: PromptContext
    ) -> Iterator[Traces]:
        """Query batches in smaller ones, each with both prompts."""
        for batch in batches:
            for start in range(0, len(batch), SELF_CD_BATCH):
                yield self._answer(batch[start : start + SELF_CD_BATCH], context)

    def _answer(self, batch: Batch, context: PromptContext) -> Traces:
        """Answer a batch, with classifier-free guidance of transformers.

        The plain prompt is contrasted with the one that has the system prompt, by the
        strength `learned["alpha"]`.
        """
        import torch

        from paraguard_utils.models.engine import find_stop_tokens

        plain = LocalBackend(self.model).context("", context.decoding)
        inputs = self._tokenize(batch, plain)
        negative = self._tokenize(batch, context)
        stops = find_stop_tokens(self.model)
        generate: Any = self.model.network.generate
        with torch.inference_mode():
            generated = generate(
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
        answers = generated.sequences[:, inputs["input_ids"].shape[1] :]
        traces = self._describe_first_tokens(batch, generated.scores[0])
        finish_reasons = []
        responses = []
        for tokens in answers.tolist():
            ends = np.flatnonzero(np.isin(tokens, stops))
            finish_reasons.append("stop" if len(ends) else "length")
            kept = tokens[: ends[0]] if len(ends) else tokens
            text = self.reader.tokenizer.decode(kept, skip_special_tokens=True)
            responses.append(str(text).strip())
        return traces.assign(response=responses, finish_reason=finish_reasons)

    def _tokenize(self, batch: Batch, context: PromptContext) -> Any:
        """Return the prompts of a batch in a context, padded on the left."""
        texts = [context.render(self.texts[request.prompt_id]) for request in batch]
        tokens = self.reader.tokenizer(
            texts,
            add_special_tokens=False,
            padding=True,
            padding_side="left",
            return_tensors="pt",
        )
        return tokens.to(self.model.network.device)

    def _describe_first_tokens(self, batch: Batch, scores: Any) -> Traces:
        """Return traces without answers.

        `scores` are those of the first token, shape (requests, vocabulary).
        """
        from paraguard_utils.models.engine import TOP_TOKENS

        logprobs = scores.cpu().double().log_softmax(dim=-1)
        top = logprobs.topk(min(TOP_TOKENS, logprobs.shape[-1]))
        tails = 1.0 - top.values.exp().sum(dim=-1)
        token_ids = [np.array(request.token_ids, np.int32) for request in batch]
        return pd.DataFrame(map(vars, batch)).assign(
            token_ids=token_ids,
            # No one prompt has losses.
            token_nll=[np.full(len(ids), np.nan, np.float32) for ids in token_ids],
            next_ids=list(top.indices.numpy().astype(np.int32)),
            next_logprobs=list(top.values.numpy().astype(np.float32)),
            tail_mass=tails.clamp(min=0.0).numpy(),
        )


def apply(base: UntouchedSystem, train: Split, validation: Split) -> RemediedSystem:
    """Contrast the prompts with and without the system prompt at every step."""
    parameters = {"plain": PLAIN_PROMPT, "alphas": list(SELF_CD_ALPHAS)}

    def respondent() -> ContrastiveModel:
        alpha = choose_alpha(base, train, validation)
        state = f"self-cd-{alpha}"
        return ContrastiveModel(base.local, parameters, {"alpha": alpha}, state)

    # `check_simulation` needs the numbers.
    system = RemediedSystem.asking(
        base, "self-cd", parameters, respondent, keep_numbers=True
    )

    def decide(corpus_name: str, prompts: Corpus | None) -> Labels:
        return system.decide(corpus_name, prompts).assign(queries=2)

    return replace(system, decide=decide)


def check_simulation(base: UntouchedSystem, folds: Sequence[Splits]) -> Table:
    """Compare the simulated first step with the real one.

    Parameters
    ----------
    base : UntouchedSystem
    folds : sequence of Splits

    Returns
    -------
    Table
        A row for each corpus and test split that was asked: system, third (number of
        the split), prompts (corpus), n, alpha, agrees (the share of prompts whose first
        token is the simulated one, with its interval).
    """
    rows = []
    for fold in folds:
        on_fold = base.reported_on(fold.third)
        for corpus_name, prompts in base.by_corpus(fold.test).items():
            files = on_fold.files(corpus_name, "self-cd")
            if not files.has("traces", base.name):
                continue
            where = paths.display_path(files.path("traces", base.name))
            traces = files.read("traces", base.name)
            traces = select_prompts(traces, prompts, where)
            learned = read_meta(files.path("labels", base.name))["learned"]
            simulated = _simulate(base, corpus_name, prompts, learned["alpha"])
            ids = prompts["cluster_id"]
            agrees = simulated == refusal.first_tokens(traces)
            row = {
                "system": base.name,
                "third": fold.third,
                "prompts": corpus_name,
                "n": len(prompts),
                "alpha": learned["alpha"],
            }
            share = ClusterBootstrap(ids).share(ids, agrees)
            rows.append(row | to_columns({"agrees": share}))
    return pd.DataFrame(rows)


REMEDIES = (Remedy("self-cd", "decision", "2401.17633", apply, asks=True, queries=2),)
