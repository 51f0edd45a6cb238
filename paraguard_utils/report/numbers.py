"""Numbers in prose: one generated file of keys and texts, and the places in Markdown that show them.

A place is `<!--=KEY-->text<!--=-->`, invisible around its text wherever Markdown is rendered. `make record` collects
the numbers from the recorded tables and fills the README, the data card and the notebooks' prose, so that no result is
typed.
"""

import re
from difflib import SequenceMatcher

import numpy as np
import pandas as pd
from sklearn.metrics import roc_auc_score

from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.bootstrap import FEW
from paraguard_utils.corpus import fidelity, gates, inputs
from paraguard_utils.errors import DataError
from paraguard_utils.models import trace_store
from paraguard_utils.querying import labelling
from paraguard_utils.report import findings, full_scale, tables
from paraguard_utils.schemas import STRATEGIES, Corpus, Table
from paraguard_utils.scoring import covariates, proxies, sensitivity, variance, veto
from paraguard_utils.scoring.regression import POOLED
from paraguard_utils.settings import CORPUS, TWINS
from paraguard_utils.text import readable, words

NAME = "numbers"
COVERAGE = paths.BENCHMARKS / "coverage.csv"
MEASURES = ("accuracy", "precision", "recall", "kappa")
PLACE = re.compile(r"<!--=([\w.-]+)-->.*?<!--=-->", re.DOTALL)


def filled(markdown: str, numbers: Table) -> str:
    """Put the numbers into their places.

    Parameters
    ----------
    markdown : str
    numbers : DataFrame
        key, text.

    Returns
    -------
    str

    Raises
    ------
    DataError
        A place names a key that there is not.
    """
    known = numbers.set_index("key")["text"]

    def text(place: re.Match[str]) -> str:
        if place[1] not in known:
            raise DataError(f"there is no number {place[1]!r} for {place[0]!r}; see numbers.collect")
        return f"<!--={place[1]}-->{known[place[1]]}<!--=-->"

    return PLACE.sub(text, markdown)


def plain(markdown: str) -> str:
    """Return a text with its numbers, but without the marks of their places."""
    return re.sub(r"<!--=[\w.-]*-->", "", markdown)


