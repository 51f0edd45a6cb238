"""Surface risk: how charged a prompt's wording looks, in [0, 1] (`docs/method.md`, Corpus).

It is not the probability of harm: every prompt of `paraguard_mini` is benign, and its unsafe twins lie between the same
limits. The paper does not name its risk scorer; this one is ours. It is the mean of two halves:

* *lexical*: 1 - prod(1 - w) over the distinct charged words of the text, weighted by `data/risk/charged_terms.csv`
  (`kill*` is a prefix): one strong term counts, more terms count for more, nothing exceeds 1;
* *semantic*: 0.5 + (c - p), clipped to [0, 1], where c and p are the means of the three highest cosines to charged and
  to plain exemplar topics in `data/risk/exemplars.csv`.

The scorer is frozen: `VERSION` names this rule and `FROZEN` is the digest of its data. To change either is to make a
new version, which needs a new corpus. A guard or a text classifier can take its place (`scorer`).
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from paraguard_utils import paths, registry
from paraguard_utils.core.estimates import RESAMPLES, SEED
from paraguard_utils.core.vectors import cosine
from paraguard_utils.core.words import words
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import checked
from paraguard_utils.models import encoder, loading
from paraguard_utils.models.encoder import Embed
from paraguard_utils.schemas import Table

VERSION = "surface-risk-1"
FROZEN = "87dc87cdc23b1aae2806b545a40c1c9aaffc2a56c776c539002e2fe5b4ae6d5f"
NEAREST = 3
TERMS = paths.DATA / "risk" / "charged_terms.csv"
EXEMPLARS = paths.DATA / "risk" / "exemplars.csv"


Risk: TypeAlias = Callable[[Sequence[str], Embed], np.ndarray]
"""A function from texts, and from what embeds them, to risks in [0, 1]."""


def digest() -> str:
    """Return the SHA-256 over the scorer's data files."""
    return hashlib.sha256(TERMS.read_bytes() + EXEMPLARS.read_bytes()).hexdigest()


@cache
def _listed() -> pd.DataFrame:
    return pd.read_csv(TERMS)


@cache
def _terms() -> list[tuple[re.Pattern[str], float]]:
    frame = _listed()
    patterns = [re.compile(term.replace("*", r"[\w-]*") + r"\Z") for term in frame["term"]]
    return list(zip(patterns, frame["weight"], strict=True))


@cache
def _word_weight(word: str) -> float:
    return max((weight for pattern, weight in _terms() if pattern.match(word)), default=0.0)


def matched_terms(texts: Sequence[str]) -> dict[str, list[bool]]:
    """Say for each listed term that occurs which texts have a word that it matches."""
    own = [set(words(text)) for text in texts]
    every = sorted(set().union(*own))
    found = {}
    for term, (pattern, _) in zip(_listed()["term"], _terms(), strict=True):
        matching = {word for word in every if pattern.match(word)}
        if matching:
            found[term] = [bool(matching & text) for text in own]
    return found


def families() -> dict[str, str]:
    """Return the theme of each listed term."""
    return dict(zip(_listed()["term"], _listed()["theme"], strict=True))


def charged_terms(text: str) -> int:
    """Count the distinct charged words of a text: the plain keyword count."""
    return sum(_word_weight(word) > 0 for word in set(words(text)))


def lexical(text: str) -> float:
    """Compute the lexical half of a text's risk, in [0, 1]."""
    return 1.0 - float(np.prod([1.0 - _word_weight(word) for word in sorted(set(words(text)))]))


def semantic(texts: Sequence[str], embed: Embed = encoder.encode) -> np.ndarray:
    """Compute the semantic half of the risk of n texts, shape (n,), in [0, 1]; `embed` gives sentence vectors."""
    exemplars = pd.read_csv(EXEMPLARS)
    cosines = cosine(embed(list(texts)), embed(exemplars["text"].tolist()))
    is_charged = (exemplars["kind"] == "charged").to_numpy()
    charged, plain = (
        np.sort(cosines[:, kind], axis=1)[:, -NEAREST:].mean(axis=1) for kind in (is_charged, ~is_charged)
    )
    return np.clip(0.5 + charged - plain, 0.0, 1.0)


