"""The page on which a reader explores who decided what (`docs/method.md`, Metrics).

It is one HTML file that needs no network: it holds script, style and data. Every text
of a prompt, an answer or a token travels as packed JSON and is shown as text; a content
security policy lets no other script run and nothing be fetched.
"""

import base64
import gzip
import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd

from paraguard_lab.analysis.nearest import pair_with_nearest_accepted
from paraguard_lab.corpus import fidelity
from paraguard_lab.sheets import FORMULA_START
from paraguard_utils import schemas, unsafe
from paraguard_utils.analysis import drift, signals
from paraguard_utils.analysis.cohorts import BIN_NAMES, RISK_BIN_EDGES, cut_at_edges
from paraguard_utils.analysis.system import System
from paraguard_utils.core import estimates
from paraguard_utils.core.confusion import THETA
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.schemas import Corpus

_FOLDER = Path(__file__).parent
_PROMPT_COLUMNS = [
    "prompt_id",
    "cluster_id",
    "strategy",
    "category",
    "risk",
    "text",
]
_MEASURES = ("isolation", "ci", "ci_clipped", "mean_similarity")


class ExplorerHeader(NamedTuple):
    """What the head of the page says."""

    corpus: str  # name of the corpus
    store: str  # name of the store
    titles: dict[str, str]  # by name of the system


def render_explorer(
    corpus: Corpus, data: Mapping[str, System], about: ExplorerHeader
) -> str:
    """Make the page as HTML of systems that were scored alike.

    Raise DataError for a corpus that asks for harm.
    """
    unsafe.refuse_unsafe(corpus, "the explorer")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["source"] = _csp_source
    environment.filters["packed"] = _pack
    low, high = (f"{edge:.2f}" for edge in RISK_BIN_EDGES)
    bin_titles = (f"low, < {low}", f"middle, {low} to < {high}", f"high, ≥ {high}")
    return environment.get_template("explorer.html").render(
        about=about,
        scored=next(iter(data.values())),  # what it was scored with is the same for all
        content=collect_explorer_data(corpus, data, about),
        bins=zip(BIN_NAMES, bin_titles, strict=True),
        too_few=estimates.MIN_REFUSALS,
        theta=THETA,
    )


def collect_explorer_data(
    corpus: Corpus, data: Mapping[str, System], about: ExplorerHeader
) -> dict[str, object]:
    """Collect what the page shows, JSON-able.

    Each text is there once, and others refer to its place.

    Returns
    -------
    dict
        decisions, the label set; questions, what a reader may say to each; formula,
        what a spreadsheet would run begins with; prompts, as the corpus has them, with
        the bin of their risk; systems (`_describe_system`); rejections
        (`_list_rejections`).
    """
    place = pd.Series(range(len(corpus)), index=corpus["prompt_id"])
    prompts = corpus[_PROMPT_COLUMNS].assign(
        bin=cut_at_edges(corpus["risk"], RISK_BIN_EDGES)
    )
    systems = []
    rejections = []
    for number, (name, system) in enumerate(data.items()):
        rows = drift.find_token_rows(system.traces, system.drifts.tokens)
        near = _list_neighbours(system, rows, place)
        systems.append(_describe_system(system, about.titles[name], rows, near))
        for rejection in _list_rejections(system, near, place):
            rejections.append({"system": number, **rejection})
    return {
        "decisions": schemas.LABELS,
        "questions": fidelity.SHEET_QUESTIONS,
        "formula": FORMULA_START,
        "prompts": prompts.to_dict("records"),
        "systems": systems,
        "rejections": rejections,
    }


