"""The page on which a reader explores who decided what (`docs/method.md`, Metrics):
from frames to HTML.

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
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd

from paraguard_lab.corpus import fidelity
from paraguard_utils import schemas, text, unsafe
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.cohorts import BIN_NAMES, RISK_BIN_EDGES, cut_at_edges
from paraguard_utils.analysis.system import System
from paraguard_utils.core import estimates, vectors
from paraguard_utils.core.confusion import THETA
from paraguard_utils.core.signals import PPL_INTERPRETATIONS
from paraguard_utils.schemas import Corpus


class ExplorerHeader(NamedTuple):
    """What the head of the page says: names of the corpus and the store, and each
    system's title.
    """

    corpus: str
    store: str
    titles: dict[str, str]


def render_explorer(
    corpus: Corpus, data: Mapping[str, System], about: ExplorerHeader
) -> str:
    """Make the page as HTML of systems that were scored alike.

    DataError for a corpus that asks for harm.
    """
    unsafe.refuse_unsafe(corpus, "the explorer")
    low, high = (f"{edge:.2f}" for edge in RISK_BIN_EDGES)
    loader = jinja2.PackageLoader("paraguard_utils.report", ".")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.filters |= {"source": _source, "packed": _packed}
    return environment.get_template("explorer.html").render(
        about=about,
        scored=next(iter(data.values())),  # what it was scored with is the same for all
        content=collect_explorer_data(corpus, data, about),
        bins=zip(
            BIN_NAMES,
            (f"low, < {low}", f"middle, {low} to < {high}", f"high, ≥ {high}"),
            strict=True,
        ),
        too_few=estimates.MIN_REFUSALS,
        theta=THETA,
    )


def collect_explorer_data(
    corpus: Corpus, data: Mapping[str, System], about: ExplorerHeader
) -> dict[str, object]:
    """Collect what the page shows, JSON-able.

    Each text stands there once, others refer to its place.

    Returns decisions, the label set; questions, what a reader may say to each; formula,
    what a spreadsheet would run begins with; prompts, as the corpus has them, with the
    bin of their risk; systems: name, title, answers and labels (places in decisions) by
    prompt, tokens (texts) and words, the tokens of each compared prompt; rejections:
    system, prompt, isolation, ci, ci_clipped, mean_similarity (null where undefined),
    paraphrase (the most similar accepted prompt of the cluster and its similarity, or
    null) and near. Each of near is a neighbour: prompt, similarity, drift, prob_shift,
    ppl_relative, ppl_clipped, score_relative, score_clipped, the place of the
    neighbour's nearest token for each token of the rejection, and the distance to it in
    hundredths.
    """
    place = pd.Series(range(len(corpus)), index=corpus["prompt_id"])
    columns = ["prompt_id", "cluster_id", "strategy", "category", "risk", "text"]
    measures = ("isolation", "ci", "ci_clipped", "mean_similarity")
    systems, rejections = [], []
    for number, (name, own) in enumerate(data.items()):
        rows = signals.find_token_rows(own.traces, own.tokens)
        near = _near(own, rows, place)
        # The page holds the texts of those tokens only that it shows.
        compared = {
            at: rows[at] for at in sorted({*near["centre"], *near["neighbour"]})
        }
        used = np.unique(np.concatenate([*compared.values(), []]).astype(int))
        told = {
            "name": name,
            "title": about.titles[name],
            "answers": [
                None if pd.isna(answer) else answer for answer in own.labels["response"]
            ],
            "labels": [schemas.LABELS.index(label) for label in own.labels["label"]],
            "tokens": own.tokens["text"].iloc[used].tolist(),
            "words": {
                at: np.searchsorted(used, row).tolist() for at, row in compared.items()
            },
        }
        systems.append(told)
        by_centre = defaultdict(list)
        for centre, *fields in near.astype(object).to_numpy().tolist():
            by_centre[centre].append(fields)
        nearest = confusion.pair_with_nearest_accepted(own.pairs)[
            ["centre_id", "neighbour_id", "similarity"]
        ]
        closest = {
            centre: [int(place[other]), round(sim, 4)]
            for centre, other, sim in nearest.itertuples(index=False)
        }
        for row in own.scores[own.scores["label"] == "reject"].to_dict("records"):
            at = int(place[row["prompt_id"]])
            found = {
                name: None if pd.isna(row[name]) else round(row[name], 4)
                for name in measures
            }
            found |= {
                "paraphrase": closest.get(row["prompt_id"]),
                "near": by_centre[at],
            }
            rejections.append({"system": number, "prompt": at} | found)
    return {
        "decisions": schemas.LABELS,
        "questions": fidelity.SHEET_QUESTIONS,
        "formula": text.FORMULA_START,
        "prompts": (
            corpus[columns]
            .assign(bin=cut_at_edges(corpus["risk"], RISK_BIN_EDGES))
            .to_dict("records")
        ),
        "systems": systems,
        "rejections": rejections,
    }


def _near(own: System, rows: Sequence[np.ndarray], place: pd.Series) -> pd.DataFrame:
    """Return rejections and their k neighbours by place in the corpus, with signals,
    scores and aligned tokens.
    """
    used = signals.is_ranked(own.pairs, own.k) & (own.pairs["centre_label"] == "reject")
    pairs = own.pairs[used].sort_values(["centre_id", "rank"])
    near = pd.DataFrame(
        {
            end: pairs[f"{end}_id"].map(place).astype(int)
            for end in ("centre", "neighbour")
        }
    )
    near = near.join(
        pairs[
            ["similarity", "drift", "prob_shift", *PPL_INTERPRETATIONS.values()]
        ].round(4)
    )
    for interpretation in PPL_INTERPRETATIONS:
        near[f"score_{interpretation}"] = signals.score_pairs(
            pairs, own.weights, interpretation
        ).round(4)
    table = vectors.normalize_rows(np.stack(own.tokens["embedding"].to_numpy()))
    ends = zip(near["centre"], near["neighbour"], strict=True)
    # Rounded, so that equal tokens are 0 and not a little more or less; of equally near
    # ones the first counts.
    distances = [
        np.round(1 - table[rows[a]] @ table[rows[b]].T, 12) + 0.0 for a, b in ends
    ]
    return near.assign(
        nearest=[one.argmin(axis=1).tolist() for one in distances],
        hundredths=[
            np.rint(100 * one.min(axis=1)).astype(int).tolist() for one in distances
        ],
    )


def _packed(content: object) -> str:
    """Return JSON, compressed to a third, in base64."""
    plain = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return base64.b64encode(gzip.compress(plain, mtime=0)).decode()


def _source(inline: str) -> str:
    """Return the content security policy's source expression for one inline script or
    style.
    """
    return f"'sha256-{base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()}'"
