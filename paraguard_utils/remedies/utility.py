"""What a remedy leaves of a model's other abilities (`docs/method.md`, Remedies)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, Estimate, to_columns
from paraguard_utils.models import prompting
from paraguard_utils.models.local import Local
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.registry import wrappers
from paraguard_utils.remedies.asking import Remedied
from paraguard_utils.remedies.contract import Remedy, Target
from paraguard_utils.remedies.splits import Splits, Third
from paraguard_utils.remedies.untouched import Untouched
from paraguard_utils.schemas import Corpus, Table, Traces

NEUTRAL = paths.DATA / "neutral_prompts.csv"
"""Everyday requests without a charged word."""

NAME = "remedy_utility"
"""The table of `measure`."""

COLUMNS = [
    "target",
    "remedy",
    *(f"{name}{end}" for name in ("divergence", "ppl_ratio") for end in ("", "_low", "_high")),
]
"""Its columns."""

ANSWERS = 60
"""Own accepted answers whose perplexity is taken, drawn by seed."""

ROWS = 16
"""Prompts that are computed together."""


def neutral() -> Corpus:
    """Return the neutral prompts: prompt_id, text."""
    return stores.read(NEUTRAL, "neutral")


def own_answers(base: Untouched, third: Third) -> pd.DataFrame:
    """Return accepted answers of the untouched model to benign prompts of a third: prompt_id, text, response."""
    of = next(iter(base.corpora))
    traces, labels = base.traces(of, third.benign), base.decide(of, third.benign)
    fit = ((labels["label"] == "accept") & (labels["answer"] == "on_topic")).to_numpy()
    found = third.benign[["prompt_id", "text"]].assign(response=traces["response"].to_numpy())[fit]
    return found.sample(min(ANSWERS, len(found)), random_state=SEED).sort_index().reset_index(drop=True)


def measure(base: Untouched, made: Mapping[str, Target], third: Third) -> Table:
    """Compare remedied models with the untouched one on what has nothing to do with refusing.

    Parameters
    ----------
    base : Untouched
        Its weights are loaded.
    made : dict of str to Target
        Those without a respondent leave the model as it is, and have no row.
    third : Third
        Of the test.

    Returns
    -------
    DataFrame, one row per remedy
        target, remedy; with intervals over prompts: divergence, in [0, 1], and ppl_ratio, > 0 (NaN where a next token
        is no one prompt's).
    """
    asked, answers = neutral(), own_answers(base, third)
    text = wrappers()[base.wrapper]["text"]
    alone = (base.local, base.local.context(text, prompting.Decoding(1)))
    steps, losses = _first_steps(*alone, asked), _losses(*alone, answers)
    rows = []
    for name, target in made.items():
        if target.respondent is None:
            continue
        other = target.respondent()
        context = other.context(text, prompting.Decoding(1))
        moved = [_distance(*pair) for pair in zip(steps, _first_steps(other, context, asked), strict=True)]
        divergence = ClusterBootstrap(asked["prompt_id"]).mean(asked["prompt_id"], moved)
        ratio = ClusterBootstrap(answers["prompt_id"]).mean(
            answers["prompt_id"], _losses(other, context, answers) - losses
        )
        estimates = to_columns({"divergence": divergence, "ppl_ratio": _exp(ratio)})
        rows.append({"target": base.name, "remedy": name, **estimates})
    return pd.DataFrame(rows)


def _exp(estimate: Estimate) -> tuple[float, float, float]:
    value, low, high = map(math.exp, estimate)
    return value, low, high


def _first_steps(model: Local, context: PromptContext, prompts: Corpus) -> list[pd.Series]:
    """Return the first-token distribution after each prompt: probability by token."""
    traces = _asked(model, context, prompts).set_index("prompt_id").loc[prompts["prompt_id"]]
    return [
        pd.Series(np.exp(np.asarray(logprobs, float)), index=ids)
        for ids, logprobs in zip(traces["next_ids"], traces["next_logprobs"], strict=True)
    ]


def _distance(one: pd.Series, other: pd.Series) -> float:
    """Return half the L1 distance; all tokens that neither lists count as one."""
    rest = abs(one.sum() - other.sum())
    return float((one.sub(other, fill_value=0).abs().sum() + rest) / 2)


def _losses(model: Local, context: PromptContext, answers: pd.DataFrame) -> np.ndarray:
    """Return the mean cross-entropy of each answer after its prompt, in nats a token."""
    told = answers["text"] + context.suffix + answers["response"]
    traces = _asked(model, replace(context, suffix=""), answers.assign(text=told))
    traces = traces.set_index("prompt_id").loc[answers["prompt_id"]]
    own = model.reader.tokenizer(answers["response"].tolist(), add_special_tokens=False)["input_ids"]
    lengths = [len(ids) for ids in own]
    return np.array(
        [
            float(np.mean(np.asarray(nll, float)[end - length : end]))
            for nll, end, length in zip(traces["token_nll"], traces["user_end"], lengths, strict=True)
        ]
    )


def _asked(model: Local, context: PromptContext, prompts: Corpus) -> Traces:
    from paraguard_utils.models.engine import batches, shared_prefix

    if isinstance(model, Remedied):
        model.prepare(prompts, context)
    requests = prompting.requests(prompts, model.reader.tokenizer, context)
    prefix = requests[0].token_ids[: shared_prefix(requests)]
    return pd.concat(list(model._asked(batches(requests, ROWS), prefix, context)), ignore_index=True)


def update(base: Untouched, remedies: Mapping[str, Remedy], asked: Iterable[str], fold: Splits) -> Table:
    """Measure the remedies of a target that a live store knows nothing of yet; write and return all that it knows.

    Parameters
    ----------
    base : Untouched
    remedies : dict of str to Remedy
    asked : iterable of str
        Those that were asked.
    fold : Splits
        Of the third that it is measured on, with what the others taught.
    """
    base = base.reported_on(fold.third)
    kept = base.store.has("tables", NAME)
    known = base.store.read("tables", NAME) if kept else pd.DataFrame(columns=COLUMNS)
    there = set(known.loc[known["target"] == base.name, "remedy"])
    made = {name: remedies[name].apply(base, *fold[:2]) for name in asked if name in remedies and name not in there}
    missing = {name: target for name, target in made.items() if target.respondent}
    if missing:
        known = pd.concat([known, measure(base, missing, fold.test)], ignore_index=True)
    if missing or not kept:
        base.store.write("tables", NAME, frame=known, meta=base.settings.meta(target=base.name))
    return known
