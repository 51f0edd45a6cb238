"""Find neighbours and compute the token-level signals, in float64 (`docs/method.md`,
Neighbours, signals, score).
"""

import itertools
from copy import copy
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from paraguard_utils.core import signals as core
from paraguard_utils.core.confusion import N_NEIGHBOURS
from paraguard_utils.core.signals import PAPER_WEIGHTS, ScoreWeights
from paraguard_utils.core.vectors import (
    find_nearest,
    normalize_rows,
    paired_cosine_similarity,
)
from paraguard_utils.schemas import Corpus, Labels, Pairs, Tokens, Traces


def trace_perplexity(traces: Traces) -> np.ndarray:
    """Compute the perplexity of each prompt's own words under the system
    (`core.signals.perplexity`), shape (n,).
    """
    ends = zip(
        traces["token_nll"].to_numpy(),
        traces["user_start"].tolist(),
        traces["user_end"].tolist(),
        strict=True,
    )
    return core.perplexity([losses[start:end] for losses, start, end in ends])


def trace_lengths(traces: Traces) -> np.ndarray:
    """Count the tokens of each prompt's own words, shape (n,)."""
    return (traces["user_end"] - traces["user_start"]).to_numpy()


def compute_pairs(
    corpus: Corpus,
    vectors: np.ndarray,
    traces: Traces,
    labels: Labels,
    tokens: "Tokens | DriftCache",
    k: int = N_NEIGHBOURS,
) -> Pairs:
    """Compare every accepted or rejected prompt with its k nearest accepted prompts and
    those of its own cluster.

    Prompts of the cluster that are not among the k nearest have no rank. All frames and
    the sentence vectors have corpus order; tokens are a tokens file, or the Drift of
    these traces. Return the columns of a pairs file.
    """
    ids, cluster, label = (
        column.to_numpy()
        for column in (corpus["prompt_id"], corpus["cluster_id"], labels["label"])
    )
    accepted, centres = (
        np.flatnonzero(label == "accept"),
        np.flatnonzero(np.isin(label, ["accept", "reject"])),
    )
    found = find_nearest(vectors, ids, centres, accepted, k)
    left = pd.DataFrame({"centre": centres, "cluster": cluster[centres]})
    own = left.merge(
        pd.DataFrame({"neighbour": accepted, "cluster": cluster[accepted]}),
        on="cluster",
    )
    own = own.loc[own["centre"] != own["neighbour"], ["centre", "neighbour"]].assign(
        rank=pd.NA
    )
    own["similarity"] = paired_cosine_similarity(
        vectors, own["centre"].to_numpy(), own["neighbour"].to_numpy()
    )
    frame = pd.concat([found, own], ignore_index=True).drop_duplicates(
        ["centre", "neighbour"]
    )
    frame["rank"] = frame["rank"].astype("Int64")
    frame = frame.sort_values(["centre", "rank", "neighbour"], ignore_index=True)

    a, b = frame["centre"].to_numpy(int), frame["neighbour"].to_numpy(int)
    about: dict[str, Any] = {"centre_id": ids[a], "centre_label": label[a]}
    about |= {
        "neighbour_id": ids[b],
        "neighbour_label": label[b],
        "same_cluster": cluster[a] == cluster[b],
    }
    parts = (
        pd.DataFrame(about),
        frame[["rank", "similarity"]],
        compute_signals(traces, tokens, a, b),
    )
    return pd.concat(parts, axis=1)


def is_ranked(frame: pd.DataFrame, k: int) -> pd.Series:
    """Mark the pairs that are among the k nearest.

    A pair of one cluster beyond them has no rank.
    """
    return frame["rank"].le(k).fillna(False).astype(bool)


def compute_signals(
    traces: Traces, tokens: "Tokens | DriftCache", a: np.ndarray, b: np.ndarray
) -> pd.DataFrame:
    """Compute the signals between prompts, given as row numbers of the traces, each of
    shape (m,).

    Columns: drift, prob_shift, ppl_relative, ppl_clipped, each in [0, 1]. Tokens are
    those of `compute_pairs`.
    """
    # The signals are symmetric, and most pairs come in both directions.
    ends, place = np.unique(
        np.minimum(a, b) * len(traces) + np.maximum(a, b), return_inverse=True
    )
    a, b = np.divmod(ends, max(len(traces), 1))
    ppl = trace_perplexity(traces)
    drifts = (
        tokens if isinstance(tokens, DriftCache) else DriftCache.share(traces, tokens)
    )
    shifts = core.prob_shifts(
        traces["next_ids"],
        traces["next_logprobs"],
        traces["tail_mass"].to_numpy(),
        a,
        b,
    )
    frame = pd.DataFrame({"drift": drifts(a, b), "prob_shift": shifts})
    frame["ppl_relative"] = core.ppl_relative(ppl[a], ppl[b])
    frame["ppl_clipped"] = core.ppl_clipped(ppl[a], ppl[b])
    return frame.iloc[place].reset_index(drop=True)


