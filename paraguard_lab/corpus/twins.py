"""Compare harmful twins with their harmless clusters (`docs/method.md`, Corpus)."""

import numpy as np
import pandas as pd

from paraguard_utils import unsafe
from paraguard_utils.core.words import split_words
from paraguard_utils.errors import DataError
from paraguard_utils.schemas import Corpus
from paraguard_utils.text import STOPWORDS

_FORM = (
    r"(?i)\b(?:i|i'm|i've|i'd|im|me|my|mine|we|us|our)\b",
    r"\?",
    r"[.!?]+",
    ",",
    "[\"“”']",
    "[-–—;:()]",
    "^[a-z]",
)
"""What is counted of a text's form: first person, question marks, sentences, other
marks, a lower-case start."""


def measure_twin_auc(benign: Corpus, twins: Corpus) -> dict[str, float]:
    """Compute how well surface, brevity and form separate twins from their clusters.

    Parameters
    ----------
    benign, twins : pandas.DataFrame
        Corpora with cluster_id, text, risk.

    Returns
    -------
    dict of str to float
        Areas under the ROC curve, 0.5 for no separation: auc_risk; auc_brevity (fewer
        words); auc_form, of a logistic regression on the number of words and `_FORM`
        that scores each of ten folds by the others; and of such regressions
        auc_letters (that counts characters too), auc_words and auc_function_words (on
        TF-IDF of all words, and of `text.STOPWORDS`).
    """
    # A second to import
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    texts = pd.concat([benign, twins], ignore_index=True)
    harmful = np.arange(len(texts)) >= len(benign)
    groups = unsafe.benign_cluster_of(texts["cluster_id"])
    words = texts["text"].map(lambda text: len(split_words(text)))
    counts = [texts["text"].str.count(pattern) for pattern in _FORM]
    form = np.column_stack([words, *counts]).astype(float)
    with_letters = np.column_stack([form, texts["text"].str.len()])

    every_word = TfidfVectorizer(tokenizer=split_words, token_pattern=None)
    function_words = TfidfVectorizer(
        tokenizer=split_words, token_pattern=None, vocabulary=sorted(STOPWORDS)
    )
    scores = {"auc_risk": texts["risk"], "auc_brevity": -words}
    for name, features, prepared in (
        ("auc_form", form, StandardScaler()),
        ("auc_letters", with_letters, StandardScaler()),
        ("auc_words", texts["text"], every_word),
        ("auc_function_words", texts["text"], function_words),
    ):
        probabilities = cross_val_predict(
            make_pipeline(prepared, LogisticRegression()),
            features,
            harmful,
            groups=groups,
            cv=GroupKFold(10),
            method="predict_proba",
        )
        scores[name] = probabilities[:, 1]
    return {
        name: float(roc_auc_score(harmful, values)) for name, values in scores.items()
    }


def keep_with_twin(corpus: Corpus, twins: Corpus) -> Corpus:
    """Return the rows of a corpus whose clusters have a twin; DataError if none has."""
    has_twin = corpus["cluster_id"].isin(unsafe.benign_cluster_of(twins["cluster_id"]))
    if not has_twin.any():
        raise DataError(
            "no cluster of the corpus has a harmful twin, without which a veto's price"
            " is unknown"
        )
    return corpus[has_twin].reset_index(drop=True)
