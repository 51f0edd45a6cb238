"""Measure what a remedy does to a model's other abilities.

(`docs/method.md`, Remedies)
"""

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
UTILITY_COLUMNS = ["system", "remedy"]
UTILITY_COLUMNS += ["divergence", "divergence_low", "divergence_high"]
UTILITY_COLUMNS += ["ppl_ratio", "ppl_ratio_low", "ppl_ratio_high"]

UTILITY_BATCH = 16  # prompts that are computed together
MAX_ANSWERS = 60  # of the untouched model, whose perplexity is compared


def sample_own_answers(base: UntouchedSystem, prompts: Corpus) -> pd.DataFrame:
    """Draw up to `MAX_ANSWERS` accepted answers of the untouched model.

    `prompts` are benign. Columns: prompt_id, text, response.
    """
    traces = base.traces(base.benign_corpus, prompts)
    labels = base.decide(base.benign_corpus, prompts)
    fit = (labels["label"] == "accept") & (labels["answer"] == "on_topic")
    answers = prompts[["prompt_id", "text"]].assign(
        response=traces["response"].to_numpy()
    )
    answers = answers[fit.to_numpy()]
    drawn = answers.sample(min(MAX_ANSWERS, len(answers)), random_state=SEED)
    return drawn.sort_index().reset_index(drop=True)


def measure_utility(
    base: UntouchedSystem, models: Mapping[str, Respondent], benign: Corpus
) -> Table:
    """Compare remedied models with the untouched one on everyday requests.

    Its own answers to the `benign` test prompts are compared too. One row per model:
    system, remedy; with intervals over prompts divergence, in [0, 1], and ppl_ratio, >
    0, or NaN if the next token does not follow from one prompt.
    """
    everyday = stores.read_file(paths.DATA / "neutral_prompts.csv", "neutral")
    answers = sample_own_answers(base, benign)
    first_steps = _first_steps(base.local, base.context, everyday)
    losses = _losses(base.local, base.context, answers)
    rows = []
    for name, load in models.items():
        remedied = load()
        system_prompt = read_system_prompt(base.system_prompt)
        context = remedied.context(system_prompt, base.decoding)
        remedied_steps = _first_steps(remedied, context, everyday)
        distances = [
            _distance(before, after)
            for before, after in zip(first_steps, remedied_steps, strict=True)
        ]
        lost = _losses(remedied, context, answers) - losses
        ids = everyday["prompt_id"]
        divergence = ClusterBootstrap(ids).mean(ids, distances)
        ids = answers["prompt_id"]
        value, low, high = map(math.exp, ClusterBootstrap(ids).mean(ids, lost))
        measures = {"divergence": divergence, "ppl_ratio": (value, low, high)}
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
    answered = answers.assign(
        text=answers["text"] + context.suffix + answers["response"]
    )
    no_suffix = replace(context, suffix="")
    traces = inside.trace_first_steps(model, no_suffix, answered, UTILITY_BATCH)
    responses = answers["response"].tolist()
    tokens = model.reader.tokenizer(responses, add_special_tokens=False)["input_ids"]
    losses = []
    for nll, end, ids in zip(
        traces["token_nll"], traces["user_end"], tokens, strict=True
    ):
        of_answer = np.asarray(nll, float)[end - len(ids) : end]
        losses.append(of_answer.mean())
    return np.array(losses)


def update_utility(
    base: UntouchedSystem,
    remedies: Mapping[str, Remedy],
    asked: Iterable[str],
    fold: Splits,
) -> Table:
    """Measure the remedies of `asked` that have no row yet, on a fold.

    Write and return the table of a live store.
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