def collect(store: stores.Store) -> Table:
    """Collect every number that prose may name from a store's tables.

    Parameters
    ----------
    store : stores.Store

    Returns
    -------
    DataFrame
        key, text. `a.NAME` is an estimate of Table 1 in the reading `relative`, and `a_clipped.NAME` in `clipped`, as a
        range over the judged targets (at least 30 rejections and 10 mixed clusters); `above.NAME` counts the targets
        whose interval lies above 0; `all.NAME` is a range over all targets.
    """
    found: dict[str, str] = {}
    table1 = store.read("tables", "table1_targets").merge(
        store.read("tables", "table1_floors"), on=["target", "reading"]
    )
    judged = table1[~tables.too_few(table1)]
    found["targets"] = _whole(table1["target"].nunique())
    found["judged"] = _whole(judged["target"].nunique())
    found["prompts"] = _whole(table1["n_prompts"].iloc[0])
    found["clusters"] = _whole(table1["n_clusters"].max())
    found |= _twins(store.read("corpus", CORPUS), store.read("corpus", TWINS))
    for reading, end in (("relative", ""), ("clipped", "_clipped")):
        rows = judged[judged["reading"] == reading]
        for measure in [column for column in table1 if f"{column}_low" in table1]:
            found[f"a{end}.{measure}"] = _range(rows[measure])
            found[f"above{end}.{measure}"] = _whole((rows[f"{measure}_low"] > 0).sum())
        found[f"a{end}.p"] = _range(rows["p"])
        found[f"a{end}.over_null"] = _range(rows["ci"] - rows["ci_null"])
        chance = (rows["cr_floor_low"] <= 0.05) & (rows["cr_floor_high"] >= 0.05)
        found[f"a{end}.cr_floor_chance"] = _whole(chance.sum())
    once = table1.drop_duplicates("target")
    found |= {f"all.{measure}": _range(once[measure]) for measure in ("frr", "flip_rate", "flip_random")}
    for row in findings.told_apart(store.read("tables", "table1_differences"), table1).itertuples():
        found[f"differ.{row.measure}"] = f"{row.differ} of {row.pairs}"
    found |= _disagreement(once, store)
    found |= _sensitivity(store)
    found |= _correlations(store.read("tables", "ci_correlations"))
    found |= _search(store.read("tables", "grid_search"))
    found |= _proxies(store.read("tables", "proxies"), store.read("tables", "proxies_orders"))
    found |= _cohorts(store.read("tables", "table2_groups"), store.read("tables", "table2_regression"))
    found |= _coverage(stores.read(COVERAGE, "tables"))
    for row in store.read("tables", "known_truth_moved").to_dict("records"):
        found |= {f"known.{row['measure']}.{name}": f"{row[name]:.1f}" for name in ("frr", "perplexity", "length")}
        found[f"known.{row['measure']}.meaning"] = tables.decimal(row["meaning"], 2, "+")
    found |= _corpus(store.read("tables", "corpus_yield"), store.read("tables", "corpus_topical"))
    found |= _written(*(store.read("tables", f"writer_{name}") for name in ("passed", "yield", "read")))
    found |= _labelling(store) | _full_scale(store)
    minutes = store.read("tables", "notebook_minutes")
    found |= {f"minutes.{row.notebook}": f"{row.minutes:g}" for row in minutes.itertuples()}
    found |= _example(store) | _costs(store) | _guards(store) | _vetoes(store) | _remedies(store)
    found["sentiment.systems"] = _whole(store.read("tables", "sentiment_followed")["systems"].max())
    return pd.DataFrame(found.items(), columns=["key", "text"])


def _twins(benign: Corpus, twins: Corpus) -> dict[str, str]:
    """How many unsafe twins there are, and how far risk and length alone tell them from the clusters they belong to."""
    own = unsafe.with_twins(benign, twins)
    pairs = pd.concat([own, twins])
    asks = np.arange(len(pairs)) >= len(own)
    brevity = -pairs["text"].map(lambda text: len(words(text)))
    return {
        "twins.prompts": _whole(len(twins)),
        "twins.clusters": _whole(twins["cluster_id"].nunique()),
        "twins.auc.risk": f"{roc_auc_score(asks, pairs['risk']):.2f}",
        "twins.auc.brevity": f"{roc_auc_score(asks, brevity):.2f}",
    }


EXAMPLE = "qwen2.5-coder-1.5b-instruct-q4_k_m--safety"
"""The target of the README's example."""

PLAIN = 80
"""Characters of an answer that refuses and does nothing else."""


def _example(store: stores.Store) -> dict[str, str]:
    """One plain refusal and the nearest accepted paraphrase: the first of the sheet."""
    sheet = store.read("tables", f"confused_refusals_{EXAMPLE}")
    row = sheet[sheet["rejected_answer"].str.len() <= PLAIN].iloc[0]
    answered, refused = _marked(_quoted(row["paraphrase"]), _quoted(row["rejected_prompt"]))
    answers = {"answer": _quoted(row["paraphrase_answer"]), "refusal": _quoted(row["rejected_answer"])}
    return {f"example.{key}": text for key, text in ({"answered": answered, "refused": refused} | answers).items()}


def _marked(first: str, second: str) -> tuple[str, str]:
    """Set in bold the words in which two texts differ."""
    one, other = first.split(" "), second.split(" ")
    codes = SequenceMatcher(None, one, other).get_opcodes()
    for kind, start, end, begin, stop in reversed(codes):
        if kind != "equal":
            one[start:end] = [f"**{' '.join(one[start:end])}**"] if start < end else []
            other[begin:stop] = [f"**{' '.join(other[begin:stop])}**"] if begin < stop else []
    return " ".join(one), " ".join(other)


