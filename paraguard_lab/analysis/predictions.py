"""Judge predictions (`docs/method.md`), and tabulate `benchmarks/known_truth.py` and
`benchmarks/sentiment.py`.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from paraguard_utils import paths
from paraguard_utils.core.measures import MEASURES
from paraguard_utils.models.prompting import model_of_system
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
)  # what a row is about

VERDICT_COLUMNS = (
    "number",
    "about",
    "measure",
    "value",
    "value_low",
    "value_high",
    "verdict",
)


def read_predictions() -> Table:
    """Return the measures of predictions, which rows of which table decide them, and
    between which limits.
    """
    return pd.read_csv(PREDICTIONS_FILE, keep_default_na=False)


def judge_interval(
    low: float, high: float, least: float = -np.inf, most: float = np.inf
) -> str:
    """Return whether a prediction `holds` (the whole interval lies between two limits),
    `fails` or is `open`.
    """
    if not np.isfinite([low, high]).all():
        return "undecided"
    if least < low and high < most:
        return "holds"
    return "fails" if high <= least or low >= most else "undecided"


def judge_predictions(tables: Mapping[str, Table]) -> Table:
    """Judge the predictions about some tables, which are given by the names they have
    in the file.

    Tables for 1 to 8 are from `prediction_tables`, rows for 18 from
    `remedies.effects.compare_with_control`. An empty table is passed over. Columns:
    number; about, of `SUBJECT_COLUMNS`; measure; value with its interval; verdict
    (`judge_interval`, or `too_few`). A measure without an interval is judged by its value.
    """
    found = []
    for one in read_predictions().itertuples():
        if not len(tables.get(one.table, ())):
            continue
        rows = tables[one.table].query(one.rows)
        too_few = (
            rows.eval(one.too_few) if one.too_few else pd.Series(False, rows.index)
        )
        names = rows[[name for name in SUBJECT_COLUMNS if name in rows]].itertuples()
        values = rows[one.measure]
        ends = (rows.get(f"{one.measure}{end}", values) for end in ("_low", "_high"))
        for (place, *about), flagged, value, low, high in zip(
            names, too_few, values, *ends, strict=True
        ):
            said = (
                "too_few" if flagged else judge_interval(low, high, one.low, one.high)
            )
            found.append(
                (
                    one.number,
                    place,
                    " | ".join(about),
                    one.measure,
                    value,
                    low,
                    high,
                    said,
                )
            )
    frame = pd.DataFrame(
        found, columns=[VERDICT_COLUMNS[0], "place", *VERDICT_COLUMNS[1:]]
    )
    return frame.sort_values(
        ["number", "place"], kind="stable", ignore_index=True
    ).drop(columns="place")


# Measures that decisions and pairs give, and what they are called.
MEASURE_TITLES = {
    name: MEASURES[name].heading
    for name in ("dr", "ci", "cr60", "cd", "excess", "flip_rate")
}
MEASURE_TITLES |= {
    "flip_entropy": "flip entropy",
    "agreement": "agreement (SSI)",
    "pss": "PSS-like",
}

USUAL_REFUSAL_RATE = 0.2  # refusal rate of the worlds in which wordings are compared
SEEN_MODELS = (
    "smollm2-135m-instruct-q4_1",
    "qwen2.5-coder-0.5b-instruct-q4_k_m",
)  # before predictions 1 to 8


def known_truth_effects(worlds: Table) -> Table:
    """Compare how far meaning, the refusal rate and wording move each measure in worlds
    of known truth.

    `worlds` has wording, frr, correlation, measure, mean, low, high. Columns: measure;
    meaning, the mean at the highest latent correlation minus that at 0, at
    `USUAL_REFUSAL_RATE` with wording left to chance ("dice"); chance, half the mean
    width of the range that 95 % of worlds lie in; frr, the mean distance between the
    highest and the lowest of the refusal rates; perplexity and length, how far means
    lie from those of chance where that decides the wording. All but meaning are shares of
    the size of meaning; NaN where meaning moves the measure by less than chance does.
    """
    rows = []
    for measure in MEASURE_TITLES:
        own = worlds[worlds["measure"] == measure]
        at_random = own[own["wording"] == "chance"]
        usual = (
            at_random[at_random["frr"] == USUAL_REFUSAL_RATE]
            .set_index("correlation")
            .sort_index()
        )
        meaning = usual["mean"].iloc[-1] - usual["mean"].iloc[0]
        chance = (usual["high"] - usual["low"]).mean() / 2
        size = abs(meaning) if abs(meaning) >= chance else np.nan
        rates = at_random.groupby("correlation")["mean"]
        frr = (rates.max() - rates.min()).mean()
        row = {
            "measure": measure,
            "meaning": meaning,
            "chance": chance / size,
            "frr": frr / size,
        }
        for wording in ("perplexity", "length"):
            other = own[own["wording"] == wording].set_index("correlation")["mean"]
            row[wording] = (other - usual["mean"]).abs().mean() / size
        rows.append(row)
    return pd.DataFrame(rows)


def noise_response(task: Table) -> Table:
    """Count the systems in which a measure follows noise in the decisions, and the
    overlap of the classes.

    `task` has system, overlap ("none", "quarter", "half"), noise and the measures.
    Columns: measure; systems; rises_noise, the systems in which it rises at every step
    of noise (agreement: falls); lowest and highest change from no noise to the most,
    `noise_low` and `noise_high`; the same for overlap, without noise.
    """
    task = task.assign(
        overlap=pd.Categorical(task["overlap"], ["none", "quarter", "half"])
    )
    parts = {
        "noise": task[task["overlap"] == "quarter"],
        "overlap": task[task["noise"] == 0],
    }
    rows = []
    for measure in MEASURE_TITLES:
        row: dict[str, object] = {
            "measure": measure,
            "systems": task["system"].nunique(),
        }
        sign = -1 if measure == "agreement" else 1
        for name, own in parts.items():
            steps = own.pivot(index="system", columns=name, values=measure).sort_index(
                axis=1
            )
            change = steps.iloc[:, -1] - steps.iloc[:, 0]
            rises = (sign * steps.diff(axis=1).iloc[:, 1:] > 0).all(axis=1)
            row |= {
                f"rises_{name}": int(rises.sum()),
                f"{name}_low": change.min(),
                f"{name}_high": change.max(),
            }
        rows.append(row)
    return pd.DataFrame(rows)


def prediction_tables(tables: Mapping[str, Table], corpus: str) -> dict[str, Table]:
    """Add to tables what predictions 1 to 8 ask of a system, or of two.

    The result is for `judge_predictions`.

    `tables` holds table1_systems, variance, validity, table1_differences and
    floor_differences (of the excess over the matched floor); `corpus` is a name. Each
    table gets seen: the model is one of `SEEN_MODELS`, and the corpus the project's.
    table1_differences holds those of the floors too, only those between system prompts of one
    model, and frr_apart, the distance of their FRR, and too_few_for_dr: one of them has too few
    refusals for a DR.
    """
    seen, once = SEEN_MODELS if corpus == CORPUS else (), tables["table1_systems"]
    pairs = pd.concat(
        [tables["table1_differences"], tables["floor_differences"]], ignore_index=True
    )
    pairs = pairs[
        pairs["first"].map(model_of_system) == pairs["second"].map(model_of_system)
    ]
    rates = (
        pairs[pairs["measure"] == "frr"]
        .set_index(["first", "second"])["difference"]
        .abs()
        .rename("frr_apart")
    )
    too_few = (
        pairs[["first", "second"]]
        .isin(list(once.loc[once["too_few_for_dr"], "system"]))
        .any(axis=1)
    )
    made = {name: tables[name] for name in ("table1_systems", "variance", "validity")}
    made["table1_differences"] = pairs.assign(too_few_for_dr=too_few).join(
        rates, on=["first", "second"]
    )
    named = {
        name: frame["first" if "first" in frame else "system"]
        for name, frame in made.items()
    }
    return {
        name: frame.assign(seen=named[name].map(model_of_system).isin(seen))
        for name, frame in made.items()
    }
