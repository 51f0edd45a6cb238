"""What a server tells of a model, and how a surrogate fills in the rest
(`docs/method.md`, Black-box proxies).
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from paraguard_lab.analysis import validity
from paraguard_utils.analysis import confusion, signals
from paraguard_utils.analysis.confusion import CI_COLUMNS
from paraguard_utils.analysis.evaluation import Evaluation, count_draws
from paraguard_utils.core.estimates import (
    MIN_REFUSALS,
    ClusterBootstrap,
    Estimate,
    to_columns,
)
from paraguard_utils.errors import DataError
from paraguard_utils.models import encoder
from paraguard_utils.models.prompting import (
    is_served_system,
    make_system_name,
    model_of_system,
)
from paraguard_utils.schemas import Corpus, Labels, Scores, Table, Traces
from paraguard_utils.settings import Settings
from paraguard_utils.stores import Store

DISCLOSURE_LEVELS = LEVEL_FULL, LEVEL_ANSWER_TOKENS, LEVEL_TEXT = (
    "full",
    "answer tokens",
    "text",
)  # what is told

SURROGATE_MODELS = ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
"""Models that stand in for what is not told: the first that is not the system's own."""

MIN_SCORED_DRAWS = (
    4  # scored draws from which a prompt has a probability of being rejected
)

_WORDS = ["token_ids", "token_nll", "user_start", "user_end"]
_FIRST = ["next_ids", "next_logprobs", "tail_mass"]


def find_surrogate(system: str, there: Container[str]) -> str | None:
    """Return a system's surrogate with traces, another of `SURROGATE_MODELS` under the
    same system prompt, or None.
    """
    system_prompt = system.rpartition("--")[2]
    names = (
        make_system_name(model, system_prompt)
        for model in SURROGATE_MODELS
        if model != model_of_system(system)
    )
    return next((name for name in names if name in there), None)


def fill_from_surrogate(
    own: Traces,
    level: str,
    surrogate: Traces,
    samples: pd.DataFrame | None = None,
    top: int | None = None,
) -> Traces:
    """Complete a system's traces at one of `DISCLOSURE_LEVELS` with a surrogate's.

    Rows stay in the order of `own`.

    What the level of `own` does not tell may hold anything; what its source lacks gives
    NaN (`is_comparable`). Drawn answers (`samples`) give ProbShift at `text`; `top`
    keeps so many first tokens; Drift is not in a trace. A DataError says that the
    surrogate was not asked a prompt, or that its trace lacks what it should give; a
    ValueError that the level has no use for `samples` or `top`.
    """
    if level not in DISCLOSURE_LEVELS:
        raise ValueError(
            f"there is no level {level!r}; there are {', '.join(DISCLOSURE_LEVELS)}"
        )
    if (samples is not None and level != LEVEL_TEXT) or (
        top is not None and level == LEVEL_TEXT
    ):
        raise ValueError(f"at the level {level!r}, samples or top have no use")
    surrogate = align_traces(surrogate, own["prompt_id"])
    words = own if level == LEVEL_FULL else surrogate
    first = surrogate if level == LEVEL_TEXT else own
    if samples is not None:
        first = first_token_from_samples(own["prompt_id"], samples)
    elif top is not None:
        first = keep_top_tokens(first, top)
    no_words, no_first = ~_has_words(words), ~_has_first(first)
    broken = (no_words & (words is surrogate)) | (no_first & (first is surrogate))
    if broken.any():
        name = own["prompt_id"].iloc[int(broken.argmax())]
        raise DataError(
            f"the surrogate's trace of {name} is not complete; ask it again"
        )
    # What is not there gives NaN, and nothing else.
    nothing = {"token_nll": np.array([np.nan]), "user_start": 0, "user_end": 1}
    nothing |= {
        "next_ids": np.empty(0, int),
        "next_logprobs": np.empty(0),
        "tail_mass": np.nan,
    }
    columns = {}
    sources = dict.fromkeys(_WORDS, (words, no_words)) | dict.fromkeys(
        _FIRST, (first, no_first)
    )
    for name, (source, gone) in sources.items():
        column = [
            nothing.get(name, kept) if lost else kept
            for kept, lost in zip(source[name], gone, strict=True)
        ]
        columns[name] = pd.Series(column, own.index)
    return own.assign(**columns)


def retokenize(traces: Traces, surrogate: Traces) -> Traces:
    """Return traces in their surrogate's tokens, which have embeddings.

    Each token gets its prompt's mean loss.
    """
    surrogate = align_traces(surrogate, traces["prompt_id"]).set_axis(traces.index)
    means = np.log(signals.trace_perplexity(traces))
    flat = [
        np.full(len(ids), mean)
        for ids, mean in zip(surrogate["token_ids"], means, strict=True)
    ]
    return traces.assign(
        **surrogate[_WORDS].assign(token_nll=pd.Series(flat, traces.index))
    )