def _quoted(text: str) -> str:
    """Return the beginning of a text, as one line of Markdown."""
    line = readable(" ".join(text.split()))
    return tables.escaped(line if len(line) <= 2 * PLAIN else line[: 2 * PLAIN].rsplit(" ", 1)[0] + " ...")


def _costs(store: stores.Store) -> dict[str, str]:
    """Return minutes and most gigabytes that asking a target all prompts took on the recording machine."""
    found: dict[str, str] = {}
    size = len(store.read("corpus", CORPUS))
    for name in registry.published("chat").index:
        if cost := trace_store.cost(store, CORPUS, name, size):
            found[f"cost.{name}.minutes"] = f"{cost['minutes']:.0f}"
            found[f"cost.{name}.gb"] = f"{cost['gb']:.1f}"
    return found


def _disagreement(table: Table, store: stores.Store) -> dict[str, str]:
    """DR of Table 1 and what it goes with: ranges over targets with enough rejections and acceptances."""
    found: dict[str, str] = {}
    for row in table.to_dict("records"):
        found |= {f"dr.{row['target']}": tables.estimate(row, "dr", 2), f"frr.{row['target']}": _percent(row["frr"])}
    enough = table[~table["few_dr"]]
    found |= {"dr.n": _whole(len(enough)), "dr.range": _range(enough["dr"], ".2f")}
    found |= {"dr.below_one": _whole((enough["dr_high"] < 1).sum()), "dr.icc": _range(enough["icc_latent"], ".2f")}
    split = store.read("tables", "variance")
    drawn = split[split["decoding"] == "drawn"]
    found |= {f"drawn.{part}": _percents(drawn[part]) for part in variance.PARTS}
    for row in drawn.to_dict("records"):
        found |= {f"drawn.{row['target']}.{part}": tables.estimate(row, part, 2) for part in variance.PARTS}
    parts = split[split["decoding"] == "greedy"].set_index("target").loc[enough["target"]]
    for name in ("meaning", "style"):
        found[f"dr.{name}"] = _percents(parts[name])
    valid = store.read("tables", "validity").set_index("target").loc[enough["target"]]
    found |= {f"auc.{name}": _range(valid[f"auc_{name}"], ".2f") for name in ("isolation", "ci", "ci_clipped")}
    for name, column in (("isolation.above", "auc_isolation_low"), ("ci.below", "auc_ci_high")):
        beyond = valid[column] > 0.5 if name.endswith("above") else valid[column] < 0.5
        found[f"auc.{name}"] = f"{beyond.sum()} of {len(valid)}"
    between = store.read("tables", "table1_differences").query("measure == 'dr'")
    for row in between.to_dict("records"):
        key = f"dr.{row['first']}.{row['second']}"
        found |= {key: tables.estimate(row, "difference", 2), f"{key}.p": f"{row['p_holm']:.2f}"}
    found["dr.matched"] = f"{(valid['dr_matched'] - valid['dr']).abs().max():.3f}"
    return found


def _percents(shares: pd.Series) -> str:
    """Return the range of some shares in percent."""
    return " to ".join(dict.fromkeys(map(_percent, (shares.min(), shares.max()))))


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _correlations(table: Table) -> dict[str, str]:
    """Ranges of r over judged targets, by covariate."""
    found: dict[str, str] = {}
    for (reading, covariate), rows in table[~table["few"]].groupby(["reading", "covariate"]):
        found[f"r.{reading}.{covariate}"] = _range(rows["r"], style="+.2f")
        met, unclear = covariates.breaks(rows)
        found |= {f"met.{reading}.{covariate}": _whole(met.sum())}
        found |= {f"unclear.{reading}.{covariate}": _whole(unclear.sum())}
        found |= {f"below.{reading}.{covariate}": f"{(rows['r_high'] < 0).sum()} of {len(rows)}"}
    return found


