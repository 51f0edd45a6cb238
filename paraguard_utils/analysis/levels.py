"""What a server tells of a model, and what a surrogate lends for the rest (`docs/method.md`, Black-box proxies).

A target's trace is completed with a surrogate's, so that `signals.pairs` scores it as any other; a signal has one
source for all prompts. Decisions are the target's own at every level.
"""

from collections.abc import Container, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from paraguard_utils.analysis import confusion, signals
from paraguard_utils.core.confusion import K
from paraguard_utils.core.neighbours import THETA
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.errors import DataError
from paraguard_utils.models.prompting import model_of, target_name
from paraguard_utils.schemas import Corpus, Labels, Pairs, Scores, Traces

LEVELS = FULL, ANSWER_TOKENS, TEXT = "full", "answer tokens", "text"
"""What is told beside the answers: the prompt's and the first answer tokens' log-probabilities; the latter; nothing."""

SURROGATES = ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
"""Models that stand in for what is not told: the first that is not the target's own."""

LEAST = 4
"""Scored draws from which a prompt has a probability of being rejected."""

_WORDS = ["token_ids", "token_nll", "user_start", "user_end"]
_FIRST = ["next_ids", "next_logprobs", "tail_mass"]


class Completed(NamedTuple):
    """A target's traces with what a surrogate lent.

    Attributes
    ----------
    traces : DataFrame
        The columns of a traces file. A prompt that is left out has a perplexity and ProbShifts of NaN.
    left_out : Series of str
        Why a prompt cannot be compared, by row; "" where it can.
    """

    traces: Traces
    left_out: pd.Series


def surrogate_of(target: str, there: Container[str]) -> str | None:
    """Return the target that stands in for one: the first of `SURROGATES` of another model under the same wrapper.

    Parameters
    ----------
    target : str
    there : container of str
        Targets with traces.

    Returns
    -------
    str or None
        None where there is none.
    """
    wrapper = target.rpartition("--")[2]
    names = (target_name(model, wrapper) for model in SURROGATES if model != model_of(target))
    return next((name for name in names if name in there), None)


def completed(
    own: Traces, level: str, surrogate: Traces, samples: pd.DataFrame | None = None, top: int | None = None
) -> Completed:
    """Complete a target's traces at a level.

    Drift is not in a trace: make `signals.Drifts` from `aligned` traces of the surrogate and its tokens.

    Parameters
    ----------
    own : DataFrame
        A traces file; what its level does not tell may hold anything, empty arrays for example.
    level : str
        One of `LEVELS`.
    surrogate : DataFrame
        A traces file of the same prompts, in any order.
    samples : DataFrame or None
        At `text`, drawn answers (a file of kind `samples`): ProbShift is then that of the decision.
    top : int or None
        Keep so many first tokens; None keeps what is told.

    Returns
    -------
    Completed
        Rows in the order of `own`.

    Raises
    ------
    DataError
        The surrogate was not asked a prompt, or its trace lacks what it should lend.
    ValueError
        There is no such level, or it has no use for `samples` or `top`.
    """
    if level not in LEVELS:
        raise ValueError(f"there is no level {level!r}; there are {', '.join(LEVELS)}")
    if (samples is not None and level != TEXT) or (top is not None and level == TEXT):
        raise ValueError(f"at the level {level!r}, samples or top have no use")
    lent = aligned(surrogate, own["prompt_id"])
    words = own if level == FULL else lent
    first = own if level != TEXT else lent if samples is None else drawn(own["prompt_id"], samples)
    if top is not None:
        first = cut(first, top)
    no_words, no_first = ~_has_words(words), ~_has_first(first)
    if (words is lent and no_words.any()) or (first is lent and no_first.any()):
        place = int(np.argmax((no_words & (words is lent)) | (no_first & (first is lent))))
        raise DataError(f"the surrogate's trace of {own['prompt_id'].iloc[place]} is not complete; ask it again")
    missing = "first token without probability" if samples is None else f"fewer than {LEAST} scored draws"
    reasons = np.select([no_words, no_first], ["words without log-probability", missing], "")
    nothing = {"token_nll": np.array([np.nan]), "user_start": 0, "user_end": 1}
    nothing |= {"next_ids": np.empty(0, int), "next_logprobs": np.empty(0), "tail_mass": np.nan}
    traces = own
    for names, source, gone in ((_WORDS, words, no_words), (_FIRST, first, no_first)):
        for name in names:  # what is not there gives NaN, and nothing else
            column = [nothing.get(name, kept) if lost else kept for kept, lost in zip(source[name], gone, strict=True)]
            traces = traces.assign(**{name: pd.Series(column, own.index)})
    return Completed(traces, pd.Series(reasons, own.index, name="left_out"))


def spelled(traces: Traces, surrogate: Traces) -> Traces:
    """Return traces in the surrogate's tokens, of which Drift and the token view have embeddings.

    Parameters
    ----------
    traces : DataFrame
        Completed with that surrogate. Its own perplexities stay: each token of a prompt gets their mean.
    surrogate : DataFrame
        A traces file of the same prompts, in any order.

    Returns
    -------
    DataFrame
    """
    lent = aligned(surrogate, traces["prompt_id"])
    means = np.log(signals.perplexity(traces))
    flat = [np.full(len(ids), mean) for ids, mean in zip(lent["token_ids"], means, strict=True)]
    words = lent[_WORDS].assign(token_nll=pd.Series(flat, lent.index)).set_axis(traces.index)
    return traces.assign(**{name: words[name] for name in _WORDS})


