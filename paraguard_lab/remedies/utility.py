"""Measure what a remedy does to a model's other abilities.

(`docs/method.md`, Remedies)
"""

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
    "divergence",
    "divergence_low",
    "divergence_high",
    "ppl_ratio",
    "ppl_ratio_low",
    "ppl_ratio_high",
]

UTILITY_BATCH = 16  # prompts that are computed together
MAX_ANSWERS = 60  # of the untouched model, whose perplexity is compared


def sample_own_answers(base: UntouchedSystem, prompts: Corpus) -> pd.DataFrame:
    """Draw accepted answers of the untouched model.

    Parameters
    ----------
    base : UntouchedSystem
    prompts : Corpus
        Benign ones.

    Returns
    -------
    DataFrame
        prompt_id, text, response: up to `MAX_ANSWERS` rows in the order of the prompts.
    """
    traces = base.traces(base.benign_corpus, prompts)
    labels = base.decide(base.benign_corpus, prompts)
    is_fit = (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    answers = prompts[["prompt_id", "text"]].reset_index(drop=True)
    answers = answers.assign(response=traces["response"])[is_fit]
    drawn = answers.sample(min(MAX_ANSWERS, len(answers)), random_state=SEED)
    return drawn.sort_index().reset_index(drop=True)


def measure_utility(
    base: UntouchedSystem, models: Mapping[str, Respondent], benign: Corpus
) -> Table:
    """Compare remedied models with the untouched one on everyday requests.

    Parameters
    ----------
    base : UntouchedSystem
    models : mapping of str to Respondent
        Loads the remedied model, by the name of the remedy.
    benign : Corpus
        Test prompts, the untouched model's answers to which are compared too.

    Returns
    -------
    Table
        One row per model: system, remedy; with intervals over prompts divergence (of
        the first token's distribution on everyday requests, in [0, 1]) and ppl_ratio
        (of the perplexity of the untouched model's own answers, > 0); NaN if the next
        token does not follow from one prompt.
    """
    everyday = stores.read_file(paths.DATA / "neutral_prompts.csv", "neutral")
    answers = sample_own_answers(base, benign)
    first_steps = _first_steps(base.local, base.context, everyday)
    losses = _losses(base.local, base.context, answers)
    ids = everyday["prompt_id"]
    answer_ids = answers["prompt_id"]
    system_prompt = read_system_prompt(base.system_prompt)
    rows = []
    for name, load in models.items():
        remedied = load()
        context = remedied.context(system_prompt, base.decoding)
        remedied_steps = _first_steps(remedied, context, everyday)
        distances = list(map(_distance, first_steps, remedied_steps))
        lost = _losses(remedied, context, answers) - losses
        value, low, high = np.exp(ClusterBootstrap(answer_ids).mean(answer_ids, lost))
        measures = {
            "divergence": ClusterBootstrap(ids).mean(ids, distances),
            "ppl_ratio": (value, low, high),
        }
        rows.append({"system": base.name, "remedy": name} | to_columns(measures))
    return pd.DataFrame(rows)


def _distance(before: pd.Series, after: pd.Series) -> float:
    """Return half the L1 distance of two distributions, probability by token.

    All unlisted tokens count as one.
    """
    listed = before.sub(after, fill_value=0).abs().sum()
    unlisted = abs(before.sum() - after.sum())
    return float((listed + unlisted) / 2)


def _first_steps(
    model: LocalBackend, context: PromptContext, prompts: Corpus
) -> list[pd.Series]:
    """Return the first-token distribution after each prompt: probability by token."""
    traces = inside.trace_first_steps(model, context, prompts, UTILITY_BATCH)
    steps = zip(traces["next_ids"], traces["next_logprobs"], strict=True)
    return [
        pd.Series(np.exp(np.asarray(logprobs, float)), index=ids)
        for ids, logprobs in steps
    ]


def _losses(
    model: LocalBackend, context: PromptContext, answers: pd.DataFrame
) -> np.ndarray:
    """Return the mean cross-entropy of answers after their prompts, nats per token."""
    texts = answers["text"] + context.suffix + answers["response"]
    no_suffix = replace(context, suffix="")
    answered = answers.assign(text=texts)
    traces = inside.trace_first_steps(model, no_suffix, answered, UTILITY_BATCH)
    responses = answers["response"].tolist()
    tokens = model.reader.tokenizer(responses, add_special_tokens=False)["input_ids"]
    losses = []
    for trace, ids in zip(traces.itertuples(), tokens, strict=True):
        of_prompt = np.asarray(trace.token_nll, float)[: trace.user_end]
        losses.append(of_prompt[-len(ids) :].mean())
    return np.array(losses)


def update_utility(
    base: UntouchedSystem,
    remedies: Mapping[str, Remedy],
    asked: Iterable[str],
    fold: Splits,
) -> Table:
    """Measure remedies that have no row yet in a live store's table, and write it.

    Parameters
    ----------
    base : UntouchedSystem
    remedies : mapping of str to Remedy
    asked : iterable of str
        Names of the remedies to measure; others are left out.
    fold : Splits
        What they learn and choose on, and are measured on.

    Returns
    -------
    Table
        The table with the new rows (`measure_utility`).
    """
    base = base.reported_on(fold.third)
    table = pd.DataFrame(columns=UTILITY_COLUMNS)
    if base.store.has("tables", UTILITY_TABLE):
        table = base.store.read("tables", UTILITY_TABLE)
    measured = set(table.loc[table["system"] == base.name, "remedy"])
    models = {}
    for name in asked:
        if name in remedies and name not in measured:
            system = remedies[name].apply(base, fold.train, fold.validation)
            if system.respondent:
                models[name] = system.respondent
    if models:
        rows = measure_utility(base, models, fold.test.benign)
        table = pd.concat([table, rows], ignore_index=True)
    meta = base.settings.meta(system=base.name)
    base.store.write("tables", UTILITY_TABLE, frame=table, meta=meta)
    return table
