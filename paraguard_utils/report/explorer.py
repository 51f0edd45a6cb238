"""One page on which a reader explores the rejections of a store (`docs/method.md`, Metrics).

The page is one HTML file that needs no network: DataTables, as `itables` bundles it, the page's own short script and
the data stand in it. Every text of a prompt, an answer or a token travels as JSON and is shown as text; a content
security policy lets no other script run and nothing be fetched.
"""

import base64
import hashlib
import re
from collections import defaultdict
from dataclasses import dataclass
from importlib import metadata, resources
from typing import NamedTuple

import jinja2
import numpy as np
import pandas as pd
from markupsafe import Markup

from paraguard_utils import bootstrap, paths, registry, schemas, stores
from paraguard_utils.errors import DataError
from paraguard_utils.models import prompting, trace_store
from paraguard_utils.querying import labelling, targets
from paraguard_utils.scoring import confusion, pipeline, signals
from paraguard_utils.scoring.cohorts import BINS, RISK_EDGES, between
from paraguard_utils.settings import PAPER_WEIGHTS, Settings, Weights

PAIR_FIELDS = ("similarity", "drift", "prob_shift", *signals.READINGS.values())
"""What the page says of a rejection and a neighbour, beside the score in each of `signals.READINGS`."""


class Answers(NamedTuple):
    """What a store holds of one target.

    Attributes
    ----------
    labels, traces : DataFrame
        Rows in corpus order.
    pairs, scores, tokens : DataFrame
    """

    labels: pd.DataFrame
    pairs: pd.DataFrame
    scores: pd.DataFrame
    traces: pd.DataFrame
    tokens: pd.DataFrame


@dataclass(frozen=True)
class About:
    """What the head of the page says.

    Attributes
    ----------
    corpus, store : str
        Names.
    titles : dict of str to str
        How each target is called.
    weights : settings.Weights
    k : int
    labeller : str
        Whose labels: the parameter of 03 (`settings.Settings`).
    """

    corpus: str
    store: str
    titles: dict
    weights: Weights = PAPER_WEIGHTS
    k: int = signals.K
    labeller: str = "cues"


def page(corpus, data, about):
    """Make the page.

    Parameters
    ----------
    corpus : DataFrame
    data : dict of str to Answers
        By target. One without scored rejections is named in the head, with n = 0.
    about : About

    Returns
    -------
    str
        HTML.
    """
    content = contents(corpus, data, about)
    rows = pd.DataFrame(content["rejections"], columns=["target", "prompt"])
    rows = rows.join(pd.DataFrame(content["prompts"]), on="prompt")
    every = {"target": range(len(data)), "bin": BINS}
    counts = {
        name: rows[name].value_counts().reindex(every.get(name, sorted(set(rows[name]))), fill_value=0).to_dict()
        for name in ("target", "category", "strategy", "bin")
    }
    low, high = (f"{edge:.2f}" for edge in RISK_EDGES)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("paraguard_utils.report", "."), autoescape=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["source"] = _source
    bundle = resources.files("itables") / "html"
    return environment.get_template("explorer.html").render(
        about=about,
        content=content,
        counts=counts,
        bins=[f"low, < {low}", f"middle, {low} to < {high}", f"high, ≥ {high}"],
        few=bootstrap.FEW,
        theta=confusion.THETA,
        zip=zip,
        script=_inline((bundle / "dt_bundle.js").read_text(encoding="utf-8")),
        style=Markup((bundle / "dt_bundle.css").read_text(encoding="utf-8")),
        licence=metadata.distribution("itables").read_text("licenses/LICENSE"),
    )


def contents(corpus, data, about):
    """Collect what the page shows; each prompt, answer and token text stands there once, others refer to its place.

    Parameters
    ----------
    corpus, data, about
        As in `page`.

    Returns
    -------
    dict
        JSON-able. decisions, the label set; prompts, as the corpus has them, with the bin of their risk; targets:
        title, answers and labels (places in decisions) by prompt, tokens (texts) and words, the tokens of each compared
        prompt; rejections: target, prompt, ci, ci_clipped, mean_similarity and near. Each of near is a neighbour:
        prompt, similarity, drift, prob_shift, ppl_relative, ppl_clipped, score_relative, score_clipped, the place of
        the neighbour's nearest token for each token of the rejection, and the distance to it in hundredths.
    """
    place = pd.Series(range(len(corpus)), index=corpus["prompt_id"])
    columns = ["prompt_id", "cluster_id", "strategy", "source", "category", "risk", "text"]
    shown, rejections = [], []
    for number, (name, own) in enumerate(data.items()):
        rows = signals.token_rows(own.traces.itertuples(), own.tokens)
        near = _near(own, rows, about, place)
        tokens, words = _words(own, rows, {*near["centre"], *near["neighbour"]})
        shown.append(
            {
                "title": about.titles[name],
                "answers": [None if pd.isna(text) else text for text in own.labels["response"]],
                "labels": [schemas.LABELS.index(label) for label in own.labels["label"]],
                "tokens": tokens,
                "words": words,
            }
        )
        by_centre = defaultdict(list)
        for centre, *fields in near.astype(object).to_numpy().tolist():
            by_centre[centre].append(fields)
        for row in pipeline.rejections({name: own.scores}).to_dict("records"):
            at = int(place[row["prompt_id"]])
            numbers = {column: round(row[column], 4) for column in ("ci", "ci_clipped", "mean_similarity")}
            rejections.append({"target": number, "prompt": at, **numbers, "near": by_centre[at]})
    return {
        "decisions": schemas.LABELS,
        "prompts": corpus[columns].assign(bin=between(corpus["risk"], RISK_EDGES)).to_dict("records"),
        "targets": shown,
        "rejections": rejections,
    }