def left_out(traces: Traces) -> pd.Series:
    """Return why a prompt cannot be compared, by row; "" where it can, as each of a local model's can."""
    reasons = ["words without log-probability", "first token without probability"]
    found = np.select([~_has_words(traces), ~_has_first(traces)], reasons, "")
    return pd.Series(found, traces.index, name="left_out")


def aligned(traces: Traces, prompt_ids: Sequence[str] | pd.Series) -> Traces:
    """Return the rows of some prompts, in their order.

    Raises
    ------
    DataError
        The traces lack a prompt.
    """
    known = traces.set_index("prompt_id", drop=False)
    missing = [name for name in prompt_ids if name not in known.index]
    if missing:
        raise DataError(f"the surrogate has no trace of {missing[0]} ({len(missing)} are missing); ask it first")
    return known.loc[list(prompt_ids)].reset_index(drop=True)


def cut(traces: pd.DataFrame, top: int) -> pd.DataFrame:
    """Keep the likeliest first tokens of each answer, ties by token id; the mass of the others goes to the tail.

    Parameters
    ----------
    traces : DataFrame
        Columns next_ids, next_logprobs, tail_mass.
    top : int, > 0

    Returns
    -------
    DataFrame
    """
    if top < 1:
        raise ValueError(f"top is {top}, and one token at least is kept")
    rows = []
    for ids, logprobs, tail in traces[_FIRST].itertuples(index=False):
        ids, logprobs = np.asarray(ids), np.asarray(logprobs, np.float64)
        order = np.lexsort((ids, -logprobs))
        kept, rest = order[:top], order[top:]
        rows.append((ids[kept], logprobs[kept], min(1.0, tail + np.exp(logprobs[rest]).sum()) if len(rest) else tail))
    return traces.assign(**pd.DataFrame(rows, traces.index, _FIRST))


def drawn(prompt_ids: pd.Series, samples: pd.DataFrame) -> pd.DataFrame:
    """Put the decision of drawn answers in the place of the first token: 0 is accept, 1 is reject, and no tail.

    Parameters
    ----------
    prompt_ids : Series of str
    samples : DataFrame
        Columns prompt_id and label; labels other than accept and reject are not scored.

    Returns
    -------
    DataFrame
        prompt_id, next_ids, next_logprobs (a decision that was never drawn is left out, as a token outside the top
        is), tail_mass; nothing and NaN where fewer than `LEAST` draws are scored.
    """
    scored = samples[samples["label"].isin(["accept", "reject"])]
    found = scored["label"].eq("reject").groupby(scored["prompt_id"]).agg(["size", "mean"])
    found = found[found["size"] >= LEAST]["mean"].reindex(prompt_ids)
    rows = []
    for share in found:
        mass = np.nan_to_num(np.array([1 - share, share]))
        ids = np.flatnonzero(mass)
        rows.append((ids, np.log(mass[ids]), 0.0 if len(ids) else np.nan))
    return pd.DataFrame(rows, columns=_FIRST).assign(prompt_id=prompt_ids.to_numpy())


def scorable(labels: Labels, left_out: pd.Series) -> Labels:
    """Return labels with which pairs are made: what is left out is `unparsed`, neither a centre nor a neighbour."""
    return labels.assign(label=np.where(left_out.to_numpy() == "", labels["label"], "unparsed"))


def pairs_and_scores(
    corpus: Corpus,
    vectors: np.ndarray,
    labels: Labels,
    made: Completed,
    drifts: signals.Drifts,
    weights: ScoreWeights = PAPER_WEIGHTS,
    k: int = K,
    theta: float = THETA,
) -> tuple[Pairs, Scores]:
    """Compare a completed target's prompts and score them.

    Parameters
    ----------
    corpus, labels : DataFrame
        Rows in the order of `made.traces`.
    vectors : numpy.ndarray, shape (n, d)
        Sentence vectors in that order.
    made : Completed
    drifts : signals.Drifts
        Of the surrogate, over the same prompts in the same order.
    weights, k, theta
        As in `confusion.prompt_scores`.

    Returns
    -------
    pairs, scores : DataFrame
        What is left out is in no pair, and its CI(r) is NaN; isolation counts its decision.
    """
    frame = signals.pairs(corpus, vectors, made.traces, scorable(labels, made.left_out), drifts, k)
    return frame, confusion.prompt_scores(corpus, labels, frame, weights, k, theta)


def _has_words(traces: pd.DataFrame) -> np.ndarray:
    """Return which traces have a log-probability of each of the user's own tokens."""
    return np.array(
        [
            0 <= start < end <= len(nll) and np.isfinite(np.asarray(nll[start:end], np.float64)).all()
            for nll, start, end in traces[["token_nll", "user_start", "user_end"]].itertuples(index=False)
        ],
        bool,
    )


def _has_first(traces: pd.DataFrame) -> np.ndarray:
    """Return which traces have a likeliest first token, each with its probability, and the mass of the rest."""
    return np.array(
        [
            len(ids) > 0 and len(ids) == len(logprobs) and not np.isnan([*logprobs, tail]).any()
            for ids, logprobs, tail in traces[_FIRST].itertuples(index=False)
        ],
        bool,
    )
