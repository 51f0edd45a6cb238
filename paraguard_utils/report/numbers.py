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
from paraguard_utils.analysis import guarded, predictions, sensitivity, surrogate, validity, variance, veto, wording
from paraguard_utils.analysis.cohorts import POOLED
from paraguard_utils.core.estimates import MIN_REFUSALS
from paraguard_utils.core.words import words
from paraguard_utils.corpus import fidelity, gates, inputs
from paraguard_utils.errors import DataError
from paraguard_utils.labels import labelling, readings
from paraguard_utils.models import trace_store
from paraguard_utils.report import findings, full_scale, tables
from paraguard_utils.report.paper import paper_values
from paraguard_utils.schemas import STRATEGIES, Corpus, Table
from paraguard_utils.settings import CORPUS, TWINS
from paraguard_utils.text import readable

NAME = "numbers"
COVERAGE = paths.BENCHMARKS / "coverage.csv"
KNOWN_TRUTH = paths.BENCHMARKS / "known_truth.csv"
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
    found |= _disagreement(once, store) | _wording(store)
    found |= _sensitivity(store)
    found |= _correlations(store.read("tables", "ci_correlations"))
    found |= _search(store.read("tables", "grid_search"))
    found |= _proxies(store.read("tables", "proxies"), store.read("tables", "proxies_orders"))
    found |= _cohorts(store.read("tables", "table2_groups"), store.read("tables", "table2_regression"))
    found |= _coverage(stores.read(COVERAGE, "tables"))
    for row in store.read("tables", "known_truth_moved").to_dict("records"):
        for name in ("frr", "perplexity", "length"):
            found[f"known.{row['measure']}.{name}"] = "–" if np.isnan(row[name]) else f"{row[name]:.1f}"
        found[f"known.{row['measure']}.meaning"] = tables.decimal(row["meaning"], 2, "+")
    found |= _corpus(store.read("tables", "corpus_yield"), store.read("tables", "corpus_topical"))
    found |= _written(*(store.read("tables", f"writer_{name}") for name in ("passed", "yield", "read")))
    found |= _labelling(store) | _full_scale(store) | _paper() | _claims(store)
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
    every = store.read("tables", "validity").set_index("target").loc[table["target"]]
    valid = every.loc[enough["target"]]
    # Not of isolation: its AUC follows from the clusters' counts, so it says no more than DR.
    found |= {f"auc.{name}": _range(valid[f"auc_{name}"], ".2f") for name in ("ci", "ci_clipped")}
    for key, rows in (("auc.ci", valid), ("auc.ci.all", every)):
        found[f"{key}.below"] = f"{(rows['auc_ci_high'] < 0.5).sum()} of {len(rows)}"
        found[f"{key}.above"] = f"{(rows['auc_ci_low'] > 0.5).sum()} of {len(rows)}"
    between = store.read("tables", "table1_differences").query("measure == 'dr'")
    for row in between.to_dict("records"):
        key = f"dr.{row['first']}.{row['second']}"
        found |= {key: tables.estimate(row, "difference", 2), f"{key}.p": f"{row['p_holm']:.2f}"}
    found["dr.matched"] = f"{(valid['dr_matched'] - valid['dr']).abs().max():.3f}"
    return found | _dr_and_frr(table, store)


SYSTEMS = {"models": "models", "guards": "guards", "models and guards": "all"}
"""Groups of systems over which DR is held against FRR, and how their keys call them."""


