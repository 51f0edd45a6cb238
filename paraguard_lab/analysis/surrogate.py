"""Complete the traces of a server that returns a part, by another model's.

The method defines it (`docs/method.md`, Black-box proxies).
"""

from collections.abc import Container, Sequence

import numpy as np
import pandas as pd

from paraguard_lab.core.draws import count_draws
from paraguard_utils.analysis import signals
from paraguard_utils.analysis.drift import select_own_words
from paraguard_utils.errors import DataError
from paraguard_utils.models.prompting import make_system_name, model_of_system
from paraguard_utils.schemas import Traces

LEVEL_FULL = "full"
LEVEL_ANSWER_TOKENS = "answer tokens"
LEVEL_TEXT = "text"
DISCLOSURE_LEVELS = (LEVEL_FULL, LEVEL_ANSWER_TOKENS, LEVEL_TEXT)
"""What a server may return of a model."""

SURROGATE_MODELS = ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
"""Models that stand in for what is missing: the first that is not the system's own."""

MIN_SCORED_DRAWS = 4
"""Scored draws from which a prompt has a probability of being rejected."""

_WORDS = ["token_ids", "token_nll", "user_start", "user_end"]
_FIRST = ["next_ids", "next_logprobs", "tail_mass"]

_MISSING = {
    "token_nll": np.array([np.nan]),
    "user_start": 0,
    "user_end": 1,
    "next_ids": np.empty(0, int),
    "next_logprobs": np.empty(0),
    "tail_mass": np.nan,
}
"""What stands for a part of a trace that is missing: it gives NaN, and nothing else."""


def find_surrogate(system: str, known: Container[str]) -> str | None:
    """Return a system's surrogate among those with traces, or None.

    It is another of `SURROGATE_MODELS` under the same system prompt.
    """
    system_prompt = system.rpartition("--")[2]
    for model in SURROGATE_MODELS:
        name = make_system_name(model, system_prompt)
        if model != model_of_system(system) and name in known:
            return name
    return None


def fill_from_surrogate(
    traces: Traces,
    level: str,
    surrogate: Traces,
    samples: pd.DataFrame | None = None,
    top: int | None = None,
) -> Traces:
    """Complete a system's traces at a level of disclosure with a surrogate's.

    Drift is not in a trace.

    Parameters
    ----------
    traces : Traces
        The system's. What the level leaves out may hold anything; what their source
        lacks gives NaN (`signals.has_signals`).
    level : str
        One of `DISCLOSURE_LEVELS`.
    surrogate : Traces
        Of the same prompts, in any order.
    samples : DataFrame
        Drawn answers with prompt_id and label, which give ProbShift at `text`.
    top : int
        So many first tokens are kept.

    Returns
    -------
    Traces
        In the order of `traces`.

    Raises
    ------
    DataError
        The surrogate was not asked a prompt, or its trace lacks what it should give.
    """
    surrogate = align_traces(surrogate, traces["prompt_id"])
    words = traces if level == LEVEL_FULL else surrogate
    first = surrogate if level == LEVEL_TEXT else traces
    if samples is not None:
        first = first_token_from_samples(traces["prompt_id"], samples)
    elif top is not None:
        first = keep_top_tokens(first, top)
    knows_words = has_words(words)
    knows_first = has_first_token(first)
    broken = (words is surrogate) & ~knows_words
    broken |= (first is surrogate) & ~knows_first
    if broken.any():
        name = traces["prompt_id"].iloc[broken.argmax()]
        raise DataError(
            f"the surrogate's trace of {name} is not complete; ask it again"
        )
    columns = {}
    for name in _WORDS:
        columns[name] = _mark_missing(words[name], knows_words)
    for name in _FIRST:
        columns[name] = _mark_missing(first[name], knows_first)
    return traces.assign(**columns)