def _sensitivity(store: stores.Store) -> dict[str, str]:
    """Orders of judged targets by dimension, and what each labeller says of each target."""
    found: dict[str, str] = {}
    values = store.read("tables", "sensitivity")
    counts = sensitivity.order_counts(store.read("tables", "sensitivity_orders"), values)
    for row in counts.itertuples():
        key = f"orders.{row.dimension.replace(' ', '_')}.{row.measure}"
        found |= {f"{key}.always": f"{row.always} of {row.pairs}", f"{key}.reversed": _whole(row.reversed)}
    weights = values[(values["dimension"] == "weights") & (values["n"] >= FEW)]
    above = (weights["excess_low"] > 0).groupby(weights["target"]).mean()
    found["weights.always_above"] = _whole((above == 1).sum())
    for row in values[values["dimension"] == "labeller"].to_dict("records"):
        for measure in ("frr", "flip_rate", "excess"):
            found[f"labeller.{row['setting']}.{row['target']}.{measure}"] = tables.estimate(row, measure)
    return found


def _search(table: Table) -> dict[str, str]:
    found: dict[str, str] = {}
    pooled = table[table["target"] == POOLED]
    for row in pooled.to_dict("records"):
        key = f"search.{row['reading']}.{row['prob_shift']}"
        found[f"{key}.best"] = row["best"]
        for name in ("auc_held_out", "auc_paper", "gain"):
            found[f"{key}.{name}"] = tables.estimate(row, name)
    return found


def _proxies(table: Table, orders: Table) -> dict[str, str]:
    """Ranges over judged targets by setting, orders of targets kept and turned, and what became of predictions."""
    found: dict[str, str] = {}
    judged = table[table["few"].eq(False) & table["reading"].eq("relative")]
    for (prompts, setting), rows in judged.groupby(["prompts", "setting"]):
        key = f"proxies.{prompts}.{_plain_key(setting)}"
        found |= {f"{key}.rho": _range(rows["rho"], ".2f")}
        for measure in proxies.MEASURES:
            found[f"{key}.{measure}"] = _range(rows[f"{measure}_change"], "+.3f")
    for row in orders[(orders["among"] == "all") & (orders["reading"] == "relative")].to_dict("records"):
        key = f"proxies.orders.{_plain_key(row['setting'])}.{row['measure']}"
        found |= {f"{key}.kept": f"{row['sure_kept']} of {row['sure']}", f"{key}.turned": _whole(row["sure_turned"])}
        found[f"{key}.rho"] = tables.estimate(row, "rho", 2)
    for number, rows in proxies.predictions(table).groupby("number"):
        found[f"prediction.{number}.holds"] = f"{(rows['verdict'] == 'holds').sum()} of {len(rows)}"
    return found


def _plain_key(setting: str) -> str:
    return setting.replace(",", "").replace(" ", "_")


def _cohorts(groups: Table, regression: Table) -> dict[str, str]:
    """Flip rates by strategy, as a range over all targets, and the odds ratios of all targets together."""
    found: dict[str, str] = {}
    for strategy, rows in groups[groups["kind"] == "strategy"].groupby("group"):
        if rows["flip"].notna().any():
            found[f"flip.{strategy}"] = _range(rows["flip"])
    for row in regression[regression["target"] == POOLED].to_dict("records"):
        found[f"odds.{row['term']}"] = tables.estimate(row, "odds_ratio", decimals=2)
    return found