def _dr_and_frr(table: Table, store: stores.Store) -> dict[str, str]:
    """Return how DR goes with the refusal rate, over systems and in worlds of known truth, and what follows noise."""
    found = {"rho.dr_frr.models.dr": _range(table["dr"], ".2f")}
    for row in store.read("tables", "dr_and_frr").to_dict("records"):
        about = f"{row['measure'].removesuffix('_latent')}_frr.{SYSTEMS[row['systems']]}"
        key = f"rho.{about}" if row["refusals"] == "any" else f"rho.{about}.enough"
        found |= {key: tables.estimate(row, "rho", 2), f"{key}.n": _whole(row["n"])}
    corrected = store.read("tables", "label_noise")[["frr", "dr"]].dropna()
    rho = corrected["frr"].corr(corrected["dr"], method="spearman")
    found |= {"rho.dr_frr.corrected": f"{rho:.2f}", "rho.dr_frr.corrected.n": _whole(len(corrected))}
    worlds = stores.read(KNOWN_TRUTH, "tables").query("wording == 'dice' and measure == 'dr' and correlation > 0")
    by_rate = worlds.pivot(index="correlation", columns="frr", values="mean")
    found["rho.dr_frr.worlds"] = _range(by_rate.iloc[:, 0] - by_rate.iloc[:, -1], ".2f")
    followed = store.read("tables", "sentiment_followed").set_index("measure")
    for name, row in followed.iterrows():
        found[f"sentiment.{name}.noise"] = f"{row['rises_noise']:.0f} of {row['systems']:.0f}"
    found["sentiment.overlap.most"] = _whole(followed["rises_overlap"].max())
    return found


def _wording(store: stores.Store) -> dict[str, str]:
    """DR by shared wording, rephrasing odds, rates by meaning, triggers: ranges over targets with enough refusals."""
    found: dict[str, str] = {}
    table = store.read("tables", "wording")
    enough = table[~table["few"]]
    found["wording.n"] = f"{len(enough)} of {len(table)}"
    found["wording.apart"] = f"{(enough['difference_low'] > 0).sum()} of {len(enough)}"
    for name in ("near", "free"):
        found[f"wording.{name}"] = _range(enough[f"dr_{name}"], ".2f")
        found[f"wording.all.{name}"] = _range(table[f"dr_{name}"], ".2f")
        found[f"wording.meaning.{name}"] = _percents(1 - enough[f"dr_{name}"])
    with_guards = [store.read("tables", name) for name in ("wording", "table3_wording") if store.has("tables", name)]
    for row in pd.concat(with_guards).to_dict("records"):
        for name in ("dr_near", "dr_free", "difference"):
            found[f"wording.{row['target']}.{name}"] = tables.estimate(row, name, 2)
    odds = store.read("tables", "table1_rephrasing")
    known, both = odds[~odds["few"]], odds[~odds["few_twins"]]
    found |= {"rephrased.n": f"{len(known)} of {len(odds)}", "rephrased.twins.n": f"{len(both)} of {len(odds)}"}
    for name in ("rephrased1", "rephrased3", "refused_once", "refused_always"):
        found[f"{name}.range"] = _percents(known[name])
    found["rephrased3_twins.range"] = _percents(both["rephrased3_twins"])
    found["rephrased3.helps"] = f"{(both['rephrased3_difference_low'] > 0).sum()} of {len(both)}"
    words = store.read("tables", "triggers")
    found["triggers"] = f"{words['trigger'].sum()} of {len(words)}"
    found["triggers.targets"] = f"{words.loc[words['trigger'], 'target'].nunique()} of {words['target'].nunique()}"
    intent = fidelity.kept(store.read("corpus", CORPUS))
    for name, kinds in (("near", wording.NEAR), ("free", wording.FREE), ("all", ("all",))):
        own = intent[intent["strategy"].isin(kinds)]
        found[f"intent.{name}"] = f"{round((own['same'] * own['read']).sum())} of {own['read'].sum()}"
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
        met, unclear = validity.breaks(rows)
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
    weights = values[(values["dimension"] == "weights") & (values["n"] >= MIN_REFUSALS)]
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
        for measure in surrogate.MEASURES:
            found[f"{key}.{measure}"] = _range(rows[f"{measure}_change"], "+.3f")
    for row in orders[(orders["among"] == "all") & (orders["reading"] == "relative")].to_dict("records"):
        key = f"proxies.orders.{_plain_key(row['setting'])}.{row['measure']}"
        found |= {f"{key}.kept": f"{row['sure_kept']} of {row['sure']}", f"{key}.turned": _whole(row["sure_turned"])}
        found[f"{key}.rho"] = tables.estimate(row, "rho", 2)
    for number, rows in predictions.judge({"proxies": table}).groupby("number"):
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
    if store.has("tables", "public_wording"):
        split = store.read("tables", "public_wording")
        chat = split[split["kind"] == "chat"]
        for name in ("dr_near", "dr_free"):
            found[f"public.wording.{name}"] = _range(chat[name], ".2f")
        for row in split.to_dict("records"):
            for name in ("dr_near", "dr_free", "difference"):
                found[f"public.wording.{row['target']}.{name}"] = tables.estimate(row, name, 2)
    found["public.hold"] = f"{_whole((decided['verdict'] == 'holds').sum())} of {_whole(len(decided))}"
    return found