def surface_risk(texts: Sequence[str], embed: Embed = encoder.encode) -> np.ndarray:
    """Score how charged n texts look, shape (n,), in [0, 1], rounded to 4 decimals; `embed` gives sentence vectors."""
    lexical_half = np.array([lexical(text) for text in texts])
    return np.round((lexical_half + semantic(texts, embed)) / 2, 4)


BIN = 0.05  # width of a bin in histograms


def distribution(frame: pd.DataFrame, low: float, high: float) -> Table:
    """Describe the risks of texts (group, risk) by group, and how many the gate (`low`, `high`) lets through.

    Returns group, low (lower edge of a bin of width `BIN`), n (texts in it), texts (in the group), median, within
    (share inside the gate).
    """
    lines = []
    edges = np.linspace(0, 1, round(1 / BIN) + 1)
    for group, risks in frame.groupby("group", sort=False)["risk"]:
        about = {"texts": len(risks), "median": risks.median(), "within": risks.between(low, high).mean()}
        counts, _ = np.histogram(risks, edges)
        lines += [{"group": group, "low": edge, "n": n} | about for edge, n in zip(edges, counts, strict=False)]
    return pd.DataFrame(lines)


def auc(
    texts: Sequence[str],
    unsafe: np.ndarray,
    scorer: "Scorer",
    embed: Embed = encoder.encode,
    resamples: int = RESAMPLES,
    seed: int = SEED,
) -> Table:
    """Compute the areas under the ROC curve of a risk scorer and of the plain keyword count; neither detects harm.

    `unsafe` says which of the texts are; prompts are resampled, the same for both scorers. Returns scorer, safe, unsafe
    (numbers of texts), auc, auc_low, auc_high (95 % interval); a last row with the difference.
    """
    values = {
        scorer.identity.split()[0]: scorer.score(texts, embed),
        "keyword count": np.array([charged_terms(text) for text in texts]),
    }
    generator = np.random.default_rng(seed)
    drawn = generator.integers(len(unsafe), size=(resamples, len(unsafe)))
    draws = [rows for rows in drawn if 0 < unsafe[rows].sum() < len(rows)]
    known = {name: roc_auc_score(unsafe, value) for name, value in values.items()}
    found = {name: [roc_auc_score(unsafe[rows], value[rows]) for rows in draws] for name, value in values.items()}
    first, second = values
    known["difference"] = known[first] - known[second]
    found["difference"] = np.subtract(found[first], found[second]).tolist()
    counts = {"safe": int((~unsafe).sum()), "unsafe": int(unsafe.sum())}
    ends = [np.percentile(found[name], [2.5, 97.5]) for name in known]
    rows = [
        {"scorer": name, **counts, "auc": value, "auc_low": low, "auc_high": high}
        for (name, value), (low, high) in zip(known.items(), ends, strict=True)
    ]
    return pd.DataFrame(rows)


@dataclass(frozen=True)
class Scorer:
    """A risk scorer; `identity`, its name and version or digest, stands in meta files."""

    identity: str
    score: Risk


def scorer(name: str) -> Scorer:
    """Return a risk scorer by name.

    It is `VERSION`, a guard (a key of `panel` in `data/guards.yaml`), or `MODEL#LABEL`: a text classifier, as a folder
    or hub id, and the label whose probability is the risk. Raise SettingsError where there is no such scorer or label,
    and ModelError where the classifier cannot be found or loaded.
    """
    if name == VERSION:
        return Scorer(f"{VERSION} {digest()[:16]}", surface_risk)
    guards = registry.guards("panel")
    if name in guards:
        guard = panel.load(name)
        return Scorer(f"{name} {guard.version}", lambda texts, embed: checked(name, guard.score(texts), len(texts)))
    folder, mark, label = name.rpartition("#")
    if not mark:
        raise SettingsError(
            f"there is no risk scorer {name!r}; there are {', '.join([VERSION, *guards])}, and MODEL#LABEL for a text "
            "classifier"
        )
    source = loading.resolve(folder)
    classifier = loading.load_classifier(source)
    if label not in classifier.labels:
        raise SettingsError(
            f"the classifier {source.name} has no label {label!r}; it has {', '.join(classifier.labels)}"
        )
    column = classifier.labels.index(label)
    return Scorer(
        f"{source.name}#{label} {source.weights_id[:16]}", lambda texts, embed: classifier.classify(texts)[:, column]
    )