def has_words(traces: Traces) -> np.ndarray:
    """Mark the traces with a log-probability of each of the user's own tokens."""
    marks = []
    for losses in select_own_words(traces, "token_nll"):
        marks.append(len(losses) > 0 and np.isfinite(np.asarray(losses, float)).all())
    return np.array(marks, bool)


def has_first_token(traces: Traces) -> np.ndarray:
    """Mark the traces with the likeliest first tokens of the answer, and the rest."""
    marks = []
    columns = traces[["next_ids", "next_logprobs", "tail_mass"]]
    for ids, logprobs, tail in columns.to_numpy():
        is_complete = 0 < len(ids) == len(logprobs)
        total = tail + np.sum(logprobs)  # NaN if any of them is
        marks.append(is_complete and not np.isnan(total))
    return np.array(marks, bool)


def _mark_missing(column: pd.Series, known: np.ndarray) -> list[object]:
    """Return a column of traces with `_MISSING` in the rows that are not known."""
    values = []
    for value, is_known in zip(column, known, strict=True):
        values.append(value if is_known else _MISSING.get(column.name, value))
    return values


def retokenize(traces: Traces, surrogate: Traces) -> Traces:
    """Return traces in their surrogate's tokens, which have embeddings.

    Each token gets its prompt's mean loss.
    """
    surrogate = align_traces(surrogate, traces["prompt_id"])
    losses = []
    means = np.log(signals.trace_perplexity(traces))
    for ids, mean in zip(surrogate["token_ids"], means, strict=True):
        losses.append(np.full(len(ids), mean))
    words = surrogate[_WORDS].assign(token_nll=losses)
    return traces.assign(**words.set_axis(traces.index))


def align_traces(traces: Traces, prompt_ids: Sequence[str] | pd.Series) -> Traces:
    """Return the rows of some prompts, in their order.

    DataError if the traces lack one.
    """
    by_prompt = traces.set_index("prompt_id", drop=False)
    missing = [name for name in prompt_ids if name not in by_prompt.index]
    if missing:
        raise DataError(
            f"the surrogate has no trace of {missing[0]} ({len(missing)} are missing);"
            " ask it first"
        )
    return by_prompt.loc[list(prompt_ids)].reset_index(drop=True)


def keep_top_tokens(traces: pd.DataFrame, top: int) -> pd.DataFrame:
    """Keep the likeliest first tokens of each answer, ties by token id.

    The mass of the others goes to tail_mass.
    """
    rows = []
    for ids, logprobs, tail in traces[_FIRST].itertuples(index=False):
        ids = np.asarray(ids)
        logprobs = np.asarray(logprobs, np.float64)
        order = np.lexsort((ids, -logprobs))
        kept = order[:top]
        rest = order[top:]
        if len(rest):
            tail = min(1.0, tail + np.exp(logprobs[rest]).sum())
        rows.append((ids[kept], logprobs[kept], tail))
    return traces.assign(**pd.DataFrame(rows, traces.index, _FIRST))


def first_token_from_samples(
    prompt_ids: pd.Series, samples: pd.DataFrame
) -> pd.DataFrame:
    """Put the decisions of drawn answers in the place of the first token.

    Token 0 is accept, 1 is reject, and there is no tail.

    Parameters
    ----------
    prompt_ids : Series
    samples : DataFrame
        prompt_id and label.

    Returns
    -------
    DataFrame
        prompt_id, next_ids, next_logprobs (without a decision that was never drawn) and
        tail_mass; nothing and NaN if fewer than `MIN_SCORED_DRAWS` draws are scored.
    """
    draws = count_draws(samples)
    rejected = draws.loc[draws["size"] >= MIN_SCORED_DRAWS, "mean"]
    rows = []
    for name, share in rejected.reindex(prompt_ids).items():
        mass = np.nan_to_num(np.array([1 - share, share]))
        ids = np.flatnonzero(mass)
        rows.append((name, ids, np.log(mass[ids]), 0.0 if len(ids) else np.nan))
    return pd.DataFrame(rows, columns=["prompt_id", *_FIRST])
