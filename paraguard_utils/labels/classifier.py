"""A classifier of refusals, the second opinion on answers (`docs/method.md`, Labels).

`paraguard train` makes its coefficients (`paraguard_lab.labels.training`).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy.special import expit

from paraguard_utils import paths
from paraguard_utils.labels import refusals
from paraguard_utils.models import encoder

if TYPE_CHECKING:
    from sklearn.feature_extraction.text import TfidfVectorizer

CLASSIFIER_FILE = paths.DATA / "refusal_classifier.json"
CLASSIFIER_DIGEST = "39e26bf3270251cb8438fc2b06e8a143bffdb1a17938500df71083819fd9e1ae"

# The encoder reads so many first words; more cost time and add little
OPENING_WORDS = 12
REQUEST_WORDS = 40

PRODUCT_SCALE = 10.0
"""Scales the product of two unit vectors to the size of the vectors."""

OPINIONS = ["refusal", "partial"]


def make_classifier_inputs(
    responses: Sequence[object], requests: Sequence[object] | None
) -> tuple[list[str], np.ndarray]:
    """Compute, for n answers, their normalised openings and their vectors.

    The vectors are float64 of shape (n, 3 * 384): the embedding of an opening's first
    words, that times the request's by element, and the request's; zeros if the request
    is unknown. Equal openings and equal requests are embedded once.
    """
    openings = refusals.normalize_openings(responses)
    begun = [_first_words(text, OPENING_WORDS) for text in openings]
    answers = np.asarray(encoder.encode_texts(begun), np.float64)
    asked = np.zeros_like(answers)
    if requests is not None:
        texts = [_first_words(str(text), REQUEST_WORDS) for text in requests]
        asked = np.asarray(encoder.encode_texts(texts), np.float64)
    return openings, np.hstack([answers, answers * asked * PRODUCT_SCALE, asked])


def _first_words(text: str, count: int) -> str:
    return " ".join(text.split()[:count])


@dataclass(frozen=True, eq=False)
class RefusalClassifier:
    """Coefficients of two regressions: for refusing, and for refusing in part.

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
        """Return the probabilities of refusing, and of refusing in part.

        `rules` are the cue list's, "no_cue" for none. The columns are `OPINIONS`.
        """
        counter = make_ngram_counter(vocabulary=self.ngrams.index.tolist())
        counter.idf_ = self.ngrams["idf"].to_numpy()
        by_cue = self.cues.reindex(rules)[OPINIONS].fillna(0.0).to_numpy()
        by_ngram = counter.transform(openings) @ self.ngrams[OPINIONS].to_numpy()
        log_odds = by_ngram + by_cue + vectors @ self.vectors.T + self.intercepts
        return pd.DataFrame(expit(log_odds), columns=OPINIONS)


@cache
def load_refusal_classifier(file: Path = CLASSIFIER_FILE) -> RefusalClassifier:
    """Read the coefficients."""
    parts = json.loads(file.read_text())
    return RefusalClassifier(
        pd.DataFrame(parts["ngrams"], ["idf", *OPINIONS]).T,
        pd.DataFrame(parts["cues"], OPINIONS).T,
        np.array(parts["vectors"]),
        np.array(parts["intercepts"]),
    )


def make_ngram_counter(**options: Any) -> "TfidfVectorizer":
    """Return the counter of n-grams of one to three words."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # a second to import

    return TfidfVectorizer(
        ngram_range=(1, 3), sublinear_tf=True, token_pattern=r"[\w']+", **options
    )
