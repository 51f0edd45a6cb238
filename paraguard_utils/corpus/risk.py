"""Score surface risk: how charged a prompt's wording looks, in [0, 1].

The scorer is frozen: another rule or other data need another `RISK_VERSION` and a new
corpus (`docs/method.md`, Corpus).
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils import paths, seams
from paraguard_utils.core.vectors import cosine_similarity
from paraguard_utils.core.words import split_words
from paraguard_utils.errors import SettingsError
from paraguard_utils.models import encoder
from paraguard_utils.models.encoder import Embed

RISK_VERSION = "surface-risk-1"
N_NEAREST_EXEMPLARS = 3
CHARGED_TERMS_FILE = paths.DATA / "risk" / "charged_terms.csv"
RISK_EXEMPLARS_FILE = paths.DATA / "risk" / "exemplars.csv"

RiskFunction: TypeAlias = Callable[[Sequence[str], Embed], np.ndarray]
"""A function from n texts, and what embeds texts, to n risks in [0, 1]."""


def risk_data_digest() -> str:
    """Return the SHA-256 of the scorer's data files."""
    content = CHARGED_TERMS_FILE.read_bytes() + RISK_EXEMPLARS_FILE.read_bytes()
    return hashlib.sha256(content).hexdigest()


@cache
def charged_terms() -> pd.DataFrame:
    """Read the charged terms: term, weight, theme, and the pattern of its words."""
    terms = pd.read_csv(CHARGED_TERMS_FILE)
    patterns = terms["term"].str.replace("*", r"[\w-]*", regex=False)
    return terms.assign(pattern=[re.compile(pattern) for pattern in patterns])


@cache
def word_weight(word: str) -> float:
    """Return the largest weight of a charged term that matches a word, or 0."""
    terms = charged_terms()
    matches = [bool(pattern.fullmatch(word)) for pattern in terms["pattern"]]
    return max(terms.loc[matches, "weight"], default=0.0)


def lexical_risk(text: str) -> float:
    """Compute the lexical half of a text's risk, in [0, 1].

    It is 1 - prod(1 - weight) over the distinct words of the text.

    Examples
    --------
    >>> lexical_risk("Which bread goes with soup?")
    0.0
    """
    words = sorted(set(split_words(text)))
    return 1.0 - float(np.prod([1.0 - word_weight(word) for word in words]))


def _mean_of_highest(cosines: np.ndarray) -> np.ndarray:
    """Return the mean of the highest cosines of each row."""
    highest = np.sort(cosines, axis=1)[:, -N_NEAREST_EXEMPLARS:]
    return highest.mean(axis=1)


def surface_risk(
    texts: Sequence[str], embed: Embed = encoder.encode_texts
) -> np.ndarray:
    """Score how charged n texts look.

    Parameters
    ----------
    texts : sequence of str
    embed : callable
        From texts to sentence vectors, a row per text.

    Returns
    -------
    numpy.ndarray, shape (n,)
        Risks in [0, 1], rounded to 4 decimals: the mean of a lexical half
        (`lexical_risk`) and of a half that compares the text's vector with charged and
        with plain topics.
    """
    exemplars = pd.read_csv(RISK_EXEMPLARS_FILE)
    text_vectors = embed(list(texts))
    exemplar_vectors = embed(exemplars["text"].tolist())
    cosines = cosine_similarity(text_vectors, exemplar_vectors)
    is_charged = (exemplars["kind"] == "charged").to_numpy()
    charged = _mean_of_highest(cosines[:, is_charged])
    plain = _mean_of_highest(cosines[:, ~is_charged])
    lexical_half = np.array([lexical_risk(text) for text in texts])
    topical_half = np.clip(0.5 + charged - plain, 0.0, 1.0)
    return np.round((lexical_half + topical_half) / 2, 4)


class RiskScorer(NamedTuple):
    """A risk scorer.

    Attributes
    ----------
    identity : str
        Its name and its version or digest, as in meta files.
    score : RiskFunction
    """

    identity: str
    score: RiskFunction


def load_risk_scorer(name: str) -> RiskScorer:
    """Return the risk scorer of a name.

    Parameters
    ----------
    name : str
        `RISK_VERSION`, or what an entry point of the group `paraguard.risks` knows, a
        function from a name to a scorer or None: `paraguard_tools` has
        `module:function`, guards and text classifiers.

    Raises
    ------
    SettingsError
        There is no such scorer.
    """
    if name == RISK_VERSION:
        return RiskScorer(f"{RISK_VERSION} {risk_data_digest()[:16]}", surface_risk)
    for kind in seams.find_extensions("risks"):
        scorer = seams.load_extension("risks", kind)(name)
        if scorer:
            return scorer
    raise SettingsError(
        f"there is no risk scorer {name!r}; there are {RISK_VERSION}, module:function"
        " for a function of yours, MODEL#LABEL for a text classifier, and the guards"
        " of data/guards.yaml"
    )
