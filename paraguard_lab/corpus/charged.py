"""Charged words of texts, and risk scorers described (`docs/method.md`, Corpus)."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

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
    all_words = sorted(set().union(*words_of_texts))
    occurrences = {}
    terms = charged_terms()
    for term, pattern in zip(terms["term"], terms["pattern"], strict=True):
        matching = {word for word in all_words if pattern.match(word)}
        if matching:
            occurrences[term] = [bool(matching & words) for words in words_of_texts]
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
    rows = []
    for group, risks in texts.groupby("group", sort=False)["risk"]:
        counts, _ = np.histogram(risks, BIN_EDGES)
        about = {
            "texts": len(risks),
            "median": risks.median(),
            "within": risks.between(low, high).mean(),
        }
        for edge, n in zip(BIN_EDGES[:-1], counts, strict=True):
            rows.append({"group": group, "low": edge, "n": n} | about)
    return pd.DataFrame(rows)


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
    name = scorer.identity.split()[0]
    risks = scorer.score(texts, encoder.encode_texts)
    keywords = np.array([count_charged_terms(text) for text in texts])
    generator = np.random.default_rng(SEED)
    drawn = generator.integers(len(unsafe), size=(resamples, len(unsafe)))
    samples = [np.arange(len(unsafe))]
    for sample in drawn:
        if 0 < unsafe[sample].sum() < len(sample):
            samples.append(sample)

    def areas(values: np.ndarray) -> np.ndarray:
        """Return the area over all texts, then over each resample."""
        return np.array([roc_auc_score(unsafe[rows], values[rows]) for rows in samples])

    by_scorer = {name: areas(risks), "keyword count": areas(keywords)}
    by_scorer["difference"] = by_scorer[name] - by_scorer["keyword count"]
    rows = []
    for scorer_name, values in by_scorer.items():
        low, high = np.percentile(values[1:], [2.5, 97.5])
        row = {
            "scorer": scorer_name,
            "safe": int((~unsafe).sum()),
            "unsafe": int(unsafe.sum()),
            "auc": values[0],
            "auc_low": low,
            "auc_high": high,
        }
        rows.append(row)
    return pd.DataFrame(rows)
