"""Surface risk: how charged a prompt's wording looks, in [0, 1] (`docs/method.md`,
Corpus).

The scorer is frozen: another rule or other data need another `RISK_VERSION` and a new
corpus.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple, TypeAlias

import numpy as np
import pandas as pd

from paraguard_utils import paths, registry
from paraguard_utils.core import vectors, words
from paraguard_utils.core.estimates import N_RESAMPLES, SEED, to_columns
from paraguard_utils.errors import SettingsError
from paraguard_utils.guards import panel
from paraguard_utils.guards.contract import check_probabilities
from paraguard_utils.models import encoder, loading
from paraguard_utils.models.encoder import Embed
from paraguard_utils.schemas import Table

RISK_VERSION = "surface-risk-1"
RISK_DATA_DIGEST = "87dc87cdc23b1aae2806b545a40c1c9aaffc2a56c776c539002e2fe5b4ae6d5f"
N_NEAREST_EXEMPLARS = 3
CHARGED_TERMS_FILE = paths.DATA / "risk" / "charged_terms.csv"
RISK_EXEMPLARS_FILE = paths.DATA / "risk" / "exemplars.csv"

RiskFunction: TypeAlias = Callable[
    [Sequence[str], Embed], np.ndarray
]  # texts and what embeds them to risks, in [0, 1]


def risk_data_digest() -> str:
    """Return the SHA-256 over the scorer's data files."""
    return hashlib.sha256(
        CHARGED_TERMS_FILE.read_bytes() + RISK_EXEMPLARS_FILE.read_bytes()
    ).hexdigest()


@cache
def _charged_terms() -> pd.DataFrame:
    """Read the charged terms: term, weight, theme, and the pattern of the words that it
    matches.
    """
    rows = pd.read_csv(CHARGED_TERMS_FILE)
    return rows.assign(
        pattern=[
            re.compile(term.replace("*", r"[\w-]*") + r"\Z") for term in rows["term"]
        ]
    )


@cache
def _word_weight(word: str) -> float:
    terms = _charged_terms()
    weights = zip(terms["pattern"], terms["weight"], strict=True)
    return max(
        (weight for pattern, weight in weights if pattern.match(word)), default=0.0
    )


def match_charged_terms(texts: Sequence[str]) -> dict[str, list[bool]]:
    """Say for each listed term that occurs which texts have a word that it matches."""
    own = [set(words.split_words(text)) for text in texts]
    every = sorted(set().union(*own))
    found = {}
    for term, pattern in zip(
        _charged_terms()["term"], _charged_terms()["pattern"], strict=True
    ):
        if matching := {word for word in every if pattern.match(word)}:
            found[term] = [bool(matching & text) for text in own]
    return found


def term_themes() -> dict[str, str]:
    """Return the theme of each listed term."""
    return _charged_terms().set_index("term")["theme"].to_dict()


def count_charged_terms(text: str) -> int:
    """Count the distinct charged words of a text: the plain keyword count."""
    return sum(_word_weight(word) > 0 for word in set(words.split_words(text)))


def lexical_risk(text: str) -> float:
    """Compute the lexical half of a text's risk, in [0, 1]: 1 - prod(1 - weight) over
    its distinct words.
    """
    return 1.0 - float(
        np.prod(
            [1.0 - _word_weight(word) for word in sorted(set(words.split_words(text)))]
        )
    )


def surface_risk(
    texts: Sequence[str], embed: Embed = encoder.encode_texts
) -> np.ndarray:
    """Score how charged n texts look, shape (n,), in [0, 1], rounded to 4 decimals.

    `embed` gives sentence vectors.
    """
    exemplars = pd.read_csv(RISK_EXEMPLARS_FILE)
    cosines = vectors.cosine_similarity(
        embed(list(texts)), embed(exemplars["text"].tolist())
    )
    is_charged = (exemplars["kind"] == "charged").to_numpy()
    highest = (
        np.sort(cosines[:, kind], axis=1)[:, -N_NEAREST_EXEMPLARS:]
        for kind in (is_charged, ~is_charged)
    )
    charged, plain = (nearest.mean(axis=1) for nearest in highest)
    lexical_half = np.array([lexical_risk(text) for text in texts])
    return np.round((lexical_half + np.clip(0.5 + charged - plain, 0.0, 1.0)) / 2, 4)


