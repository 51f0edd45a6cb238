"""Measure what a remedy does to a model's other abilities (`docs/method.md`, Remedies)."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.models import prompting
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.registry import wrappers
from paraguard_utils.remedies.asking import RemediedModel
from paraguard_utils.remedies.contract import Remedy
from paraguard_utils.remedies.splits import Splits
from paraguard_utils.remedies.untouched import UntouchedSystem, select_prompts
from paraguard_utils.schemas import Corpus, Table, Traces

NEUTRAL_PROMPTS_FILE = paths.DATA / "neutral_prompts.csv"
"""Everyday requests without a charged word."""

UTILITY_TABLE = "remedy_utility"
"""Name of the table."""

UTILITY_COLUMNS = [
    "target",
    "remedy",
    *(f"{name}{end}" for name in ("divergence", "ppl_ratio") for end in ("", "_low", "_high")),
]

MAX_ANSWERS = 60
"""Own accepted answers whose perplexity is taken, drawn by seed."""

UTILITY_BATCH = 16
"""Prompts that are computed together."""


def sample_own_answers(base: UntouchedSystem, prompts: Corpus) -> pd.DataFrame:
    """Return accepted answers of the untouched model to benign prompts: prompt_id, text, response."""
    of = next(iter(base.corpora))
    traces, labels = base.traces(of, prompts), base.decide(of, prompts)
    fit = ((labels["label"] == "accept") & (labels["answer"] == "on_topic")).to_numpy()
    found = prompts[["prompt_id", "text"]].assign(response=traces["response"].to_numpy())[fit]
    return found.sample(min(MAX_ANSWERS, len(found)), random_state=SEED).sort_index().reset_index(drop=True)


def measure_utility(base: UntouchedSystem, models: Mapping[str, Callable[[], RemediedModel]], benign: Corpus) -> Table:
    """Compare remedied models with the untouched one on prompts and answers that have nothing to do with refusing.

    `benign` are the test prompts whose answers are read. One row a model: target, remedy; with intervals over prompts
    divergence, in [0, 1], and ppl_ratio, > 0, or NaN if the next token does not follow from one prompt.
    """
    asked, answers = stores.read_file(NEUTRAL_PROMPTS_FILE, "neutral"), sample_own_answers(base, benign)
    text = wrappers()[base.wrapper]["text"]
    alone = (base.local, base.local.context(text, prompting.Decoding(1)))
    steps, losses = _first_steps(*alone, asked), _losses(*alone, answers)
    made = []
    for name, load in models.items():
        other = load()
        context = other.context(text, prompting.Decoding(1))
        moved = [_distance(*pair) for pair in zip(steps, _first_steps(other, context, asked), strict=True)]
        divergence = ClusterBootstrap(asked["prompt_id"]).mean(asked["prompt_id"], moved)
        lost = _losses(other, context, answers) - losses
        ratio = ClusterBootstrap(answers["prompt_id"]).mean(answers["prompt_id"], lost)
        value, low, high = map(math.exp, ratio)
        estimates = to_columns({"divergence": divergence, "ppl_ratio": (value, low, high)})
        made.append({"target": base.name, "remedy": name, **estimates})
    return pd.DataFrame(made)


def _first_steps(model: LocalBackend, context: PromptContext, prompts: Corpus) -> list[pd.Series]:
    """Return the first-token distribution after each prompt: probability by token."""
    traces = _asked(model, context, prompts)
    return [
        pd.Series(np.exp(np.asarray(logprobs, float)), index=ids)
        for ids, logprobs in zip(traces["next_ids"], traces["next_logprobs"], strict=True)
    ]


def _distance(one: pd.Series, other: pd.Series) -> float:
    """Return half the L1 distance of two distributions; all unlisted tokens count as one."""
    rest = abs(one.sum() - other.sum())
    return float((one.sub(other, fill_value=0).abs().sum() + rest) / 2)


def _losses(model: LocalBackend, context: PromptContext, answers: pd.DataFrame) -> np.ndarray:
    """Return the mean cross-entropy of each answer after its prompt, in nats a token."""
    told = answers["text"] + context.suffix + answers["response"]
    traces = _asked(model, replace(context, suffix=""), answers.assign(text=told))
    own = model.reader.tokenizer(answers["response"].tolist(), add_special_tokens=False)["input_ids"]
    ends = zip(traces["token_nll"], traces["user_end"], own, strict=True)
    return np.array([float(np.mean(np.asarray(nll, float)[end - len(ids) : end])) for nll, end, ids in ends])


def _asked(model: LocalBackend, context: PromptContext, prompts: Corpus) -> Traces:
    """Return traces of prompts, asked in batches of `UTILITY_BATCH`."""
    from paraguard_utils.models.engine import count_shared_tokens, split_into_batches

    if isinstance(model, RemediedModel):
        model.prepare(prompts, context)
    requests = prompting.tokenize_prompts(prompts, model.reader.tokenizer, context)
    prefix = requests[0].token_ids[: count_shared_tokens(requests)]
    return select_prompts(
        pd.concat(list(model._asked(split_into_batches(requests, UTILITY_BATCH), prefix, context))), prompts
    )


def update_utility(base: UntouchedSystem, remedies: Mapping[str, Remedy], asked: Iterable[str], fold: Splits) -> Table:
    """Measure the remedies that were asked and have no row yet; write and return the table of a live store.

    `fold` holds the split that is measured on, and those that the remedies are taught on.
    """
    base = base.reported_on(fold.third)
    kept = base.store.has("tables", UTILITY_TABLE)
    known = base.store.read("tables", UTILITY_TABLE) if kept else pd.DataFrame(columns=UTILITY_COLUMNS)
    there = set(known.loc[known["target"] == base.name, "remedy"])
    made = {name: remedies[name].apply(base, *fold[:2]) for name in asked if name in remedies and name not in there}
    models = {name: target.respondent for name, target in made.items() if target.respondent}
    if models:
        known = pd.concat([known, measure_utility(base, models, fold.test.benign)], ignore_index=True)
    if models or not kept:
        base.store.write("tables", UTILITY_TABLE, frame=known, meta=base.settings.meta(target=base.name))
    return known
