"""Surface risk: how charged a prompt's wording looks, in [0, 1] (`paper.md`, ParaGuard, our choice).

It is not the probability of harm: every prompt of the corpus is benign. The paper does not name its risk scorer; this
one is ours. It is the mean of two halves:

* *lexical*: 1 - prod(1 - w) over the distinct charged terms in the text, weighted by `data/risk/charged_terms.csv`
  (`kill*` is a prefix): one strong term counts, more terms count for more, nothing exceeds 1;
* *semantic*: 0.5 + (c - p), clipped to [0, 1], where c and p are the means of the three highest cosines to charged and
  to plain exemplar topics in `data/risk/exemplars.csv`.

The scorer is frozen: `VERSION` names this rule and `FROZEN` is the digest of its data. Changing either is a new version
and means a new corpus.
"""

import hashlib
import re
from functools import cache

import numpy as np
import pandas as pd

from paraguard_utils import encoder, paths
from paraguard_utils.text import words

VERSION = "surface-risk-1"
FROZEN = "87dc87cdc23b1aae2806b545a40c1c9aaffc2a56c776c539002e2fe5b4ae6d5f"
NEAREST = 3
TERMS = paths.DATA / "risk" / "charged_terms.csv"
EXEMPLARS = paths.DATA / "risk" / "exemplars.csv"


def digest():
    """Return the SHA-256 over the scorer's data files."""
    return hashlib.sha256(TERMS.read_bytes() + EXEMPLARS.read_bytes()).hexdigest()


@cache
def _terms():
    frame = pd.read_csv(TERMS)
    patterns = [re.compile(term.replace("*", r"[\w-]*") + r"\Z") for term in frame["term"]]
    return list(zip(patterns, frame["weight"], strict=True))


@cache
def _word_weight(word):
    return max((weight for pattern, weight in _terms() if pattern.match(word)), default=0.0)


def lexical(text):
    """Return the charged-term half of the score for one text, in [0, 1]."""
    return 1.0 - float(np.prod([1.0 - _word_weight(word) for word in sorted(set(words(text)))]))


def semantic(texts, embed=encoder.encode):
    """Return the exemplar half of the score, in [0, 1].

    Parameters
    ----------
    texts : sequence of str, length n
    embed : callable
        Texts to sentence vectors.

    Returns
    -------
    numpy.ndarray, shape (n,)
    """
    exemplars = pd.read_csv(EXEMPLARS)
    cosines = encoder.cosine(embed(list(texts)), embed(exemplars["text"].tolist()))
    is_charged = (exemplars["kind"] == "charged").to_numpy()
    charged, plain = (
        np.sort(cosines[:, kind], axis=1)[:, -NEAREST:].mean(axis=1) for kind in (is_charged, ~is_charged)
    )
    return np.clip(0.5 + charged - plain, 0.0, 1.0)


def surface_risk(texts, embed=encoder.encode):
    """Score how charged texts look.

    Parameters
    ----------
    texts : sequence of str, length n
    embed : callable
        Texts to sentence vectors, shape (n, 384); default: the packaged encoder.

    Returns
    -------
    numpy.ndarray, shape (n,), in [0, 1], rounded to 4 decimals
    """
    lexical_half = np.array([lexical(text) for text in texts])
    return np.round((lexical_half + semantic(texts, embed)) / 2, 4)