def score_pairs(
    frame: pd.DataFrame,
    weights: ScoreWeights = PAPER_WEIGHTS,
    interpretation: str = "relative",
) -> pd.Series:
    """Compute the weighted sum, in [0, 1], of the three signals of a pairs frame, in
    one of `PPL_READINGS`.
    """
    return weights(
        frame["drift"],
        frame["prob_shift"],
        frame[core.PPL_INTERPRETATIONS[interpretation]],
    )


def find_token_rows(traces: Traces, tokens: Tokens) -> list[np.ndarray]:
    """Find the rows of a tokens file that hold each prompt's own words."""
    ids, ends = _join_words(traces)
    return np.split(_look_up(ids, tokens), ends)[:-1]


def _look_up(ids: np.ndarray, tokens: Tokens) -> np.ndarray:
    return (
        pd.Series(np.arange(len(tokens)), index=tokens["token_id"]).loc[ids].to_numpy()
    )


def _join_words(traces: Traces) -> tuple[np.ndarray, np.ndarray]:
    """Return the ids of all prompts' own tokens, one prompt after the other, and where
    each prompt's end.
    """
    ends = zip(
        traces["token_ids"].to_numpy(),
        traces["user_start"].tolist(),
        traces["user_end"].tolist(),
        strict=True,
    )
    words = [ids[start:end] for ids, start, end in ends]
    return np.concatenate([np.empty(0, int), *words], dtype=int), np.cumsum(
        [len(own) for own in words]
    )


class DriftCache:
    """Drift of the pairs of one model's traces, each computed once: labels decide only
    which pairs are compared.
    """

    recent: ClassVar[
        list[Self]
    ] = []  # those that `share` made last, eight at most; a new one replaces the oldest

    def __init__(self, traces: Traces, tokens: Tokens) -> None:
        self.source, self.ids = (
            tokens["embedding"].to_numpy(),
            tokens["token_id"].to_numpy(),
        )
        self.words = ids, ends = _join_words(traces)
        self.used, place = np.unique(_look_up(ids, tokens), return_inverse=True)
        self.rows = np.split(place, ends)[:-1]
        self._keep(0.0)

    def _keep(self, centre: np.ndarray | float) -> None:
        """Start with no pair, and the unit vectors of the words' tokens, seen from a
        centre.
        """
        vectors = (
            np.stack(self.source[self.used]).astype(np.float64)
            if len(self.used)
            else np.empty((0, 1))
        )
        self.table, self.codes, self.values = (
            normalize_rows(vectors - centre),
            np.empty(0, int),
            np.empty(0),
        )

    @classmethod
    def share(cls, traces: Traces, tokens: Tokens) -> Self:
        """Return the Drift of these words in these tokens, one for all traces of a
        model that share them.
        """
        found = next(
            (one for one in cls.recent if one.holds(traces, tokens)), None
        ) or cls(traces, tokens)
        found.source = tokens[
            "embedding"
        ].to_numpy()  # the file's last reading, which the next one shares
        cls.recent[:] = [found, *(one for one in cls.recent if one is not found)][:8]
        return found

    def holds(self, traces: Traces, tokens: Tokens) -> bool:
        """Return whether other traces have the same words and embeddings, so that they
        have the same Drift.
        """
        source = tokens["embedding"].to_numpy()
        if not np.array_equal(tokens["token_id"], self.ids):
            return False
        if not np.shares_memory(source, self.source) and not all(
            map(np.array_equal, source, self.source)
        ):
            return False
        return all(map(np.array_equal, _join_words(traces), self.words))

    @cached_property
    def centred(self) -> "DriftCache":
        """The same after subtracting the embeddings' mean over the distinct tokens kept
        for the model.
        """
        other = copy(self)
        other._keep(np.stack(self.source).astype(np.float64).mean(axis=0))
        return other

    def __call__(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the Drift of pairs of row numbers, in either direction; shape (m,)."""
        wanted = np.minimum(a, b) * len(self.rows) + np.maximum(a, b)
        new = np.setdiff1d(wanted, self.codes)
        if len(new):
            codes = np.concatenate([self.codes, new])
            order = np.argsort(codes)
            self.values = np.concatenate(
                [self.values, self._computed(*np.divmod(new, len(self.rows)))]
            )[order]
            self.codes = codes[order]
        return self.values[np.searchsorted(self.codes, wanted)]

    def _computed(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Compute the Drift of pairs sorted by `a`: one product of a prompt's tokens
        with those of all its mates.
        """
        found, starts = np.empty(len(a)), np.flatnonzero(np.diff(a, prepend=-1))
        with threadpool_limits(
            1, "blas"
        ):  # products this small gain nothing from threads
            for start, end in itertools.pairwise([*starts.tolist(), len(a)]):
                mates = [self.rows[j] for j in b[start:end].tolist()]
                used, place = np.unique(np.concatenate(mates), return_inverse=True)
                cosines = (self.table[self.rows[a[start]]] @ self.table[used].T)[
                    :, place
                ]
                lengths = np.array([len(rows) for rows in mates])
                first = np.cumsum(lengths) - lengths
                there = np.maximum.reduceat(cosines, first, axis=1).mean(axis=0)
                back = np.add.reduceat(cosines.max(axis=0), first) / lengths
                found[start:end] = 1.0 - (there + back) / 2
        return np.clip(found, 0.0, 1.0)