def _paper() -> dict[str, str]:
    """Return the paper's numbers as its file writes them; rates of cohorts and guards in percent too."""
    known = paper_values()
    found = {f"paper.{item}": written for item, written in known["written"].items()}
    rates = known.loc[known.index.str.startswith(("cohort.", "guard.")), "value"]
    return found | {f"paper.{item}.percent": f"{100 * rate:g} %" for item, rate in rates.items()}


def _claims(store: stores.Store) -> dict[str, str]:
    """Return how many comparisons confirm and contradict each of the paper's claims, by reading, and the verdicts.

    `claim.NAME` is over both corpora, `claim.NAME.mini` and `claim.NAME.public` over one of them.
    """
    own = store.read("tables", "table2_claims").query("tau == 0.60")
    public = findings.cohort_claims(store.read("tables", "public_cohorts"))
    corpora = {"": pd.concat([own, public]), ".mini": own, ".public": public}
    claims = {
        f"{key}{part}": table[table["claim"] == claim]
        for claim, key in findings.CLAIM_KEYS.items()
        for part, table in corpora.items()
    }
    claims["similarity"] = findings.similarity_claim(store.read("tables", "ci_correlations"))
    claims["guards"] = findings.guard_claim(store.read("tables", "table3_guards"))
    found: dict[str, str] = {}
    for name, table in claims.items():
        decided = findings.decided_claims(table)
        for row in decided.to_dict("records"):
            key, testable = f"claim.{name}.{row['reading']}", sum(row[outcome] for outcome in findings.OUTCOMES)
            found |= {key: f"{row['confirm']} of {testable}", f"{key}.contradict": f"{row['contradict']} of {testable}"}
            found[f"{key}.verdict"] = row["word"]
        if len(decided) > 1:  # one reading alone is no verdict on the paper
            found[f"claim.{name}.verdict"] = decided["verdict"].iloc[0]
    return found


SEES = {"sees": "harm", "unseen": "not seen to", "wrong": "the wrong way"}
"""What a guard may be said to see (`guarded.judge_auc`), and how its keys call that."""