def _near(own, rows, about, place):
    """Rejections and their k neighbours by place in the corpus, with signals, scores and aligned tokens."""
    used = signals.ranked(own.pairs, about.k) & (own.pairs["centre_label"] == "reject")
    pairs = own.pairs[used].sort_values(["centre_id", "rank"])
    near = pd.DataFrame({end: pairs[f"{end}_id"].map(place).astype(int) for end in ("centre", "neighbour")})
    near = near.join(pairs[list(PAIR_FIELDS)].round(4))
    for reading in signals.READINGS:
        near[f"score_{reading}"] = signals.score(pairs, about.weights, reading).round(4)
    table = signals.unit_embeddings(own.tokens)
    ends = zip(near["centre"], near["neighbour"], strict=True)
    aligned = [signals.nearest_tokens(table[rows[a]], table[rows[b]]) for a, b in ends]
    return near.assign(
        nearest=[place.tolist() for place, _ in aligned],
        hundredths=[np.rint(100 * distance).astype(int).tolist() for _, distance in aligned],
    )


def _words(own, rows, prompts):
    """Texts of the tokens that some prompts (places in the corpus) are made of, and each such prompt's tokens."""
    chosen = {at: rows[at] for at in sorted(prompts)}
    used = np.unique(np.concatenate([*chosen.values(), []]).astype(int))
    return own.tokens["text"].iloc[used].tolist(), {
        at: np.searchsorted(used, row).tolist() for at, row in chosen.items()
    }


def _inline(script):
    """Escape what would end a script element, as HTML's standard recommends; strings and patterns mean the same."""
    return Markup(re.sub(r"<(?=!--|/?script)", r"\\x3C", script, flags=re.IGNORECASE))


def _source(script):
    """Return the content security policy's source expression for one inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def read(store, corpus_name, corpus, names):
    """Read what a store holds of some targets, and check that its files belong together.

    Weights, k and labeller are those the scores were made with.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    corpus : DataFrame
    names : list of str
        Targets.

    Returns
    -------
    data : dict of str to Answers
    about : About

    Raises
    ------
    DataError
        A file is missing, labels are of other answers, scores are of other labels, pairs or another corpus, or targets
        were scored with different weights, k or labeller.
    """
    data, made = {}, {}
    for name in names:
        path = store.path("scores", corpus_name, name)
        store.read("scores", corpus_name, name)
        known = Settings(**stores.read_meta(path)["parameters"])
        made[name] = (known.weights(), known.k, known.labeller)
        if made[name] != made[names[0]]:
            raise DataError(
                f"{paths.shown(path)}: scored with other weights, k or labeller than {names[0]}; run 03_scoring again"
            )
        traces = trace_store.recorded_traces(store, corpus_name, corpus, name)
        labels = labelling.matching_labels(store, corpus_name, name, traces, known.labeller)
        scores = pipeline.matching_scores(store, corpus_name, name, corpus, known)
        pairs = store.read("pairs", corpus_name, name)
        again = confusion.prompt_scores(corpus, labels, pairs, known.weights(), known.k, known.theta)
        if not np.allclose(again[["ci", "ci_clipped"]], scores[["ci", "ci_clipped"]], rtol=1e-4, equal_nan=True):
            raise DataError(f"{paths.shown(path)}: scores of other pairs than the store holds; run 03_scoring again")
        tokens = store.read("tokens", prompting.model_of(name))
        data[name] = Answers(labels, pairs, scores, traces, tokens)
    weights, k, labeller = made[names[0]]
    titles = dict(zip(names, registry.titles(names), strict=True))
    return data, About(corpus_name, store.name, titles, weights, k, labeller)


def write(store, corpus_name, config, path):
    """Write the page of all targets that 03 describes in a store.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    config : settings.Settings
        model is used.
    path : Path

    Returns
    -------
    int
        Rejections on the page.

    Raises
    ------
    UserError
        Files are missing or do not belong together, or `path` cannot be written.
    """
    corpus = store.read_earlier("corpus", corpus_name)
    names, _ = targets.to_score(store, corpus_name, config)
    data, about = read(store, corpus_name, corpus, names)
    html = page(corpus, data, about)
    stores.atomic(path, lambda part: part.write_text(html, encoding="utf-8"))
    return len(pipeline.rejections({name: own.scores for name, own in data.items()}))
