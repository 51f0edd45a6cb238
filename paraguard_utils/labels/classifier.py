"""A learned opinion on answers: do they refuse, and only in part? (`docs/method.md`, Labels).

Two logistic regressions, one of refusing and one of refusing in part, over three views of an answer: the n-grams of its
opening, the cue that matched, and sentence vectors of its first words, of the request, and of their product. The
coefficients are data (`FILE`); `paraguard train` makes them from `ANSWERS` and from XSTest's annotated answers.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from scipy.special import expit
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.labels import refusals
from paraguard_utils.models import encoder
from paraguard_utils.models.encoder import Embed
from paraguard_utils.schemas import THREE_LABELS

FILE = paths.DATA / "refusal_classifier.json"
ANSWERS = paths.DATA / "labels" / "training_answers.csv"
WORDS = 12
"""First words of an opening that the encoder reads; more cost time and tell little."""

REQUEST_WORDS = 40
NGRAMS = (1, 3)
MIN_ANSWERS = 3
"""Answers of `ANSWERS` in which an n-gram must stand."""

TOKEN = r"[\w']+"
C_NGRAMS, C_VECTORS = 10.0, 3.0
"""Inverse strengths of the penalty, chosen on answers by writers and models left out of the fit."""

PEOPLE = 3.0
"""Weight in the fit of an answer that people annotated; one that was written, or read by a model, has 1."""

PRODUCT = 10.0
"""Factor that brings the product of two unit vectors to the size of the vectors."""

DECIMALS = 4


@dataclass(frozen=True)
class Views:
    """What the regressions see of n answers.

    Attributes
    ----------
    openings : list of str, length n
        As the cue list reads them (`refusals.normalise`).
    cues : list of str, length n
        The rule that matched, or "no_cue".
    vectors : numpy.ndarray, shape (n, 3 * 384), float64
        Of the opening's first words; the same times the request's, by element; of the request. Zeros where the request
        is not known.
    """

    openings: list[str]
    cues: list[str]
    vectors: np.ndarray


def views(
    responses: Sequence[object],
    rules: Sequence[str],
    requests: Sequence[object] | None,
    embed: Embed = encoder.encode,
) -> Views:
    """Look at answers; equal openings and equal requests are embedded once.

    Parameters
    ----------
    responses : sequence of str, length n
    rules : sequence of str, length n
        What the cue list found in them (`refusals.label`).
    requests : sequence of str, length n, or None
        What was asked; None where it is not known.
    embed : callable
        Texts to sentence vectors.

    Returns
    -------
    Views
    """
    openings = refusals.normalise(responses)
    remembered = encoder.memoized(embed)
    answers = np.asarray(remembered([_first(text, WORDS) for text in openings]), np.float64)
    asked = np.zeros_like(answers)
    if requests is not None:
        asked = np.asarray(remembered([_first(str(text), REQUEST_WORDS) for text in requests]), np.float64)
    return Views(openings, list(rules), np.hstack([answers, answers * asked * PRODUCT, asked]))


def _first(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


@dataclass(frozen=True)
class Classifier:
    """Coefficients of the two regressions.

    Attributes
    ----------
    ngrams : DataFrame
        Indexed by n-gram: idf, refusal, partial.
    cues : DataFrame
        Indexed by rule of the cue list: refusal, partial.
    vectors : numpy.ndarray, shape (2, 3 * 384)
        For refusing, and for refusing in part.
    intercepts : numpy.ndarray, shape (2,)
    """

    ngrams: pd.DataFrame
    cues: pd.DataFrame
    vectors: np.ndarray
    intercepts: np.ndarray

    def probabilities(self, seen: Views) -> pd.DataFrame:
        """Return the two opinions.

        Parameters
        ----------
        seen : Views
            Of n answers.

        Returns
        -------
        DataFrame, n rows
            refusal : probability that the answer refuses, in full or in part; partial : that it refuses in part, given
            that it does. In [0, 1].
        """
        kinds = ["refusal", "partial"]
        counts = _tfidf(self.ngrams.index.tolist(), self.ngrams["idf"].to_numpy()).transform(seen.openings)
        cues = self.cues.reindex(seen.cues).fillna(0.0)[kinds].to_numpy()
        z = counts @ self.ngrams[kinds].to_numpy() + cues + seen.vectors @ self.vectors.T + self.intercepts
        return pd.DataFrame(expit(z), columns=kinds)

    def save(self, file: Path = FILE) -> None:
        """Write the coefficients as JSON, an n-gram a line."""
        parts = {
            "intercepts": json.dumps(self.intercepts.tolist()),
            "cues": _lines(self.cues.to_dict("split")),
            "vectors": "[\n" + ",\n".join(json.dumps(row) for row in self.vectors.tolist()) + "]",
            "ngrams": _lines(self.ngrams.to_dict("split")),
        }
        file.write_text("{\n" + ",\n".join(f'"{name}": {text}' for name, text in parts.items()) + "\n}\n")


def _lines(split: dict[str, list]) -> str:
    rows = zip(split["index"], split["data"], strict=True)
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in rows) + "}"


def digest() -> str:
    """Return the SHA-256 of the coefficients."""
    return hashlib.sha256(FILE.read_bytes()).hexdigest()


@cache
def load(file: Path = FILE) -> Classifier:
    """Read the coefficients."""
    found = json.loads(file.read_text())
    kinds = ["refusal", "partial"]
    return Classifier(
        pd.DataFrame.from_dict(found["ngrams"], orient="index", columns=["idf", *kinds]),
        pd.DataFrame.from_dict(found["cues"], orient="index", columns=kinds),
        np.array(found["vectors"]),
        np.array(found["intercepts"]),
    )


def _tfidf(vocabulary: list[str] | None = None, idf: np.ndarray | None = None) -> TfidfVectorizer:
    """Return the n-gram counter: its vocabulary given, or to be learned."""
    counter = TfidfVectorizer(
        ngram_range=NGRAMS,
        min_df=MIN_ANSWERS if vocabulary is None else 1,
        sublinear_tf=True,
        token_pattern=TOKEN,
        vocabulary=vocabulary,
    )
    if idf is not None:
        counter.idf_ = idf
    return counter


def training_answers(file: Path = ANSWERS) -> pd.DataFrame:
    """Read the answers that were written or recorded for training and labelled twice; the twice equal ones.

    Returns
    -------
    DataFrame
        The columns of `data/labels/training_answers.csv` and `label`.
    """
    rows = stores.read(file, "training_answers")
    return rows[rows["first_label"] == rows["second_label"]].assign(label=lambda f: f["first_label"])


def fit(answers: pd.DataFrame, annotated: pd.DataFrame, embed: Embed = encoder.encode) -> Classifier:
    """Fit the two regressions.

    The n-grams are those of `answers` only, so that no text of `annotated` enters the file. n-grams and vectors are
    fitted apart, each with the cues, and their log odds averaged: they go wrong on different answers.

    Parameters
    ----------
    answers, annotated : DataFrame
        prompt, response, label (one of `schemas.THREE_LABELS`).
    embed : callable

    Returns
    -------
    Classifier

    Raises
    ------
    DataError
        A label is not one of `schemas.THREE_LABELS`.
    """
    rows = pd.concat([answers, annotated], ignore_index=True)[["prompt", "response", "label"]]
    unknown = set(rows["label"]) - set(THREE_LABELS)
    if unknown:
        raise DataError(f"there is no label {sorted(unknown)[0]!r} of a training answer; use {', '.join(THREE_LABELS)}")
    matched = refusals.label(rows["response"], [""] * len(rows))["rule"].tolist()
    seen = views(rows["response"], matched, rows["prompt"], embed)
    counter = _tfidf()
    counter.fit(seen.openings[: len(answers)])
    grams = counter.get_feature_names_out()
    cues = pd.get_dummies(pd.Series(seen.cues)).drop(columns="no_cue", errors="ignore").astype(float)
    refuses = (rows["label"] != "full_compliance").to_numpy()
    partial = (rows["label"] == "partial_refusal").to_numpy()
    views_of = (
        (C_NGRAMS, np.hstack([counter.transform(seen.openings).toarray(), cues.to_numpy()])),
        (C_VECTORS, np.hstack([seen.vectors, cues.to_numpy()])),
    )
    weights = np.repeat([1.0, PEOPLE], [len(answers), len(annotated)])
    found = []
    for wanted, chosen in ((refuses, np.ones(len(rows), bool)), (partial, refuses)):
        parts = [
            LogisticRegression(C=c, max_iter=10_000).fit(csr_matrix(x[chosen]), wanted[chosen], weights[chosen])
            for c, x in views_of
        ]
        own = [part.coef_[0] / 2 for part in parts]
        at = (len(grams), seen.vectors.shape[1])
        found.append(
            (
                own[0][: at[0]],
                own[0][at[0] :] + own[1][at[1] :],
                own[1][: at[1]],
                sum(p.intercept_[0] for p in parts) / 2,
            )
        )
    ngrams, rules, vectors, intercepts = (np.round(np.array(part), DECIMALS) for part in zip(*found, strict=True))
    kinds = ["refusal", "partial"]
    return Classifier(
        pd.DataFrame(ngrams.T, grams, kinds).assign(idf=np.round(counter.idf_, DECIMALS))[["idf", *kinds]],
        pd.DataFrame(rules.T, cues.columns, kinds),
        vectors,
        intercepts,
    )