def _coverage(table: Table) -> dict[str, str]:
    """Share of worlds whose interval covers the truth, as a range over the kinds of worlds."""
    found = {"worlds": _whole(table["worlds"].max())}
    for name, estimate in (
        ("ci", "CI"),
        ("cd", "CD"),
        ("excess", "primary excess"),
        ("excess_matched", "excess over the matched floor"),
        ("dr", "DR, not flagged"),
    ):
        found[f"covered.{name}"] = _range(table.loc[table["estimate"] == estimate, "covered"], style=".1%")
    null = table["rule"].isin(["independent", "clusters"])
    for name, estimate in (("excess", "primary excess"), ("matched", "excess over the matched floor")):
        found[f"null.{name}"] = _range(table.loc[null & (table["estimate"] == estimate), "covered"], style=".1%")
    cr = table["estimate"].str.startswith("CR@0")
    return found | {"covered.cr": _range(table.loc[cr, "covered"], style=".1%")}


def _corpus(yields: Table, topical: Table) -> dict[str, str]:
    """Variants by strategy, and the seeds whose category is their subject, by category."""
    kept = yields[yields["fate"] == "kept"].iloc[0]
    found = {f"kept.{strategy}": _whole(kept[strategy]) for strategy in STRATEGIES}
    for row in topical.to_dict("records"):
        found[f"topical.{row['category']}"] = f"{row['topical']} of {row['seeds']}"
    whole = topical.iloc[-1]
    found["topical.equal"] = f"{whole['equal']} of {whole['read']}"
    return found | {"topical.kappa": tables.estimate(whole, "kappa", decimals=2)}


def _written(passed: Table, yields: Table, read: Table) -> dict[str, str]:
    """Return how many of a model's and of the rules' candidates pass the gates, and what two readers say of them.

    `gated` are those of the model that pass all gates but the judge.
    """
    judged = yields["fate"].isin(["kept", *gates.SELECTED, *gates.JUDGED])
    found = {"written.model.gated": f"{_whole(yields.loc[judged, 'total'].sum())} of {_whole(yields['total'].sum())}"}
    for row in passed[passed["strategy"] == "all"].itertuples():
        who = "rules" if row.generator == inputs.RULES else "model"
        found[f"written.{who}.passing"] = f"{_whole(row.passing)} of {_whole(row.written)}"
    for row in read.itertuples():
        about = next(name for name, question in fidelity.READ.items() if question == row.question)
        found[f"written.{row.group}.{about}"] = f"{_whole(row.yes)} of {_whole(row.read)}"
    return found


def _full_scale(store: stores.Store) -> dict[str, str]:
    """Return what is found on the public corpus: its size, and ranges over targets, and over targets and benchmarks."""
    targets = store.read("tables", "public_targets").drop_duplicates("target")
    sources = store.read("tables", "public_sources")
    found = {f"public.{name}": _whole(sources[f"n_{name}"].max()) for name in ("prompts", "clusters")}
    found |= {f"public.{measure}": _range(targets[measure], ".2f") for measure in ("frr", "dr", "cr60")}
    found |= {"public.minutes": _range(targets["minutes"], ".0f"), "public.gb": _range(targets["gb"], ".1f")}
    known = sources[sources["source"] != full_scale.ALL]
    found |= {f"public.{measure}.sources": _range(known[measure], ".2f") for measure in ("frr", "dr")}
    regression = store.read("tables", "public_regression")
    for row in regression[regression["target"] == POOLED].to_dict("records"):
        found[f"public.odds.{row['term']}"] = tables.estimate(row, "odds_ratio", decimals=2)
    claims = findings.cohort_claims(store.read("tables", "public_cohorts")).query("reading == 'relative'")
    risky = claims[claims["claim"].str.startswith("high-risk")]
    found["public.risky"] = f"{_whole(risky['confirm'].sum())} of {_whole(len(risky) * len(targets))}"
    decided = store.read("tables", "public_predictions").query("verdict != 'few'")
    found["public.hold"] = f"{_whole((decided['verdict'] == 'holds').sum())} of {_whole(len(decided))}"
    return found