def is_comparable(traces: Traces) -> np.ndarray:
    """Mark the prompts whose traces hold what signals are made of, as each of a local
    model's does.
    """
    return _has_words(traces) & _has_first(traces)


def align_traces(traces: Traces, prompt_ids: Sequence[str] | pd.Series) -> Traces:
    """Return the rows of some prompts, in their order.

    DataError where the traces lack one.
    """
    known = traces.set_index("prompt_id", drop=False)
    missing = [name for name in prompt_ids if name not in known.index]
    if missing:
        raise DataError(
            f"the surrogate has no trace of {missing[0]} ({len(missing)} are missing);"
            " ask it first"
        )
    return known.loc[list(prompt_ids)].reset_index(drop=True)


def keep_top_tokens(traces: pd.DataFrame, top: int) -> pd.DataFrame:
    """Keep the likeliest first tokens of each answer, ties by token id.

    The mass of the others goes to tail_mass.
    """
    if top < 1:
        raise ValueError(f"top is {top}, and one token at least is kept")
    rows = []
    for ids, logprobs, tail in traces[_FIRST].itertuples(index=False):
        ids, logprobs = np.asarray(ids), np.asarray(logprobs, np.float64)
        order = np.lexsort((ids, -logprobs))
        kept, rest = order[:top], order[top:]
        rows.append(
            (
                ids[kept],
                logprobs[kept],
                min(1.0, tail + np.exp(logprobs[rest]).sum()) if len(rest) else tail,
            )
        )
    return traces.assign(**pd.DataFrame(rows, traces.index, _FIRST))


def first_token_from_samples(
    prompt_ids: pd.Series, samples: pd.DataFrame
) -> pd.DataFrame:
    """Put the decision of drawn answers in the place of the first token: token 0 is
    accept, 1 is reject, no tail.

    `samples` has prompt_id and label. Returns prompt_id, next_ids, next_logprobs
    (without a decision that was never drawn) and tail_mass; nothing and NaN where fewer
    than `MIN_SCORED_DRAWS` draws are scored.
    """
    found = count_draws(samples)
    found = found[found["size"] >= MIN_SCORED_DRAWS]["mean"].reindex(prompt_ids)
    rows = []
    for share in found:
        mass = np.nan_to_num(np.array([1 - share, share]))
        ids = np.flatnonzero(mass)
        rows.append((ids, np.log(mass[ids]), 0.0 if len(ids) else np.nan))
    return pd.DataFrame(rows, columns=_FIRST).assign(prompt_id=prompt_ids.to_numpy())


def mask_left_out(labels: Labels, comparable: np.ndarray) -> Labels:
    """Return labels with which pairs are made: what has no signals is `unparsed`,
    neither a centre nor a neighbour.
    """
    return labels.assign(label=np.where(comparable, labels["label"], "unparsed"))


def _has_words(traces: pd.DataFrame) -> np.ndarray:
    """Return which traces have a log-probability of each of the user's own tokens."""
    rows = traces[_WORDS[1:]].itertuples(index=False)
    found = [
        0 <= a < b <= len(nll) and np.isfinite(np.asarray(nll[a:b], np.float64)).all()
        for nll, a, b in rows
    ]
    return np.array(found, bool)


def _has_first(traces: pd.DataFrame) -> np.ndarray:
    """Return which traces have a likeliest first token, each with its probability, and
    the mass of the rest.
    """
    rows = traces[_FIRST].itertuples(index=False)
    found = [
        0 < len(ids) == len(logs) and not (np.isnan(tail) or np.isnan(logs).any())
        for ids, logs, tail in rows
    ]
    return np.array(found, bool)


# By name a level, how many first tokens are told (None: all), and whether answers are
# drawn
DISCLOSURE_SETTINGS = {
    "full": (LEVEL_FULL, None, False),
    "answer tokens, 20": (LEVEL_ANSWER_TOKENS, 20, False),
    "answer tokens, 5": (LEVEL_ANSWER_TOKENS, 5, False),
    "text, drawn": (LEVEL_TEXT, None, True),
    "text": (LEVEL_TEXT, None, False),
}

SURROGATE_MEASURES = ("ci", "cr60", "cd", "excess")

ALL_PROMPTS, DRAWN_PROMPTS = (
    "all",
    "drawn",
)  # what is compared: all prompts, or those answered several times
MIN_ORDER_PROBABILITY = (
    0.95  # bootstrap probability from which an order of two systems is called sure
)


