"""Train the classifier of refusals (`docs/method.md`, Labels).

`paraguard train` calls it.
"""

import json
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.sparse import csr_matrix

from paraguard_utils import paths, stores
from paraguard_utils.labels import refusals
from paraguard_utils.labels.classifier import (
    OPINIONS,
    RefusalClassifier,
    make_classifier_inputs,
    make_ngram_counter,
)

TRAINING_ANSWERS_FILE = paths.DATA / "labels" / "training_answers.csv"
MIN_NGRAM_ANSWERS = 3  # an n-gram must occur in so many answers of that file

# Inverse strengths of the penalty, chosen on answers of writers and models left out
C_NGRAMS = 10.0
C_VECTORS = 3.0

ANNOTATED_WEIGHT = 3.0
"""Weight in the fit of an answer that people annotated; all others have 1."""


def read_training_answers() -> pd.DataFrame:
    """Read the training answers whose two labels agree.

    Returns
    -------
    DataFrame
        The columns of the file, and label.
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
        prompt, response, label (one of `kinds.THREE_LABELS`). The n-grams come from
        `answers` only, so that no text of `annotated`, which people labelled, enters
        the file.

    Returns
    -------
    RefusalClassifier
        With coefficients of four digits.
    """
    from sklearn.linear_model import LogisticRegression  # a second to import

    rows = pd.concat([answers, annotated], ignore_index=True)
    rules = refusals.label_by_cues(rows["response"], [""] * len(rows))["rule"]
    cues = pd.get_dummies(rules, dtype=float).drop(columns="no_cue", errors="ignore")
    openings, vectors = make_classifier_inputs(rows["response"], rows["prompt"])
    counter = make_ngram_counter(min_df=MIN_NGRAM_ANSWERS)
    counter.fit(openings[: len(answers)])
    views = {C_NGRAMS: counter.transform(openings).toarray(), C_VECTORS: vectors}
    refuses = (rows["label"] != "full_compliance").to_numpy()
    is_partial = (rows["label"] == "partial_refusal").to_numpy()
    everything = np.ones(len(rows), bool)
    weights = np.repeat([1.0, ANNOTATED_WEIGHT], [len(answers), len(annotated)])
    by_view = []
    shared = np.zeros((len(OPINIONS), cues.shape[1] + 1))
    for strength, view in views.items():
        inputs = np.hstack([view, cues])
        fits = []
        for decision, chosen in ((refuses, everything), (is_partial, refuses)):
            fit = LogisticRegression(C=strength, max_iter=10_000)
            fit.fit(csr_matrix(inputs[chosen]), decision[chosen], weights[chosen])
            fits.append(np.append(fit.coef_[0], fit.intercept_) / 2)
        width = view.shape[1]
        coefficients = np.array(fits)
        by_view.append(coefficients[:, :width].round(4))
        shared += coefficients[:, width:]
    shared = shared.round(4)
    ngrams = np.column_stack([counter.idf_.round(4), by_view[0].T])
    names = counter.get_feature_names_out()
    return RefusalClassifier(
        pd.DataFrame(ngrams, names, ["idf", *OPINIONS]),
        pd.DataFrame(shared[:, :-1].T, cues.columns, OPINIONS),
        by_view[1],
        shared[:, -1],
    )


def save_classifier(classifier: RefusalClassifier, file: Path) -> None:
    """Write the coefficients as JSON, an n-gram a line.

    `classifier.load_refusal_classifier` reads them.
    """
    parts = {
        "intercepts": classifier.intercepts.tolist(),
        "cues": classifier.cues.T.to_dict("list"),
        "vectors": classifier.vectors.tolist(),
        "ngrams": classifier.ngrams.T.to_dict("list"),
    }
    text = json.dumps(parts).replace("], ", "],\n").replace('{"', '{\n"')
    file.write_text(f"{text}\n")
