"""Train the classifier of refusals (`docs/method.md`, Labels).

`paraguard train` calls it.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.labels import refusals
from paraguard_utils.labels.classifier import (
    OPINIONS,
    RefusalClassifier,
    make_classifier_inputs,
    make_ngram_counter,
)
from paraguard_utils.schemas import THREE_LABELS

TRAINING_ANSWERS_FILE = paths.DATA / "labels" / "training_answers.csv"
MIN_NGRAM_ANSWERS = 3  # an n-gram must occur in so many answers of that file

# Inverse strengths of the penalty, chosen on answers of writers and models left out
C_NGRAMS = 10.0
C_VECTORS = 3.0

ANNOTATED_WEIGHT = 3.0
"""Weight in the fit of an answer that people annotated; all others have 1."""


def read_training_answers() -> pd.DataFrame:
    """Read the training answers whose two labels agree.

    A column `label` is beside the file's columns.
    """
    rows = stores.read_file(TRAINING_ANSWERS_FILE, "training_answers")
    agreed = rows[rows["first_label"] == rows["second_label"]]
    return agreed.assign(label=agreed["first_label"])


def fit_classifier(answers: pd.DataFrame, annotated: pd.DataFrame) -> RefusalClassifier:
    """Fit the two regressions: for refusing, and for refusing in part.

    n-grams and vectors are fitted apart, each with the cues, and their log odds
    averaged, because they err on different answers.

    Parameters
    ----------
    answers, annotated : DataFrame
        prompt, response, label. The n-grams come from `answers` only, so that no text
        of `annotated`, which people labelled, enters the file.

    Raises
    ------
    DataError
        A label is not one of `THREE_LABELS`.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import

    rows = pd.concat([answers, annotated], ignore_index=True)
    unknown = sorted(set(rows["label"]) - set(THREE_LABELS))
    if unknown:
        raise DataError(
            f"there is no label {unknown[0]!r} of a training answer; use"
            f" {', '.join(THREE_LABELS)}"
        )
    rules = refusals.label_by_cues(rows["response"], [""] * len(rows))["rule"]
    cues = pd.get_dummies(rules).drop(columns="no_cue", errors="ignore").astype(float)
    openings, vectors = make_classifier_inputs(rows["response"], rows["prompt"])
    counter = make_ngram_counter(min_df=MIN_NGRAM_ANSWERS)
    counter.fit(openings[: len(answers)])
    views = {C_NGRAMS: counter.transform(openings).toarray(), C_VECTORS: vectors}
    refuses = (rows["label"] != "full_compliance").to_numpy()
    is_partial = (rows["label"] == "partial_refusal").to_numpy()
    decisions = [(refuses, np.ones(len(rows), bool)), (is_partial, refuses)]
    weights = np.repeat([1.0, ANNOTATED_WEIGHT], [len(answers), len(annotated)])
    by_view = []
    cues_and_intercepts = np.zeros((len(decisions), cues.shape[1] + 1))
    for strength, view in views.items():
        fits = []
        for decision, chosen in decisions:
            inputs = csr_matrix(np.hstack([view, cues])[chosen])
            fit = LogisticRegression(C=strength, max_iter=10_000)
            fit.fit(inputs, decision[chosen], weights[chosen])
            fits.append(np.append(fit.coef_[0], fit.intercept_) / 2)
        of_view, others = np.split(np.array(fits), [view.shape[1]], axis=1)
        by_view.append(of_view.round(4))
        cues_and_intercepts += others
    by_cue, intercepts = np.split(cues_and_intercepts.round(4), [-1], axis=1)
    ngrams = np.column_stack([counter.idf_.round(4), by_view[0].T])
    names = counter.get_feature_names_out()
    return RefusalClassifier(
        pd.DataFrame(ngrams, names, ["idf", *OPINIONS]),
        pd.DataFrame(by_cue.T, cues.columns, OPINIONS),
        by_view[1],
        intercepts.ravel(),
    )


def save_classifier(classifier: RefusalClassifier, file: Path) -> None:
    """Write the coefficients as JSON, an n-gram a line."""
    vectors = [json.dumps(row) for row in classifier.vectors.tolist()]
    parts = {
        "intercepts": json.dumps(classifier.intercepts.tolist()),
        "cues": _write_lines(classifier.cues),
        "vectors": "[\n" + ",\n".join(vectors) + "]",
        "ngrams": _write_lines(classifier.ngrams),
    }
    lines = [f'"{name}": {text}' for name, text in parts.items()]
    file.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _write_lines(frame: pd.DataFrame) -> str:
    lines = []
    for name, values in zip(frame.index, frame.to_numpy().tolist(), strict=True):
        lines.append(f"{json.dumps(name)}: {json.dumps(values)}")
    return "{\n" + ",\n".join(lines) + "}"
