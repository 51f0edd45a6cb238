"""Measures beside each other where the truth is known, and what was predicted of them (`docs/method.md`, Predictions).

`benchmarks/known_truth.py` and `benchmarks/sentiment.py` make the tables of worlds and of a task without safety.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_utils.models.prompting import model_of
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS

MEASURES = {
    "dr": "DR",
    "ci": "CI",
    "cr60": "CR@0.60",
    "cd": "CD",
    "excess": "excess",
    "flip_rate": "flip rate",
    "flip_entropy": "flip entropy",
    "agreement": "agreement (SSI)",
    "pss": "PSS-like",
}
"""Measures that decisions and pairs give, and what they are called."""

USUAL_RATE = 0.2
"""Refusal rate of the worlds in which wordings are compared."""

SEEN = ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
"""Models whose answers to the project's corpus had been looked at before the predictions were written down."""


def moved(worlds: Table) -> Table:
    """Compare what moves a measure: how much meaning decides, how often is refused, and what wording is.

    Parameters
    ----------
    worlds : DataFrame
        wording, frr, correlation, measure, mean, low, high.

    Returns
    -------
    DataFrame
        measure; meaning, the mean at the highest latent correlation minus that at 0, at `USUAL_RATE` with wording that
        is dice; chance, half the mean width of the range that 95 % of worlds lie in; frr, the mean distance between the
        highest and the lowest of the refusal rates; perplexity and length, how far means lie from those of dice where
        that decides the wording. All but meaning are shares of the size of meaning, averaged over correlations: 1 is
        what meaning does.
    """
    rows = []
    for measure in MEASURES:
        own = worlds[worlds["measure"] == measure]
        dice = own[own["wording"] == "dice"]
        usual = dice[dice["frr"] == USUAL_RATE].set_index("correlation").sort_index()
        meaning = usual["mean"].iloc[-1] - usual["mean"].iloc[0]
        size = abs(meaning)
        row = {"measure": measure, "meaning": meaning, "chance": (usual["high"] - usual["low"]).mean() / 2 / size}
        rates = dice.groupby("correlation")["mean"]
        row["frr"] = (rates.max() - rates.min()).mean() / size
        for wording in ("perplexity", "length"):
            other = own[own["wording"] == wording].set_index("correlation")["mean"]
            row[wording] = (other - usual["mean"]).abs().mean() / size
        rows.append(row)
    return pd.DataFrame(rows)


def depends(halves: Table) -> Table:
    """Count the targets in which a measure differs between clusters of two kinds of wording.

    Parameters
    ----------
    halves : DataFrame
        From `validity.by_wording`, of all targets.

    Returns
    -------
    DataFrame
        measure; for length and perplexity the number of targets, of those that are not few, in which the interval of
        the difference excludes 0, as "1 of 7", and the range of the differences.
    """
    rows = []
    for measure in MEASURES:
        row: dict[str, object] = {"measure": measure}
        for wording in ("length", "perplexity"):
            own = halves.query("measure == @measure and wording == @wording and not few and difference_low.notna()")
            sure = (own["difference_low"] > 0) | (own["difference_high"] < 0)
            row[wording] = f"{sure.sum()} of {len(own)}"
            row[f"{wording}_low"], row[f"{wording}_high"] = own["difference"].min(), own["difference"].max()
        rows.append(row)
    return pd.DataFrame(rows)


