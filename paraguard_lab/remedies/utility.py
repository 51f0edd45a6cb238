"""Measure what a remedy does to a model's other abilities (`docs/method.md`, Remedies)."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from paraguard_lab.remedies import inside
from paraguard_lab.remedies.contract import Remedy, Respondent
from paraguard_lab.remedies.splits import Splits
from paraguard_lab.remedies.untouched import UntouchedSystem
from paraguard_utils import paths, stores
from paraguard_utils.core.estimates import SEED, ClusterBootstrap, to_columns
from paraguard_utils.models.local import LocalBackend
from paraguard_utils.models.prompting import PromptContext
from paraguard_utils.registry import read_system_prompt
from paraguard_utils.schemas import Corpus, Table

UTILITY_TABLE = "remedy_utility"
UTILITY_COLUMNS = [
    "system",
    "remedy",
    *to_columns(dict.fromkeys(("divergence", "ppl_ratio"), (0.0, 0.0, 0.0))),
]
UTILITY_BATCH = 16  # prompts that are computed together


def sample_own_answers(base: UntouchedSystem, prompts: Corpus) -> pd.DataFrame:
    """Draw up to 60 accepted answers of the untouched model to benign prompts:
    prompt_id, text, response.
    """
    of = next(iter(base.corpora))
    traces, labels = base.traces(of, prompts), base.decide(of, prompts)
    fit = ((labels["label"] == "accept") & (labels["answer"] == "on_topic")).to_numpy()
    found = prompts[["prompt_id", "text"]].assign(
        response=traces["response"].to_numpy()
    )[fit]
    return (
        found.sample(min(60, len(found)), random_state=SEED)
        .sort_index()
        .reset_index(drop=True)
    )


def measure_utility(
    base: UntouchedSystem, models: Mapping[str, Respondent], benign: Corpus
) -> Table:
    """Compare remedied models with the untouched one on everyday requests, and on its
    own answers.

    `benign` are the test prompts whose answers are read. One row a model: system,
    remedy; with intervals over prompts divergence, in [0, 1], and ppl_ratio, > 0, or
    NaN if the next token does not follow from one prompt.
    """
    asked = stores.read_file(paths.DATA / "neutral_prompts.csv", "neutral")
    answers = sample_own_answers(base, benign)
    steps, losses = (
        _first_steps(base.local, base.context, asked),
        _losses(base.local, base.context, answers),
    )
    made = []
    for name, load in models.items():
        other = load()
        context = other.context(read_system_prompt(base.system_prompt), base.decoding)
        # Half the L1 distance of two distributions; all unlisted tokens count as one.
        moved = [
            float(
                (one.sub(new, fill_value=0).abs().sum() + abs(one.sum() - new.sum()))
                / 2
            )
            for one, new in zip(steps, _first_steps(other, context, asked), strict=True)
        ]
        divergence = ClusterBootstrap(asked["prompt_id"]).mean(
            asked["prompt_id"], moved
        )
        lost = _losses(other, context, answers) - losses
        ratio = ClusterBootstrap(answers["prompt_id"]).mean(answers["prompt_id"], lost)
        value, low, high = map(math.exp, ratio)
        estimates = to_columns(
            {"divergence": divergence, "ppl_ratio": (value, low, high)}
        )
        made.append({"system": base.name, "remedy": name, **estimates})
    return pd.DataFrame(made)


def _first_steps(
    model: LocalBackend, context: PromptContext, prompts: Corpus
) -> list[pd.Series]:
    """Return the first-token distribution after each prompt: probability by token."""
    traces = inside.trace_first_steps(model, context, prompts, UTILITY_BATCH)
    return [
        pd.Series(np.exp(np.asarray(logprobs, float)), index=ids)
        for ids, logprobs in zip(
            traces["next_ids"], traces["next_logprobs"], strict=True
        )
    ]


def _losses(
    model: LocalBackend, context: PromptContext, answers: pd.DataFrame
) -> np.ndarray:
    """Return the mean cross-entropy of each answer after its prompt, in nats a token."""
    told = answers["text"] + context.suffix + answers["response"]
    asked = answers.assign(text=told)
    traces = inside.trace_first_steps(
        model, replace(context, suffix=""), asked, UTILITY_BATCH
    )
    own = model.reader.tokenizer(
        answers["response"].tolist(), add_special_tokens=False
    )["input_ids"]
    ends = zip(traces["token_nll"], traces["user_end"], own, strict=True)
    return np.array(
        [
            float(np.mean(np.asarray(nll, float)[end - len(ids) : end]))
            for nll, end, ids in ends
        ]
    )


def update_utility(
    base: UntouchedSystem,
    remedies: Mapping[str, Remedy],
    asked: Iterable[str],
    fold: Splits,
) -> Table:
    """Measure remedies of `asked` without a row on a fold.

    Write and return the table of a live store.
    """
    base = base.reported_on(fold.third)
    kept = base.store.has("tables", UTILITY_TABLE)
    known = (
        base.store.read("tables", UTILITY_TABLE)
        if kept
        else pd.DataFrame(columns=UTILITY_COLUMNS)
    )
    there = set(known.loc[known["system"] == base.name, "remedy"])
    made = {
        name: remedies[name].apply(base, *fold[:2])
        for name in asked
        if name in remedies and name not in there
    }
    models = {
        name: system.respondent for name, system in made.items() if system.respondent
    }
    if models:
        known = pd.concat(
            [known, measure_utility(base, models, fold.test.benign)], ignore_index=True
        )
    if models or not kept:
        base.store.write(
            "tables",
            UTILITY_TABLE,
            frame=known,
            meta=base.settings.meta(system=base.name),
        )
    return known
