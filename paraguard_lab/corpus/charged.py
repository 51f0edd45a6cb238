"""Charged words of texts, and risk scorers described (`docs/method.md`, Corpus)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from paraguard_utils.core.estimates import N_RESAMPLES, SEED
from paraguard_utils.core.words import split_words
from paraguard_utils.corpus.gates import BIN_EDGES
from paraguard_utils.corpus.risk import RiskScorer, charged_terms, word_weight
from paraguard_utils.models import encoder
from paraguard_utils.schemas import Table


def match_charged_terms(texts: Sequence[str]) -> dict[str, list[bool]]:
    """Return for each listed term that occurs which texts have a word that it matches.

    Each list is in the order of the texts.
    """
    words_of_texts = [set(split_words(text)) for text in texts]
    occurrences = {}
    for row in charged_terms().itertuples():
        matches = []
        for words in words_of_texts:
            matches.append(any(map(row.pattern.fullmatch, words)))
        if any(matches):
            occurrences[row.term] = matches
    return occurrences


def term_themes() -> dict[str, str]:
    """Return the theme of each listed term."""
    return charged_terms().set_index("term")["theme"].to_dict()


def count_charged_terms(text: str) -> int:
    """Count the distinct charged words of a text: the plain keyword count."""
    return sum(word_weight(word) > 0 for word in set(split_words(text)))


def describe_risks(texts: pd.DataFrame, low: float, high: float) -> Table:
    """Describe the risks of texts by group, and how many the gate lets through.

    Parameters
    ----------
    texts : pandas.DataFrame
        Columns group, risk.
    low, high : float
        The gate.

    Returns
    -------
    pandas.DataFrame
        group, low (lower edge of a bin), n (texts in the bin), texts (in the group),
        median, within (share in the gate).
    """
    frames = []
    for group, risks in texts.groupby("group", sort=False)["risk"]:
        columns = {
            "group": group,
            "low": BIN_EDGES[:-1],
            "n": np.histogram(risks, BIN_EDGES)[0],
            "texts": len(risks),
            "median": risks.median(),
            "within": risks.between(low, high).mean(),
        }
        frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def risk_auc(
    texts: Sequence[str],
    unsafe: np.ndarray,
    scorer: RiskScorer,
    resamples: int = N_RESAMPLES,
) -> Table:
    """Compute the areas under the ROC curve of a risk scorer and of a keyword count.

    Neither detects harm. Prompts are resampled, the same for both scorers.

    Parameters
    ----------
    texts : sequence of str
    unsafe : numpy.ndarray of bool
        Which of the texts are unsafe.
    scorer : RiskScorer
    resamples : int

    Returns
    -------
    pandas.DataFrame
        scorer, safe, unsafe (numbers of texts), auc, auc_low, auc_high (95 %
        interval); a last row with the difference.
    """
    from sklearn.metrics import roc_auc_score  # a second to import

    name = scorer.identity.split()[0]
    keywords = np.array([count_charged_terms(text) for text in texts])
    scores = {
        name: scorer.score(texts, encoder.encode_texts),
        "keyword count": keywords,
    }
    generator = np.random.default_rng(SEED)
    drawn = generator.integers(len(unsafe), size=(resamples, len(unsafe)))
    has_both = unsafe[drawn].any(axis=1) & ~unsafe[drawn].all(axis=1)
    samples = [np.arange(len(unsafe)), *drawn[has_both]]
    areas = {}  # over all texts, then over each resample
    for scorer_name, values in scores.items():
        by_sample = [roc_auc_score(unsafe[rows], values[rows]) for rows in samples]
        areas[scorer_name] = np.array(by_sample)
    areas["difference"] = areas[name] - areas["keyword count"]
    by_scorer = pd.DataFrame(areas)
    low, high = np.percentile(by_scorer[1:], [2.5, 97.5], axis=0)
    columns = {
        "scorer": list(areas),
        "safe": (~unsafe).sum(),
        "unsafe": unsafe.sum(),
        "auc": by_scorer.loc[0].to_list(),
        "auc_low": low,
        "auc_high": high,
    }
    return pd.DataFrame(columns)
