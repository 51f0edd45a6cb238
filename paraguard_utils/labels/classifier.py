"""A classifier of refusals, the second opinion on answers (`docs/method.md`, Labels).

`paraguard train` makes it.
"""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix
from scipy.special import expit

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.labels import refusals
from paraguard_utils.models import encoder
from paraguard_utils.schemas import THREE_LABELS

CLASSIFIER_FILE = paths.DATA / "refusal_classifier.json"
CLASSIFIER_DIGEST = "39e26bf3270251cb8438fc2b06e8a143bffdb1a17938500df71083819fd9e1ae"
TRAINING_ANSWERS_FILE = paths.DATA / "labels" / "training_answers.csv"
# The encoder reads so many first words of an opening; more cost time and add little
OPENING_WORDS = 12
REQUEST_WORDS = 40
MIN_NGRAM_ANSWERS = (
    3  # an n-gram must stand in so many answers of `TRAINING_ANSWERS_FILE`
)
C_NGRAMS, C_VECTORS = (
    10.0,
    3.0,
)  # inverse strengths of the penalty, chosen on answers of writers and models left out
ANNOTATED_WEIGHT = (
    3.0  # in the fit, of an answer that people annotated; all others have 1
)
PRODUCT_SCALE = (
    10.0  # scales the product of two unit vectors to the size of the vectors
)
_OPINIONS = ["refusal", "partial"]


def make_classifier_inputs(
    responses: Sequence[object], requests: Sequence[object] | None
) -> tuple[list[str], np.ndarray]:
    """Compute, for n answers, their normalised openings and their vectors, float64 of
    shape (n, 3 * 384).

    A vector is the one of the opening's first words, the same times the request's by
    element, and the request's; zeros if that is unknown. Equal openings and equal
    requests are embedded once.
    """
    openings = refusals.normalize_openings(responses)
    remembered = encoder.memoize_embedding(encoder.encode_texts)
    answers = np.asarray(
        remembered([_first(text, OPENING_WORDS) for text in openings]), np.float64
    )
    asked = np.zeros_like(answers)
    if requests is not None:
        asked = np.asarray(
            remembered([_first(str(text), REQUEST_WORDS) for text in requests]),
            np.float64,
        )
    return openings, np.hstack([answers, answers * asked * PRODUCT_SCALE, asked])


def _first(text: str, words: int) -> str:
    return " ".join(text.split()[:words])


class RefusalClassifier(NamedTuple):
    """Coefficients of the two regressions, for refusing and for refusing in part.

    `ngrams` has columns idf, refusal and partial, by n-gram; `cues` has refusal and
    partial, by rule of the cue list; the shapes of `vectors` and `intercepts` are (2, 3
    * 384) and (2,).
    """

    ngrams: pd.DataFrame
    cues: pd.DataFrame
    vectors: np.ndarray
    intercepts: np.ndarray

    def probabilities(
        self, openings: Sequence[str], rules: Sequence[str], vectors: np.ndarray
    ) -> pd.DataFrame:
        """Return the probabilities of refusing (`refusal`) and of that in part
        (`partial`); rule "no_cue" for none.
        """
        counter = _tfidf(vocabulary=self.ngrams.index.tolist())
        counter.idf_ = self.ngrams["idf"].to_numpy()
        cues = self.cues.reindex(rules).fillna(0.0)[_OPINIONS].to_numpy()
        ngrams = counter.transform(openings) @ self.ngrams[_OPINIONS].to_numpy()
        return pd.DataFrame(
            expit(ngrams + cues + vectors @ self.vectors.T + self.intercepts),
            columns=_OPINIONS,
        )

    def save(self, file: Path) -> None:
        """Write the coefficients as JSON, an n-gram a line."""
        parts = {
            "intercepts": json.dumps(self.intercepts.tolist()),
            "cues": _lines(self.cues),
            "vectors": (
                "[\n"
                + ",\n".join(json.dumps(row) for row in self.vectors.tolist())
                + "]"
            ),
            "ngrams": _lines(self.ngrams),
        }
        file.write_text(
            "{\n"
            + ",\n".join(f'"{name}": {text}' for name, text in parts.items())
            + "\n}\n"
        )