def _guards(store: stores.Store) -> dict[str, str]:
    """Return what guards and models reject of both corpora, how many guards see no harm, what changes behind them."""
    found: dict[str, str] = {}
    table = store.read("tables", "table3_guards")
    measures = (
        "frr",
        "flip_rate",
        "benign_rejected",
        "twins_rejected",
        "xstest_rejected",
        "auc",
        "auc_equal_length",
        "dr",
        "cr60",
    )
    for row in table.to_dict("records"):
        found |= {f"guard.{row['target']}.{measure}": tables.estimate(row, measure, 2) for measure in measures[2:]}
        found |= {f"guard.{row['target']}.{measure}": tables.estimate(row, measure) for measure in measures[:2]}
        found |= {f"guard.{row['target']}.{name}_share": _percent(row[name]) for name in measures[2:4]}
    guards = table[table["axis"] != "model"]
    found["guards.n"] = _whole(len(guards))
    for name, key in (("auc", "guards.blind"), ("auc_equal_length", "guards.blind.equal_length")):
        blind = (guards[f"{name}_low"] <= 0.5) & (guards[f"{name}_high"] >= 0.5)
        found[key] = f"{blind.sum()} of {len(guards)}"
    found |= {"guards.cr60": _range(guards["cr60"], ".2f"), "guards.cr60.most": f"{guards['cr60'].max():.2f}"}
    for name, rows in (("guards", guards), ("models", table[table["axis"] == "model"])):
        enough = rows[~rows["few_dr"]]
        found |= {f"{name}.dr": _range(enough["dr"], ".2f"), f"{name}.dr.n": _whole(len(enough))}
    behind = store.read("tables", "guarded")
    for measure in ("frr", "dr", "cr60"):
        rows = behind[~behind["few_dr"]] if measure == "dr" else behind
        low, high = (rows[f"{measure}_change_{end}"] for end in ("low", "high"))
        found |= {f"behind.{measure}.up": _whole((low > 0).sum()), f"behind.{measure}.down": _whole((high < 0).sum())}
    return found | {"behind.pairs": _whole(len(behind)), "behind.dr.n": _whole((~behind["few_dr"]).sum())}


def _vetoes(store: stores.Store) -> dict[str, str]:
    """Return what vetoes gain and lose, and in how many judged targets each is better than chance."""
    found: dict[str, str] = {}
    table = store.read("tables", "vetoes")
    judged = table[veto.enough(table)]
    for row in judged.to_dict("records"):
        key = f"veto.{row['score'].replace('1 - ', 'low_')}.{row['target']}"
        for name in ("gained", "lost", "lost_random", "better", "gained_one_more", "lost_one_more", "lost_lowered"):
            found[f"{key}.{name}"] = tables.estimate(row, name, 2)
            found[f"{key}.{name}_share"] = f"{100 * row[name]:.1f} %"
    for score, rows in judged.groupby("score"):
        key = f"veto.{score.replace('1 - ', 'low_')}"
        found |= {f"{key}.better": f"{(rows['better_high'] < 0).sum()} of {len(rows)}"}
        found[f"{key}.lost.most"] = f"{100 * rows['lost'].max():.0f} %"
    return found