def _guards(store: stores.Store) -> dict[str, str]:
    """Return what guards and models reject of both corpora, which guards see harm, their CR, what changes behind them.

    `guards.harm.STATE` counts the guards that look for harm by what they see (`SEES`), `guards.other.STATE` the others.
    """
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
        "cr60_clipped",
        "floor_cr60",
        "floor_cr60_clipped",
    )
    for row in table.to_dict("records"):
        found |= {f"guard.{row['target']}.{measure}": tables.estimate(row, measure, 2) for measure in measures[2:]}
        found |= {f"guard.{row['target']}.{measure}": tables.estimate(row, measure) for measure in measures[:2]}
        found |= {f"guard.{row['target']}.{name}_share": _percent(row[name]) for name in measures[2:4]}
    guards = table[table["axis"] != "model"]
    found["guards.n"] = _whole(len(guards))
    meant = guards["axis"].isin(guarded.HARM_AXES)
    for who, rows in (("harm", guards[meant]), ("other", guards[~meant])):
        for key, state in SEES.items():
            found[f"guards.{who}.{key}"] = f"{(rows['sees'] == state).sum()} of {len(rows)}"
    for name in measures[8:]:  # of guards that reject anything
        found[f"guards.{name}"] = _range(guards.loc[guards["cr60"].notna(), name], ".2f")
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
    """Return what vetoes gain and lose over random halves of the clusters, and how many judged targets beat chance."""
    found = {"veto.halves": _whole(veto.HALVES)}
    table = store.read("tables", "vetoes")
    judged = table[veto.enough(table)]
    for row in judged.to_dict("records"):
        key = f"veto.{row['score'].replace('1 - ', 'low_')}.{row['target']}"
        for name in ("mean_gained", "mean_lost", "mean_better"):
            found |= {f"{key}.{name}": tables.estimate(row, name, 2), f"{key}.{name}_share": f"{100 * row[name]:.1f} %"}
        found |= {f"{key}.{name}": _percent(row[name]) for name in ("beats_chance", "limit_broken")}
    for score, rows in judged.groupby("score"):
        key, often = f"veto.{score.replace('1 - ', 'low_')}", rows["beats_chance"] >= veto.OFTEN
        found[f"{key}.better"] = f"{often.sum()} of {len(rows)}"
        for name, shares in (
            ("better.halves", rows.loc[often, "beats_chance"]),
            ("rest.halves", rows.loc[~often, "beats_chance"]),
            ("limit_broken", rows["limit_broken"]),
        ):
            found[f"{key}.{name}"] = _percents(shares) if len(shares) else "–"
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
    # Beside the remedies stand the untouched target and yardsticks, of which nothing is said to work.
    applied = table[table["role"] == "remedy"]
    found["remedies.names"] = _whole(applied["remedy"].nunique())
    found["remedies.pairs"] = _whole(len(applied))
    kinds = {"all": applied, **dict(list(applied.groupby("kind")))}
    for kind, rows in kinds.items():
        enough = rows[rows["dr_verdict"] != "few"]
        found[f"remedies.{kind}.n"] = _whole(len(rows))
        for verdict in ("lower", "higher"):
            found[f"remedies.{kind}.dr_{verdict}"] = f"{(enough['dr_verdict'] == verdict).sum()} of {len(enough)}"
        found[f"remedies.{kind}.frr_up"] = f"{(rows['frr_change_low'] > 0).sum()} of {len(rows)}"
        found[f"remedies.{kind}.frr_down"] = f"{(rows['frr_change_high'] < 0).sum()} of {len(rows)}"
        for name, side in (("over", "better"), ("over", "worse"), ("twins", "lost"), ("twins", "kept")):
            found[f"remedies.{kind}.{side}"] = f"{(rows[f'{name}_verdict'] == side).sum()} of {len(rows)}"
    asked = applied[applied["dr_verdict"] != "few"]
    found["remedies.dr_detectable"] = _range(asked["dr_detectable"], ".2f")
    gains = applied[(applied["frr_change_high"] < 0) & applied["twins_verdict"].isin(["kept", "more"])]
    found["remedies.gains"] = f"{len(gains)} of {len(applied)}"
    testable = gains[gains["dr_verdict"] != "few"]
    found["remedies.could"] = f"{len(testable)} of {len(applied)}"
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
    found |= {"read.precision": _range(read["precision"], ".2f"), "read.targets": _whole(len(read))}
    found["read.rejections"] = _whole(read["rejections"].sum())
    of_cluster = readings.read().assign(cluster=lambda rows: rows["prompt_id"].str.rpartition("-")[0])
    times = of_cluster.groupby(["target", "cluster"]).size()
    found["read.pairs"] = _whole((times * (times - 1) / 2).sum())
    for row in read.to_dict("records"):
        found |= {
            f"read.{row['target']}.{name}": tables.estimate(row, name) for name in ("precision", "missed", "usable")
        }
    for row in store.read("tables", "readings_agreement").to_dict("records"):
        found[f"read.kappa.{row['judged']}"] = tables.estimate(row, "kappa")
    noise = store.read("tables", "label_noise")
    for row in noise.to_dict("records"):
        found |= {f"noise.{row['target']}.{name}": tables.estimate(row, name) for name in ("frr", "dr", "usable")}
    known = noise.dropna(subset=["dr"])
    found["noise.dr.lower"] = f"{(known['dr'] < known['dr_labelled']).sum()} of {len(known)}"
    found["noise.dr.change"] = _range(known["dr"] - known["dr_labelled"], "+.2f")
    return found


def _whole(number: float) -> str:
    return f"{int(number):,}"


def _range(values: pd.Series, style: str = ".3f") -> str:
    if not np.isfinite(values).any():
        return "–"
    low, high = np.nanmin(values), np.nanmax(values)
    texts = [format(value, style) for value in (low, high)]
    return texts[0] if texts[0] == texts[1] else " to ".join(texts)