def _describe_system(
    system: System, title: str, rows: Sequence[np.ndarray], near: pd.DataFrame
) -> dict[str, object]:
    """Describe a system.

    Returns
    -------
    dict
        name; title; answers and labels (places in decisions) by prompt; tokens (texts);
        words, the tokens of each prompt that is compared. Other tokens are not shown,
        and their texts are left out.
    """
    compared = sorted({*near["centre"], *near["neighbour"]})
    used = np.unique(np.concatenate([*(rows[at] for at in compared), []]).astype(int))
    words = {at: np.searchsorted(used, rows[at]).tolist() for at in compared}
    answers = system.labels["response"]
    return {
        "name": system.name,
        "title": title,
        "answers": [None if pd.isna(answer) else answer for answer in answers],
        "labels": [schemas.LABELS.index(label) for label in system.labels["label"]],
        "tokens": system.drifts.tokens["text"].iloc[used].tolist(),
        "words": words,
    }


def _list_rejections(
    system: System, near: pd.DataFrame, place: pd.Series
) -> list[dict[str, object]]:
    """List a system's rejections.

    Returns
    -------
    list of dict
        prompt; the measures, null if undefined; paraphrase, the most similar accepted
        prompt of the cluster and its similarity, or null; near, the neighbours. Each of
        near is a list: prompt, similarity, drift, prob_shift, ppl_relative,
        ppl_clipped, score_relative, score_clipped, the place of the neighbour's nearest
        token for each token of the rejection, and the distance to it in hundredths.
    """
    by_centre = defaultdict(list)
    for centre, *fields in near.astype(object).to_numpy().tolist():
        by_centre[centre].append(fields)
    paraphrases = {
        row.centre_id: [int(place[row.neighbour_id]), round(row.similarity, 4)]
        for row in pair_with_nearest_accepted(system.pairs).itertuples()
    }
    rejections = []
    rejected = system.scores[system.scores["label"] == "reject"]
    for row in rejected.to_dict("records"):
        at = int(place[row["prompt_id"]])
        measures = {
            name: None if pd.isna(row[name]) else round(row[name], 4)
            for name in _MEASURES
        }
        paraphrase = paraphrases.get(row["prompt_id"])
        rejections.append(
            {"prompt": at, **measures, "paraphrase": paraphrase, "near": by_centre[at]}
        )
    return rejections


def _list_neighbours(
    system: System, rows: Sequence[np.ndarray], place: pd.Series
) -> pd.DataFrame:
    """Return rejections and their k neighbours by place in the corpus.

    Each row has signals, scores, and for each token of the rejection the neighbour's
    nearest token.
    """
    pairs = system.pairs
    used = signals.is_ranked(pairs, system.scoring.k)
    used &= pairs["centre_label"] == "reject"
    pairs = pairs[used].sort_values(["centre_id", "rank"])
    near = pd.DataFrame(
        {
            "centre": pairs["centre_id"].map(place).astype(int),
            "neighbour": pairs["neighbour_id"].map(place).astype(int),
        }
    )
    shown = ["similarity", "drift", "prob_shift", *PPL_INTERPRETATIONS.values()]
    near = near.join(pairs[shown].round(4))
    for interpretation in PPL_INTERPRETATIONS:
        scores = signals.score_pairs(pairs, system.scoring.weights, interpretation)
        near[f"score_{interpretation}"] = scores.round(4)
    embeddings = system.drifts.units
    nearest = []
    hundredths = []
    for centre, neighbour in zip(near["centre"], near["neighbour"], strict=True):
        cosines = embeddings[rows[centre]] @ embeddings[rows[neighbour]].T
        # Rounded, so that equal tokens are 0 and not a little more or less; of equally
        # near ones the first counts.
        distances = np.round(1 - cosines, 12) + 0.0
        nearest.append(distances.argmin(axis=1).tolist())
        closest = np.rint(100 * distances.min(axis=1))
        hundredths.append(closest.astype(int).tolist())
    return near.assign(nearest=nearest, hundredths=hundredths)


def _pack(content: object) -> str:
    """Return JSON, compressed to a third, in base64."""
    plain = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(plain.encode(), mtime=0)).decode()


def _csp_source(inline: str) -> str:
    """Return the content security policy's source of an inline script or style."""
    digest = hashlib.sha256(inline.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