BIN_WIDTH = 0.05  # width of a bin in histograms
BIN_EDGES = np.linspace(0, 1, round(1 / BIN_WIDTH) + 1)


def describe_risks(frame: pd.DataFrame, low: float, high: float) -> Table:
    """Describe the risks of texts (group, risk) by group, and how many the gate (`low`,
    `high`) lets through.

    Returns group, low (lower edge of a bin), n (texts in it), texts (in the group),
    median, within (share in the gate).
    """
    lines = []
    for group, risks in frame.groupby("group", sort=False)["risk"]:
        about = {
            "texts": len(risks),
            "median": risks.median(),
            "within": risks.between(low, high).mean(),
        }
        counts, _ = np.histogram(risks, BIN_EDGES)
        lines += [
            {"group": group, "low": edge, "n": n} | about
            for edge, n in zip(BIN_EDGES, counts, strict=False)
        ]
    return pd.DataFrame(lines)


def risk_auc(
    texts: Sequence[str],
    unsafe: np.ndarray,
    scorer: "RiskScorer",
    resamples: int = N_RESAMPLES,
) -> Table:
    """Compute the areas under the ROC curve of a risk scorer and of the plain keyword
    count; neither detects harm.

    `unsafe` says which of the texts are; prompts are resampled, the same for both
    scorers. Returns scorer, safe, unsafe (numbers of texts), auc, auc_low, auc_high (95
    % interval); a last row with the difference.
    """
    from sklearn.metrics import roc_auc_score  # a second to import

    values = {
        scorer.identity.split()[0]: scorer.score(texts, encoder.encode_texts),
        "keyword count": np.array([count_charged_terms(text) for text in texts]),
    }
    drawn = np.random.default_rng(SEED).integers(
        len(unsafe), size=(resamples, len(unsafe))
    )
    samples = [
        np.arange(len(unsafe)),
        *(rows for rows in drawn if 0 < unsafe[rows].sum() < len(rows)),
    ]
    areas = {
        name: np.array([roc_auc_score(unsafe[rows], by[rows]) for rows in samples])
        for name, by in values.items()
    }
    areas["difference"] = np.subtract(*areas.values())
    counts = {"safe": int((~unsafe).sum()), "unsafe": int(unsafe.sum())}
    found = {
        name: (area[0], *np.percentile(area[1:], [2.5, 97.5]))
        for name, area in areas.items()
    }
    return pd.DataFrame(
        [
            {"scorer": name, **counts} | to_columns({"auc": auc})
            for name, auc in found.items()
        ]
    )


class RiskScorer(NamedTuple):
    """A risk scorer; `identity`, its name and version or digest, stands in meta files."""

    identity: str
    score: RiskFunction


def load_risk_scorer(name: str) -> RiskScorer:
    """Return a risk scorer by name.

    It is `RISK_VERSION`, a guard (a key of `panel` in `data/guards.yaml`), or
    `MODEL#LABEL`: a text classifier, as a folder or hub id, and the label whose
    probability is the risk. Raise SettingsError where there is no such scorer or label,
    and ModelError where the classifier cannot be found or loaded.
    """
    if name == RISK_VERSION:
        return RiskScorer(f"{RISK_VERSION} {risk_data_digest()[:16]}", surface_risk)
    guards = registry.guard_entries("panel")
    if name in guards:
        guard = panel.load_guard(name)
        identity = f"{name} {guard.version}"
        return RiskScorer(
            identity,
            lambda texts, _: check_probabilities(name, guard.score(texts), len(texts)),
        )
    folder, mark, label = name.rpartition("#")
    if not mark:
        known = ", ".join([RISK_VERSION, *guards])
        raise SettingsError(
            f"there is no risk scorer {name!r}; there are {known}, and MODEL#LABEL for"
            " a text classifier"
        )
    source = loading.resolve_model(folder)
    classifier = loading.TextClassifier(source, 32, "cpu")
    if label not in classifier.labels:
        known = ", ".join(classifier.labels)
        raise SettingsError(
            f"the classifier {source.name} has no label {label!r}; it has {known}"
        )
    column = classifier.labels.index(label)
    identity = f"{source.name}#{label} {source.weights_id[:16]}"
    return RiskScorer(identity, lambda texts, _: classifier.classify(texts)[:, column])