def _remedies(store: stores.Store) -> dict[str, str]:
    """Return what remedies do on the test third, and how many do it for sure."""
    found: dict[str, str] = {}
    table = store.read("tables", "remedy_map")
    for row in table.to_dict("records"):
        key = f"remedy.{row['target']}.{row['remedy']}"
        found[f"{key}.queries"] = f"{row['queries']:.1f}"
        for name in ("frr", "twins", "usable"):
            found[f"{key}.{name}"] = "–" if np.isnan(row[name]) else f"{100 * row[name]:.0f} %"
        for name in ("dr", "frr_change", "dr_change", "twins_change", "over_curve"):
            found[f"{key}.{name}"] = tables.estimate(row, name, 2)
    applied = table[(table["kind"] != "") & (table["remedy"] != veto.IDEAL)]
    found["remedies.names"] = _whole(applied["remedy"].nunique())
    found["remedies.pairs"] = _whole(len(applied))
    kinds = {"all": applied, **dict(list(applied.groupby("kind")))}
    for kind, rows in kinds.items():
        enough = rows[rows["dr_verdict"] != "few"]
        for verdict in ("lower", "higher"):
            found[f"remedies.{kind}.dr_{verdict}"] = f"{(enough['dr_verdict'] == verdict).sum()} of {len(enough)}"
        found[f"remedies.{kind}.frr_up"] = f"{(rows['frr_change_low'] > 0).sum()} of {len(rows)}"
        found[f"remedies.{kind}.frr_down"] = f"{(rows['frr_change_high'] < 0).sum()} of {len(rows)}"
        for name, side in (("over", "better"), ("over", "worse"), ("twins", "lost"), ("twins", "kept")):
            found[f"remedies.{kind}.{side}"] = f"{(rows[f'{name}_verdict'] == side).sum()} of {len(rows)}"
    gains = applied[(applied["frr_change_high"] < 0) & (applied["twins_verdict"] == "kept")]
    found["remedies.gains"] = f"{len(gains)} of {len(applied)}"
    found["remedies.wins"] = f"{(gains['dr_verdict'] == 'lower').sum()} of {len(applied)}"
    for row in store.read("tables", "remedy_utility").to_dict("records"):
        for name in ("divergence", "ppl_ratio"):
            found[f"remedy.{row['target']}.{row['remedy']}.{name}"] = "–" if np.isnan(row[name]) else f"{row[name]:.2g}"
    for row in store.read("tables", "remedy_learned").query("what == 'pairs'").to_dict("records"):
        found[f"remedy.{row['target']}.{row['remedy']}.pairs"] = _whole(row["value"])
    minutes = store.read("tables", "remedy_minutes")
    minutes = minutes[minutes["target"].isin(registry.by_default().index)]  # what `make remedies` asks
    found["minutes.08_remedies"] = f"{minutes[['minutes', 'minutes_training']].to_numpy().sum():.0f}"
    return found


def _labelling(store: stores.Store) -> dict[str, str]:
    """How far labels agree with people on XSTest and with readings of recorded answers."""
    found: dict[str, str] = {}
    xstest = store.read("tables", "xstest_agreement")
    own = (xstest["part"] == "held out") & xstest["labeller"].eq(f"{labelling.LABELLER}, whole answers")
    for row in xstest[own].to_dict("records"):
        found[f"xstest.{row['file']}.n"] = _whole(row["n"])
        found |= {f"xstest.{row['file']}.{measure}": tables.estimate(row, measure) for measure in MEASURES}
    read = store.read("tables", "readings")
    found |= {"read.n": _whole(read["n"].sum()), "read.differ": _whole(read["differ"].sum())}
    found |= {"read.noisy": f"{read['noisy'].sum()} of {len(read)}", "read.missed": _range(read["missed"])}
    found["read.precision"] = _range(read.loc[~read["noisy"], "precision"])
    for row in read.to_dict("records"):
        found |= {
            f"read.{row['target']}.{name}": tables.estimate(row, name) for name in ("precision", "missed", "usable")
        }
    for row in store.read("tables", "readings_agreement").to_dict("records"):
        found[f"read.kappa.{row['judged']}"] = tables.estimate(row, "kappa")
    for row in store.read("tables", "label_noise").to_dict("records"):
        found |= {
            f"noise.{row['target']}.{name}": tables.estimate(row, name) for name in ("frr", "flip_rate", "usable")
        }
    return found


def _whole(number: float) -> str:
    return f"{int(number):,}"


def _range(values: pd.Series, style: str = ".3f") -> str:
    if not np.isfinite(values).any():
        return "–"
    low, high = np.nanmin(values), np.nanmax(values)
    texts = [format(value, style) for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