def followed(task: Table) -> Table:
    """Return whether measures follow noise in the decisions, and the overlap of the classes.

    Parameters
    ----------
    task : DataFrame
        system, overlap ("none", "quarter", "half"), noise and the measures, each with its interval.

    Returns
    -------
    DataFrame
        measure; systems; rises_noise, the systems in which it rises at every step of noise (all clusters); lowest and
        highest change from no noise to the most, `noise_low` and `noise_high`; the same for overlap, without noise.
        A fall at every step counts for agreement, which is highest where paraphrases agree.
    """
    rows = []
    for measure in MEASURES:
        row: dict[str, object] = {"measure": measure, "systems": task["system"].nunique()}
        sign = -1 if measure == "agreement" else 1
        for name, own, by in (
            ("noise", task[task["overlap"] == "quarter"], "noise"),
            ("overlap", task[task["noise"] == 0], "overlap"),
        ):
            steps = own.pivot(index="system", columns=by, values=measure)
            steps = steps[["none", "quarter", "half"]] if by == "overlap" else steps.sort_index(axis=1)
            change = steps.iloc[:, -1] - steps.iloc[:, 0]
            rises = (sign * steps.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)
            row |= {f"rises_{name}": int(rises.sum()), f"{name}_low": change.min(), f"{name}_high": change.max()}
        rows.append(row)
    return pd.DataFrame(rows)


def judged(low: float, high: float, least: float = -np.inf, most: float = np.inf) -> str:
    """Return whether a prediction `holds` (the whole interval lies between two limits), `fails` or is `open`."""
    if not np.isfinite([low, high]).all():
        return "open"
    if least < low and high < most:
        return "holds"
    return "fails" if high <= least or low >= most else "open"


def predictions(tables: Mapping[str, Table], corpus: str) -> Table:
    """Judge the predictions on targets whose answers to a corpus nobody had looked at.

    Parameters
    ----------
    tables : dict of str to DataFrame
        table1_targets, variance, validity, table1_differences and floor_differences (`confusion.differences` of the
        excess over the matched floor).
    corpus : str
        Its name: nobody had looked at any answer to another corpus than the project's.

    Returns
    -------
    DataFrame
        number (in `docs/method.md`), about (a target, or two), measure, value with its interval, verdict (`judged`;
        `few` where a target has fewer than 100 rejections or acceptances, and does not decide).
    """
    table1 = tables["table1_targets"]
    once = table1[table1["reading"] == "relative"].set_index("target")
    few, parts = once["few_dr"], tables["variance"].query("decoding == 'greedy'").set_index("target")
    valid, rows = tables["validity"].set_index("target"), []
    seen = SEEN if corpus == CORPUS else ()

    def put(number: int, about: tuple[str, ...], row: pd.Series, name: str, least: float, most: float) -> None:
        value, low, high = (row[f"{name}{end}"] for end in ("", "_low", "_high"))
        verdict = "few" if few[list(about)].any() else judged(low, high, least, most)
        found = {"value": value, "value_low": low, "value_high": high, "verdict": verdict}
        rows.append({"number": number, "about": " | ".join(about), "measure": name, **found})

    for name in (name for name in valid.index if model_of(name) not in seen):
        put(1, (name,), once.loc[name], "dr", 0.30, 1)
        put(3, (name,), valid.loc[name], "auc_isolation", 0.5, np.inf)
        put(4, (name,), valid.loc[name], "auc_ci", -np.inf, 0.5)
        put(6, (name,), parts.loc[name], "r2", -np.inf, 0.15)
        put(7, (name,), valid.loc[name], "matched_change", -0.02, 0.02)
        put(8, (name,), valid.loc[name], "near_change", -np.inf, 0)
    pairs = tables["table1_differences"]
    rates, ratios = (pairs[pairs["measure"] == name].set_index(["first", "second"]) for name in ("frr", "dr"))
    floors = tables["floor_differences"].set_index(["first", "second"])
    for first, second in ratios.index:
        if model_of(first) in seen or model_of(first) != model_of(second) or (first, second) not in floors.index:
            continue
        if abs(rates.loc[(first, second), "difference"]) >= 0.2:
            put(2, (first, second), ratios.loc[(first, second)], "difference", -0.15, 0.15)
        put(5, (first, second), floors.loc[(first, second)], "difference", -0.02, 0.02)
    columns = ["number", "about", "measure", "value", "value_low", "value_high", "verdict"]
    return pd.DataFrame(rows, columns=columns).sort_values("number", kind="stable", ignore_index=True)
