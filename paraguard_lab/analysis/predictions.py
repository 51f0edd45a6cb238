"""Judge predictions, and tabulate simulations of known truth and of sentiment.

The predictions are explained in `docs/method.md`; the simulations come from
`benchmarks/known_truth.py` and `benchmarks/sentiment.py`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.models.prompting import model_of_system
from paraguard_utils.report import selection
from paraguard_utils.schemas import Table
from paraguard_utils.settings import CORPUS

PREDICTIONS_FILE = paths.DATA / "predictions.csv"
SUBJECT_COLUMNS = (
    "system",
    "first",
    "second",
    "remedy",
    "guard",
    "score",
    "systems",
)
"""What a row of a table is about: the columns that name it."""

VERDICT_COLUMNS = (
    "number",
    "about",
    "measure",
    "value",
    "value_low",
    "value_high",
    "verdict",
)


_FILE_COLUMNS = ("number", "table", "rows", "measure", "low", "high", "too_few")


def read_predictions() -> Table:
    """Read the predictions: measures, the rows that decide them, and their limits.

    Raises
    ------
    DataError
        A column is not there, or a number, low or high is no number.
    """
    where = paths.display_path(PREDICTIONS_FILE)
    frame = stores.read_csv(PREDICTIONS_FILE)
    missing = [name for name in _FILE_COLUMNS if name not in frame]
    if missing:
        raise DataError(f"{where}: the column {missing[0]} is not there")
    for name in ("number", "low", "high"):
        numbers = pd.to_numeric(frame[name], errors="coerce")
        stores.check_fields(
            PREDICTIONS_FILE, frame[name], numbers.notna(), "is no number"
        )
        frame[name] = numbers
    return frame


def judge_interval(
    low: float, high: float, least: float = -np.inf, most: float = np.inf
) -> str:
    """Judge a prediction by an interval.

    Parameters
    ----------
    low, high : float
        The ends of the interval.
    least, most : float
        The limits of the prediction.

    Returns
    -------
    {"holds", "fails", "undecided"}
        It holds if the whole interval lies between the two limits, and fails if the
        whole interval lies on the other side of one of them.
    """
    if not np.isfinite([low, high]).all():
        return "undecided"
    if least < low and high < most:
        return "holds"
    if high <= least or low >= most:
        return "fails"
    return "undecided"


def judge_predictions(tables: Mapping[str, Table]) -> Table:
    """Judge the predictions about some tables.

    Parameters
    ----------
    tables : mapping of str to Table
        By their names in the file. Tables for 1 to 8 are from `prediction_tables`, rows
        for 18 from `remedies.effects.compare_with_control`. An empty table is passed
        over.

    Returns
    -------
    Table
        number; about, of `SUBJECT_COLUMNS`; measure; value with its interval; verdict
        (`judge_interval`, or `too_few`). A measure without an interval is judged by its
        value.
    """
    judged = [pd.DataFrame(columns=["place", *VERDICT_COLUMNS])]
    for prediction in read_predictions().itertuples():
        table = tables.get(prediction.table)
        if table is None or table.empty:
            continue
        try:
            rows = selection.select_rows(table, prediction.rows)
            if len(rows):
                judged.append(_judge_rows(prediction, rows))
        except DataError as error:
            where = paths.display_path(PREDICTIONS_FILE)
            raise DataError(f"{where}: row {prediction.Index + 2}: {error}") from None
    frame = pd.concat(judged[1:] or judged)
    frame = frame.sort_values(["number", "place"], kind="stable", ignore_index=True)
    return frame.drop(columns="place")


def _judge_rows(prediction: Any, rows: Table) -> Table:
    """Judge one prediction by each of the rows of a table that it is about."""
    measure = prediction.measure
    if measure not in rows or not pd.api.types.is_numeric_dtype(rows[measure]):
        raise DataError(f"{prediction.table} has no column of numbers {measure!r}")
    subjects = rows[[name for name in SUBJECT_COLUMNS if name in rows]]
    values = rows[prediction.measure]
    lows = rows.get(f"{prediction.measure}_low", values)
    highs = rows.get(f"{prediction.measure}_high", values)
    verdicts = [
        judge_interval(low, high, prediction.low, prediction.high)
        for low, high in zip(lows, highs, strict=True)
    ]
    judged = pd.DataFrame(
        {
            "place": rows.index,
            "number": prediction.number,
            "about": subjects.agg(" | ".join, axis=1).to_numpy(),
            "measure": prediction.measure,
            "value": values.to_numpy(),
            "value_low": lows.to_numpy(),
            "value_high": highs.to_numpy(),
            "verdict": verdicts,
        }
    )
    if prediction.too_few:
        too_few = selection.read_condition(rows, prediction.too_few).to_numpy(bool)
        judged.loc[too_few, "verdict"] = "too_few"
    return judged


MEASURE_TITLES = {
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
"""The measures that decisions and pairs give, with their titles."""

USUAL_REFUSAL_RATE = 0.2
"""Refusal rate of the simulations in which wordings are compared."""

SEEN_MODELS = ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
"""Models whose rates were known before predictions 1 to 8 were written."""


def known_truth_effects(simulations: Table) -> Table:
    """Compare what meaning, the refusal rate and wording change in each measure.

    Parameters
    ----------
    simulations : Table
        wording, frr, correlation, measure, mean, low, high.

    Returns
    -------
    Table
        measure; meaning, the mean at the highest latent correlation minus that at 0, at
        `USUAL_REFUSAL_RATE` with wording left to chance; chance, half the mean width of
        the range that 95 % of simulations lie in; frr, the mean distance between the
        highest and the lowest of the refusal rates; perplexity and length, how far
        means lie from those of chance if that decides the wording. All but meaning are
        shares of the size of meaning; NaN if meaning changes the measure by less than
        chance does.
    """
    rows = []
    for measure in MEASURE_TITLES:
        of_measure = simulations[simulations["measure"] == measure]
        by_wording = {
            wording: frame.set_index("correlation").sort_index()
            for wording, frame in of_measure.groupby("wording")
        }
        at_random = by_wording["chance"]
        usual = at_random[at_random["frr"] == USUAL_REFUSAL_RATE]
        meaning = usual["mean"].iloc[-1] - usual["mean"].iloc[0]
        chance = (usual["high"] - usual["low"]).mean() / 2
        size = abs(meaning) if abs(meaning) >= chance else np.nan
        rates = at_random["mean"].groupby("correlation")
        row = {
            "measure": measure,
            "meaning": meaning,
            "chance": chance / size,
            "frr": (rates.max() - rates.min()).mean() / size,
        }
        for wording in ("perplexity", "length"):
            distance = (by_wording[wording]["mean"] - usual["mean"]).abs()
            row[wording] = distance.mean() / size
        rows.append(row)
    return pd.DataFrame(rows)


def noise_response(task: Table) -> Table:
    """Count the systems in which a measure follows noise and the overlap of classes.

    Parameters
    ----------
    task : Table
        system, overlap ("none", "quarter", "half"), noise (in the decisions) and the
        measures.

    Returns
    -------
    Table
        measure; systems; rises_noise, the systems in which it rises at every step of
        noise (agreement: falls); lowest and highest change from no noise to the most,
        `noise_low` and `noise_high`; the same for overlap, without noise.
    """
    order = pd.Categorical(task["overlap"], ["none", "quarter", "half"])
    task = task.assign(overlap=order)
    varied = {
        "noise": task[task["overlap"] == "quarter"],
        "overlap": task[task["noise"] == 0],
    }
    rows = []
    for measure in MEASURE_TITLES:
        sign = -1 if measure == "agreement" else 1
        row = {"measure": measure, "systems": task["system"].nunique()}
        for name, frame in varied.items():
            steps = frame.pivot(index="system", columns=name, values=measure)
            steps = steps.sort_index(axis=1)
            rises = (sign * steps.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)
            change = steps.iloc[:, -1] - steps.iloc[:, 0]
            row[f"rises_{name}"] = rises.sum()
            row[f"{name}_low"] = change.min()
            row[f"{name}_high"] = change.max()
        rows.append(row)
    return pd.DataFrame(rows)


def prediction_tables(tables: Mapping[str, Table], corpus: str) -> dict[str, Table]:
    """Return the tables that predictions 1 to 8 are judged by (`judge_predictions`).

    Parameters
    ----------
    tables : mapping of str to Table
        table1_systems, variance, validity, table1_differences and floor_differences (of
        the excess over the matched floor).
    corpus : str
        Its name.

    Returns
    -------
    dict of str to Table
        Each has seen: the model is one of `SEEN_MODELS`, and the corpus the project's.
        table1_differences holds those of the floors too, only those between system
        prompts of one model, and frr_apart, the distance of their FRR, and
        too_few_for_dr: one of them has too few refusals for a DR.
    """
    names = ("table1_systems", "variance", "validity")
    made = {name: tables[name] for name in names}
    made["table1_differences"] = _differences_of_one_model(tables)
    seen = SEEN_MODELS if corpus == CORPUS else ()
    for name, table in made.items():
        systems = table["first" if "first" in table else "system"]
        made[name] = table.assign(seen=systems.map(model_of_system).isin(seen))
    return made


def _differences_of_one_model(tables: Mapping[str, Table]) -> Table:
    """Return the differences between the system prompts of each model."""
    pairs = pd.concat(
        [tables["table1_differences"], tables["floor_differences"]], ignore_index=True
    )
    first = pairs["first"].map(model_of_system)
    pairs = pairs[first == pairs["second"].map(model_of_system)]
    systems = tables["table1_systems"]
    flagged = list(systems.loc[systems["too_few_for_dr"], "system"])
    too_few = pairs[["first", "second"]].isin(flagged).any(axis=1)
    rates = pairs[pairs["measure"] == "frr"].set_index(["first", "second"])
    apart = rates["difference"].abs().rename("frr_apart")
    pairs = pairs.assign(too_few_for_dr=too_few)
    return pairs.join(apart, on=["first", "second"])