def _lines(frame: pd.DataFrame) -> str:
    rows = zip(frame.index, frame.to_numpy().tolist(), strict=True)
    return (
        "{\n"
        + ",\n".join(
            f"{json.dumps(name)}: {json.dumps(values)}" for name, values in rows
        )
        + "}"
    )


@cache
def load_refusal_classifier(file: Path = CLASSIFIER_FILE) -> RefusalClassifier:
    """Read the coefficients."""
    found = json.loads(file.read_text())
    return RefusalClassifier(
        pd.DataFrame.from_dict(
            found["ngrams"], orient="index", columns=["idf", *_OPINIONS]
        ),
        pd.DataFrame.from_dict(found["cues"], orient="index", columns=_OPINIONS),
        np.array(found["vectors"]),
        np.array(found["intercepts"]),
    )


def _tfidf(**options: Any) -> Any:
    """Return the n-gram counter."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second to import

    return TfidfVectorizer(
        ngram_range=(1, 3), sublinear_tf=True, token_pattern=r"[\w']+", **options
    )


def read_training_answers() -> pd.DataFrame:
    """Read the training answers whose two labels agree, as a column `label` beside the
    file's columns.
    """
    rows = stores.read_file(TRAINING_ANSWERS_FILE, "training_answers")
    return rows[rows["first_label"] == rows["second_label"]].assign(
        label=lambda f: f["first_label"]
    )


def fit_classifier(answers: pd.DataFrame, annotated: pd.DataFrame) -> RefusalClassifier:
    """Fit the two regressions on answers: columns prompt, response and label, else a
    DataError (`THREE_LABELS`).

    The n-grams come from `answers` only, so that no text of `annotated` enters the
    file. n-grams and vectors are fitted apart, each with the cues, and their log odds
    averaged, because they err on different answers.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import

    rows = pd.concat([answers, annotated], ignore_index=True)[
        ["prompt", "response", "label"]
    ]
    if unknown := set(rows["label"]) - set(THREE_LABELS):
        raise DataError(
            f"there is no label {sorted(unknown)[0]!r} of a training answer; use"
            f" {', '.join(THREE_LABELS)}"
        )
    rules = refusals.label_by_cues(rows["response"], [""] * len(rows))["rule"]
    openings, seen = make_classifier_inputs(rows["response"], rows["prompt"])
    counter = _tfidf(min_df=MIN_NGRAM_ANSWERS).fit(openings[: len(answers)])
    cues = pd.get_dummies(rules).drop(columns="no_cue", errors="ignore").astype(float)
    refuses = (rows["label"] != "full_compliance").to_numpy()
    partial = (rows["label"] == "partial_refusal").to_numpy()
    views = ((C_NGRAMS, counter.transform(openings).toarray()), (C_VECTORS, seen))
    weights = np.repeat([1.0, ANNOTATED_WEIGHT], [len(answers), len(annotated)])
    found = []
    for wanted, chosen in ((refuses, np.ones(len(rows), bool)), (partial, refuses)):
        fits = []
        for c, view in views:
            x = csr_matrix(np.hstack([view, cues.to_numpy()])[chosen])
            fits.append(
                LogisticRegression(C=c, max_iter=10_000).fit(
                    x, wanted[chosen], weights[chosen]
                )
            )
        (of_grams, of_cues), (of_vectors, again) = (
            np.split(fit.coef_[0] / 2, [view.shape[1]])
            for fit, (_, view) in zip(fits, views, strict=True)
        )
        found.append(
            (
                of_grams,
                of_cues + again,
                of_vectors,
                sum(fit.intercept_[0] for fit in fits) / 2,
            )
        )
    parts = (*zip(*found, strict=True), counter.idf_)
    ngrams, by_cue, vectors, intercepts, idf = (
        np.round(np.array(part), 4) for part in parts
    )
    return RefusalClassifier(
        pd.DataFrame(
            np.column_stack([idf, ngrams.T]),
            counter.get_feature_names_out(),
            ["idf", *_OPINIONS],
        ),
        pd.DataFrame(by_cue.T, cues.columns, _OPINIONS),
        vectors,
        intercepts,
    )