class SurrogateComparison(NamedTuple):
    """One system at one setting, in one interpretation of the PPL contrast, beside itself with
    its own signals.
    """

    system: str
    surrogate: str
    prompts: str
    interpretation: str
    setting: str
    n: int  # rejections with a CI(r) both ways
    left_out: int  # prompts
    rho: Estimate  # Spearman's over the rejections
    found: Mapping[str, Estimate]  # by measure, at the setting
    own: Mapping[str, Estimate]  # with own signals, over the same resampled clusters


def compare_with_surrogates(
    store: Store,
    corpus_name: str,
    corpus: Corpus,
    scored: Mapping[str, Evaluation],
    samples: Mapping[str, pd.DataFrame],
    settings: Settings,
) -> list[SurrogateComparison]:
    """Score every system at every level, with the weights and k it was scored with.

    Systems without a surrogate among `scored`, and served ones, are left out. Those
    with drawn answers in `samples` are compared on these prompts as well.
    """
    vectors = encoder.stored_vectors(store, corpus_name, corpus["text"], earlier=True)
    found = []
    for name, one in scored.items():
        surrogate = find_surrogate(name, scored)
        if surrogate is None or is_served_system(
            name
        ):  # nobody knows what the model itself would tell
            continue
        both = one, scored[surrogate]
        found += _compared(
            (name, surrogate, ALL_PROMPTS), corpus, vectors, *both, None, settings
        )
        if name in samples:
            rows = np.flatnonzero(corpus["prompt_id"].isin(samples[name]["prompt_id"]))
            part, restricted = corpus.iloc[rows].reset_index(drop=True), []
            # As if it had been asked these prompts only; pairs and scores stay as they
            # are
            for whole in both:
                labels, traces = (
                    frame.iloc[rows].reset_index(drop=True)
                    for frame in (whole.labels, whole.traces)
                )
                restricted.append(
                    replace(whole, prompts=part, labels=labels, traces=traces)
                )
            of = (name, surrogate, DRAWN_PROMPTS)
            found += _compared(
                of,
                part,
                vectors[rows],
                restricted[0],
                restricted[1],
                samples[name],
                settings,
            )
    return found


def _compared(
    of: tuple[str, str, str],
    corpus: Corpus,
    vectors: np.ndarray,
    one: Evaluation,
    surrogate: Evaluation,
    samples: pd.DataFrame | None,
    settings: Settings,
) -> list[SurrogateComparison]:
    """Score one system at every setting and in both interpretations."""
    clusters = ClusterBootstrap(corpus["cluster_id"], settings.resamples, settings.seed)

    def scored(
        made: Traces, drifts: signals.DriftCache
    ) -> tuple[Scores, dict[str, dict[str, Estimate]], int]:
        # What is left out is in no pair; isolation counts its decision.
        comparable = is_comparable(made)
        pairs = signals.compute_pairs(
            corpus, vectors, made, mask_left_out(one.labels, comparable), drifts, one.k
        )
        scores = confusion.score_prompts(corpus, one.labels, pairs, one.weights, one.k)
        estimates = {
            interpretation: confusion.estimate_scores(
                corpus, pairs, scores, clusters, interpretation, one.weights
            )
            for interpretation in CI_COLUMNS
        }
        return scores, estimates, int((~comparable).sum())

    drifts, lent = (
        signals.DriftCache.share(side.traces, side.tokens) for side in (one, surrogate)
    )
    own, usual, _ = scored(one.traces, drifts)
    found = []
    for name, (level, top, drawn) in DISCLOSURE_SETTINGS.items():
        if drawn and samples is None:
            continue
        made = fill_from_surrogate(
            one.traces, level, surrogate.traces, samples if drawn else None, top
        )
        told, estimates, left_out = scored(made, lent)
        for interpretation, column in CI_COLUMNS.items():
            both = own.merge(
                told[["prompt_id", column]], on="prompt_id", suffixes=("", "_told")
            )
            both = both[both["label"] == "reject"].dropna(
                subset=[column, f"{column}_told"]
            )
            rho = clusters.correlation(
                both["cluster_id"], both[column].rank(), both[f"{column}_told"].rank()
            )
            sides = estimates[interpretation], usual[interpretation]
            found.append(
                SurrogateComparison(
                    *of, interpretation, name, len(both), left_out, rho, *sides
                )
            )
    return found


def surrogate_table(
    compared: Iterable[SurrogateComparison], systems: Iterable[str]
) -> Table:
    """Lay out what was compared, a row each, and a row with a note for each of
    `systems` that was not.

    Columns: system, surrogate, prompts, reading, setting, n, left_out, few (n < 30),
    note; with intervals rho, and for each of `SURROGATE_MEASURES` its value at the
    setting and `x_change`, that minus the value with own signals.
    """
    rows: list[dict[str, Any]] = []
    names = SurrogateComparison._fields[:7]
    for one in compared:
        found: dict[str, Estimate] = {"rho": one.rho}
        for name in SURROGATE_MEASURES:
            found |= {
                name: one.found[name],
                f"{name}_change": one.found[name] - one.own[name],
            }
        row = dict(zip(names, one, strict=False)) | {
            "too_few": one.n < MIN_REFUSALS,
            "note": "",
        }
        rows.append(row | to_columns(found))
    there = {row["system"] for row in rows}
    rows += [
        {"system": name, "note": "no surrogate in the store"}
        for name in systems
        if name not in there
    ]
    estimates = [
        "rho",
        *(
            name
            for measure in SURROGATE_MEASURES
            for name in (measure, f"{measure}_change")
        ),
    ]
    ends = to_columns(dict.fromkeys(estimates, (np.nan,) * 3))
    return pd.DataFrame(rows, columns=[*names, "too_few", "note", *ends])


def surrogate_orders(compared: Iterable[SurrogateComparison]) -> Table:
    """Count how far each setting orders systems as their own signals do.

    Systems with few rejections are left out.

    Columns: reading, measure, setting, among ("all", or pairs of the "same surrogate"
    or "same model"), systems, pairs that own signals order; of these kept: in the same
    order; sure: by own signals, of these sure_kept: in the same order, and sure_turned:
    surely in the other. rho over systems with its interval, NaN below eight.
    """
    rows: list[dict[str, Any]] = []
    enough = [
        one for one in compared if one.prompts == ALL_PROMPTS and one.n >= MIN_REFUSALS
    ]
    for interpretation, setting in dict.fromkeys(
        (one.interpretation, one.setting) for one in enough
    ):
        own = {
            one.system: one
            for one in enough
            if (one.interpretation, one.setting) == (interpretation, setting)
        }
        for measure in SURROGATE_MEASURES:
            about = {
                "interpretation": interpretation,
                "measure": measure,
                "setting": setting,
                "systems": len(own),
            }
            pairs, rho = _pairs(own, measure), (np.nan,) * 3
            if len(own) >= validity.MIN_RANKED_SYSTEMS:
                sides = (
                    [getattr(one, side)[measure] for one in own.values()]
                    for side in ("own", "found")
                )
                rho = validity.rank_correlation(
                    *([np.append(one[0], one.draws) for one in side] for side in sides)
                )
            rows.append(
                about | {"among": "all"} | _counts(pairs) | to_columns({"rho": rho})
            )
            rows += [
                about | {"among": f"same {what}"} | _counts(pairs[pairs[what]])
                for what in ("surrogate", "model")
            ]
    names = [
        "interpretation",
        "measure",
        "setting",
        "among",
        "systems",
        "pairs",
        "kept",
        "sure",
        "sure_kept",
        "sure_turned",
    ]
    return pd.DataFrame(rows, columns=[*names, "rho", "rho_low", "rho_high"])


def _pairs(own: Mapping[str, SurrogateComparison], measure: str) -> pd.DataFrame:
    """Return the signs of differences of every two systems (`sure_`: 0 where not sure),
    and what the two share.
    """
    sides = {
        side: {name: getattr(one, side) for name, one in own.items()}
        for side in ("own", "found")
    }
    higher = confusion.compare_orders(sides, "own", [measure])
    higher = higher.pivot(index=["first", "second"], columns="setting", values="higher")
    higher = higher.reindex(columns=list(sides))  # one system has no order
    up, down = higher >= MIN_ORDER_PROBABILITY, higher <= 1 - MIN_ORDER_PROBABILITY
    frame = (up.astype(int) - down.astype(int)).add_prefix("sure_")
    for side, found in sides.items():
        frame[side] = [
            np.sign(found[one][measure][0] - found[other][measure][0])
            for one, other in higher.index
        ]
    for what, name in (("surrogate", "surrogate"), ("model", "system")):
        models = {
            one: model_of_system(getattr(compared, name))
            for one, compared in own.items()
        }
        frame[what] = np.array(
            [models[one] == models[other] for one, other in higher.index], bool
        )
    return frame


def _counts(pairs: pd.DataFrame) -> dict[str, int]:
    """Count orders that there are, are kept, are sure, and are turned, over pairs of
    systems from `_pairs`.
    """
    known = pairs[pairs["own"].abs() == 1]
    kept, sure = known["own"] == known["found"], known["sure_own"] != 0
    turned = sure & (known["sure_found"] == -known["sure_own"])
    parts = {
        "pairs": known["own"] != 0,
        "kept": kept,
        "sure": sure,
        "sure_kept": sure & kept,
        "sure_turned": turned,
    }
    return {name: int(part.sum()) for name, part in parts.items()}
