"""Measure how often and how consistently recorded systems refuse (ours).

The definitions were written before the records were tabulated (`docs/method.md`,
Public records).
"""

from itertools import combinations

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from paraguard_lab.core.disagreement import estimate_disagreement_difference
from paraguard_lab.core.inference import estimate_parts
from paraguard_lab.core.ratios import (
    ratio_of_totals,
    share_of_totals,
    subtract_shares,
)
from paraguard_lab.public_records.sources import refused_bits, spread_counts
from paraguard_utils.core import disagreement
from paraguard_utils.core.estimates import (
    MIN_MIXED,
    N_RESAMPLES,
    SEED,
    ClusterBootstrap,
    Estimate,
    binomial_interval,
    to_columns,
)
from paraguard_utils.schemas import Table

MOST_UNDECIDED = 0.2
"""Share of answers without a decision from which no number of a system is given."""

MIN_TIER_PROMPTS = 30
"""With fewer prompts of a tier than this, resampling them shows too little spread."""

TIER_PARTS = ("tier", "prompt", "chance")
"""Parts of the variance of decisions on prompts in tiers, which sum to 1."""


def chance_row(counts: Table) -> dict[str, object]:
    """Estimate how often the same words are decided otherwise, when asked again.

    Parameters
    ----------
    counts : Table
        Rows of `sources.count_by_prompt` of one system, setting and judge.

    Returns
    -------
    dict
        n, answers; n_prompts, those with two decisions or more; undecided, the share
        of answers without a decision; rate, the share refused of the others; chance,
        DR with the answers to one prompt as the cluster; n_mixed, prompts decided both
        ways; too_few. Rate and chance have intervals over prompts. They are NaN if
        more than `MOST_UNDECIDED` is undecided.
    """
    by_prompt = spread_counts(counts)
    by_prompt["n"] = by_prompt["refused"] + by_prompt["answered"]
    by_prompt["rejected"] = by_prompt["refused"]
    total = by_prompt[["refused", "answered", "error"]].to_numpy().sum()
    undecided = by_prompt["error"].sum() / total
    decided = by_prompt.loc[by_prompt["n"] >= 2, ["cluster_id", "n", "rejected"]]
    clusters = ClusterBootstrap(by_prompt["cluster_id"])
    sums = clusters.sums(by_prompt["cluster_id"], by_prompt["n"], by_prompt["refused"])
    rate = ratio_of_totals(clusters, (sums[0], sums[1]))
    chance = estimate_chance(clusters, decided)
    estimates = {"rate": rate, "chance": chance}
    return {
        "n": int(total),
        "n_prompts": len(decided),
        "undecided": undecided,
        "n_mixed": int(disagreement.is_mixed(decided).sum()),
        **to_columns(withhold(clusters, undecided, estimates)),
        "too_few": is_too_few(decided) or undecided > MOST_UNDECIDED,
    }


def withhold(
    clusters: ClusterBootstrap, undecided: float, estimates: dict[str, Estimate]
) -> dict[str, Estimate]:
    """Return estimates, all undefined if more than `MOST_UNDECIDED` is undecided."""
    if undecided > MOST_UNDECIDED:
        return dict.fromkeys(estimates, clusters.undefined())
    return estimates


def is_too_few(decided: pd.DataFrame) -> bool:
    """Return whether refusals, or answers, are too few to tell a share of variance."""
    refused = decided["rejected"].sum()
    answered = decided["n"].sum() - refused
    return bool(min(refused, answered) < disagreement.MIN_DECISIONS_EACH)


def estimate_chance(clusters: ClusterBootstrap, decided: pd.DataFrame) -> Estimate:
    """Estimate DR of prompts whose repeats are `decided` (`count_decisions`).

    With fewer than `MIN_MIXED` prompts decided both ways, the interval is from 0 to
    the value that the upper exact limit of their share would give if they were as
    mixed as can be.
    """
    chance = disagreement.estimate_disagreement(clusters, decided)
    n_mixed = int(disagreement.is_mixed(decided).sum())
    if n_mixed >= MIN_MIXED or not np.isfinite(chance.value):
        return chance
    most = binomial_interval(n_mixed, len(decided))[1]
    half = decided["n"].max() // 2
    n = decided["n"].max()
    differ = 2 * half * (n - half) / (n * (n - 1))
    share = decided["rejected"].sum() / decided["n"].sum()
    high = most * differ / (2 * share * (1 - share))
    return Estimate(chance.value, 0.0, high, chance.draws)


def tabulate_record_chance(counts: Table, source: str) -> Table:
    """Return `chance_row` of each system, setting and judge of a source."""
    rows = []
    for (system, setting, judge), own in counts.groupby(
        ["system", "setting", "judge"], sort=True
    ):
        about = {"source": source, "system": system, "setting": setting}
        about |= {"temperature": find_temperature(setting), "judge": judge}
        rows.append(about | chance_row(own))
    return pd.DataFrame(rows)


def find_temperature(setting: str) -> float:
    """Return the temperature that a setting names; NaN if it names none.

    Examples
    --------
    >>> find_temperature("temperature 0.7")
    0.7
    """
    word, _, number = setting.partition(" ")
    return float(number) if word == "temperature" else np.nan


def tabulate_temperatures(decisions: pd.DataFrame) -> Table:
    """Estimate by how much chance rises from the lowest temperature to the highest.

    Returns
    -------
    Table
        source, system, judge; lowest and highest, the settings; chance_change with an
        interval over prompts, paired; too_few.
    """
    rows = []
    for (system, judge), own in decisions.groupby(["system", "judge"], sort=True):
        settings = sorted(own["setting"].unique())
        ends = [settings[0], settings[-1]]
        sides = []
        for setting in ends:
            rows_at = own[own["setting"] == setting]
            refused = refused_bits(rows_at["decision"])
            sides.append(disagreement.count_decisions(refused, rows_at["cluster"]))
        clusters = ClusterBootstrap(own["cluster"])
        change = estimate_disagreement_difference(clusters, sides[1], sides[0])
        undecided = (own["decision"] == "error").mean()
        changes = withhold(clusters, undecided, {"chance_change": change})
        rows.append(
            {
                "source": "stability",
                "system": system,
                "judge": judge,
                "lowest": ends[0],
                "highest": ends[1],
                **to_columns(changes),
                "too_few": any(map(is_too_few, sides)) or undecided > MOST_UNDECIDED,
            }
        )
    return pd.DataFrame(rows)


def tabulate_together(chance: Table) -> Table:
    """Correlate how often systems refuse with how consistently, by source (Spearman).

    Returns
    -------
    Table
        source; systems (those with enough decisions); measure (chance); n, how many;
        rho with an interval over systems.
    """
    rows = []
    for source, own in chance[~chance["too_few"]].groupby("source", sort=False):
        if len(own) < 5:
            continue
        rho = _bootstrap_spearman(own["rate"].to_numpy(), own["chance"].to_numpy())
        about = {"source": source, "systems": "with enough decisions"}
        about |= {"measure": "chance", "n": len(own)}
        rows.append(about | to_columns({"rho": rho}))
    return pd.DataFrame(rows)


def _bootstrap_spearman(x: np.ndarray, y: np.ndarray) -> Estimate:
    rng = np.random.default_rng(SEED)
    draws = np.empty(N_RESAMPLES)
    for number in range(N_RESAMPLES):
        drawn = rng.integers(len(x), size=len(x))
        is_constant = np.ptp(x[drawn]) == 0 or np.ptp(y[drawn]) == 0
        draws[number] = (
            np.nan if is_constant else spearmanr(x[drawn], y[drawn]).statistic
        )
    return Estimate.percentile(float(spearmanr(x, y).statistic), draws)


def tabulate_judges(decisions: pd.DataFrame) -> Table:
    """Compare how often two judges differ with how often two answers do.

    Returns
    -------
    Table
        source, system, setting, first and second judge; n, answers that both decided;
        undecided, the share that one of them did not; judges_differ, the share of
        these answers that they decide differently; answers_differ, the share of pairs
        of answers to one prompt that the first judge decides differently, of the same
        answers; judges_minus_answers, paired; intervals over prompts; too_few.
    """
    rows = []
    for (system, setting), own in decisions.groupby(["system", "setting"], sort=True):
        wide = own.pivot(
            index=["cluster", "repeat"], columns="judge", values="decision"
        )
        for first, second in combinations(wide.columns, 2):
            about = {"source": "stability", "system": system, "setting": setting}
            about |= {"temperature": find_temperature(setting)}
            about |= {"first": first, "second": second}
            rows.append(about | _compare_judges(wide[[first, second]]))
    return pd.DataFrame(rows)


def _compare_judges(wide: pd.DataFrame) -> dict[str, object]:
    """Return a row of `tabulate_judges`; the index has cluster and repeat."""
    is_decided = wide.isin(["refused", "answered"]).all(axis=1)
    both = wide[is_decided]
    ids = both.index.get_level_values("cluster")
    clusters = ClusterBootstrap(wide.index.get_level_values("cluster"))
    differ = both.iloc[:, 0] != both.iloc[:, 1]
    first = refused_bits(both.iloc[:, 0])
    n, n_differ, rejected = clusters.sums(ids, np.ones(len(both)), differ, first)
    pairs = n * (n - 1) / 2
    mixed_pairs = rejected * (n - rejected)
    judges = clusters.estimate(lambda n, hits: hits / n, n, n_differ)
    answers = clusters.estimate(lambda n, hits: hits / n, pairs, mixed_pairs)
    estimates = {
        "judges_differ": judges,
        "answers_differ": answers,
        "judges_minus_answers": judges - answers,
    }
    undecided = 1 - is_decided.mean()
    return {
        "n": len(both),
        "undecided": undecided,
        **to_columns(withhold(clusters, undecided, estimates)),
        "too_few": bool(undecided > MOST_UNDECIDED),
    }


def tabulate_record_forms(decisions: pd.DataFrame) -> Table:
    """Measure the refused share of each system, and DR of one claim in its forms.

    Returns
    -------
    Table
        source, system, n, n_clusters, undecided; rate and dr with intervals over
        claims; too_few.
    """
    rows: list[dict[str, object]] = []
    for system, own in decisions.groupby("system", sort=True):
        rows.append({"source": "forms", "system": system} | _consistency(own))
    return pd.DataFrame(rows)


def _consistency(own: pd.DataFrame) -> dict[str, object]:
    """Measure decisions of one system, a cluster of which asks the same."""
    refused = refused_bits(own["decision"])
    clusters = ClusterBootstrap(own["cluster"])
    decided = disagreement.count_decisions(refused, own["cluster"])
    is_known = ~np.isnan(refused)
    counted = clusters.sums(own["cluster"], is_known, refused == 1)
    estimates = {
        "rate": ratio_of_totals(clusters, (counted[0], counted[1])),
        "dr": disagreement.estimate_disagreement(clusters, decided),
    }
    undecided = 1 - is_known.mean()
    too_few = disagreement.too_few_for_disagreement(decided)
    return {
        "n": len(own),
        "n_clusters": len(decided),
        "undecided": undecided,
        **to_columns(withhold(clusters, undecided, estimates)),
        "too_few": too_few or undecided > MOST_UNDECIDED,
    }


def tabulate_form_rates(decisions: pd.DataFrame) -> Table:
    """Return the refused share of each system in each form, with intervals."""
    rows = []
    for (system, form), own in decisions.groupby(["system", "setting"], sort=True):
        refused = refused_bits(own["decision"])
        known = ~np.isnan(refused)
        clusters = ClusterBootstrap(own["cluster"])
        rate = clusters.share(own["cluster"][known], refused[known] == 1)
        about = {"system": system, "form": form, "n": int(known.sum())}
        rates = withhold(clusters, 1 - known.mean(), {"rate": rate})
        rows.append(about | to_columns(rates))
    return pd.DataFrame(rows)


def tabulate_languages(decisions: pd.DataFrame) -> Table:
    """Measure DR of one request in several languages, of each system and of all.

    Requests are resampled. Over all systems a cluster is one request in one system.

    Returns
    -------
    Table
        systems (a name, or "all"), n, n_clusters, undecided, rate, dr, too_few.
    """
    several = decisions.groupby("cluster")["setting"].transform("nunique") > 1
    asked = decisions[several]
    rows = [{"systems": "all"} | _consistency_over_systems(asked)]
    for system, own in asked.groupby("system", sort=True):
        rows.append({"systems": system} | _consistency(own))
    return pd.DataFrame(rows)


def _consistency_over_systems(asked: pd.DataFrame) -> dict[str, object]:
    """Measure all systems together; requests are resampled.

    DR is the sum over systems of how often two languages are decided differently,
    over the sum of how often two requests to one system are; a system counts as often
    as it has decisions.
    """
    refused = refused_bits(asked["decision"])
    known = ~np.isnan(refused)
    clusters = ClusterBootstrap(asked["cluster"])
    columns: list[np.ndarray] = []
    n_clusters = 0
    for _, own in asked.assign(refused=refused).groupby("system", sort=True):
        decided = disagreement.count_decisions(own["refused"], own["cluster"])
        sums = disagreement.cluster_sums(decided["n"], decided["rejected"])
        columns += clusters.sums(decided["cluster_id"], *sums.T)
        n_clusters += len(decided)
    counted = clusters.sums(asked["cluster"], known, refused == 1)
    estimates = {
        "rate": ratio_of_totals(clusters, (counted[0], counted[1])),
        "dr": clusters.estimate(_pool_disagreement, *columns),
    }
    return {
        "n": len(asked),
        "n_clusters": n_clusters,
        "undecided": 1 - known.mean(),
        **to_columns(estimates),
        "too_few": False,
    }


def _pool_disagreement(*totals: np.ndarray) -> np.ndarray:
    """Return DR over several systems, of each one's totals of `cluster_sums`."""
    by_system = np.stack(totals).reshape(-1, 6, len(totals[0]))
    shares, _, n, r, own_differ, own_pairs = np.moveaxis(by_system, 1, 0)
    differ = (2 * r * (n - r) - own_differ) / (n**2 - own_pairs)
    pooled: np.ndarray = shares.sum(axis=0) / (n * differ).sum(axis=0)
    return pooled


def split_by_tier(totals: np.ndarray) -> dict[str, np.ndarray]:
    """Return `TIER_PARTS` from totals of `tier_sums`, shape (draws, 4 * tiers).

    Two answers differ with a probability that depends on what they share: the prompt,
    the tier, or nothing. Over that of two tiers, chance is the first, prompt the second
    minus the first, tier the rest.
    """
    n, r, same_pairs, same_differ, own_pairs, own_differ = np.moveaxis(
        totals.reshape(len(totals), -1, 6), -1, 0
    )
    all_n, all_r = n.sum(axis=1), r.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = (same_differ / same_pairs).mean(axis=1)
        tier_pairs = n**2 - own_pairs
        tier_differ = 2 * r * (n - r) - own_differ
        within = (tier_differ / tier_pairs).mean(axis=1)
        other_pairs = all_n**2 - (n**2).sum(axis=1)
        other_differ = 2 * all_r * (all_n - all_r) - (2 * r * (n - r)).sum(axis=1)
        other = other_differ / other_pairs
        return {
            "tier": 1 - within / other,
            "prompt": (within - chance) / other,
            "chance": chance / other,
        }


def tier_row(own: pd.DataFrame) -> dict[str, object]:
    """Split the variance of one system's decisions on prompts in tiers.

    Prompts are resampled. The refused shares are those of `tabulate_tier_rates`, and
    `youden` is that of dual use minus that of benign prompts.

    Returns
    -------
    dict
        n, undecided; with intervals the refused shares (benign, borderline, dual_use),
        youden, `TIER_PARTS` and tier_minus_chance, all NaN if more than
        `MOST_UNDECIDED` is undecided; too_few.
    """
    refused = refused_bits(own["decision"])
    known = ~np.isnan(refused)
    undecided = 1 - known.mean()
    clusters = ClusterBootstrap(own["cluster"])
    columns: list[np.ndarray] = []
    shares: dict[str, Estimate] = {}
    for tier in ("benign", "borderline", "dual_use"):
        is_tier = (own["setting"] == tier).to_numpy() & known
        n, r = clusters.sums(own["cluster"], is_tier, is_tier & (refused == 1))
        columns += [n, r, n > 1, _differing(n, r), n * n, 2 * r * (n - r)]
        shares[tier] = _estimate_refused_share(own[own["setting"] == tier])

    def parts(*totals: np.ndarray) -> dict[str, np.ndarray]:
        found = split_by_tier(np.column_stack(totals))
        return found | {"tier_minus_chance": found["tier"] - found["chance"]}

    names = [*TIER_PARTS, "tier_minus_chance"]
    numbers = [np.asarray(column, float) for column in columns]
    estimates = estimate_parts(clusters, parts, names, numbers)
    shares["youden"] = subtract_shares(shares["dual_use"], shares["benign"])
    n_refused = int((refused == 1).sum())
    fewest = min(n_refused, int(known.sum()) - n_refused)
    too_few = fewest < disagreement.MIN_DECISIONS_EACH or undecided > MOST_UNDECIDED
    return {
        "n": len(own),
        "undecided": undecided,
        **to_columns(withhold(clusters, undecided, shares | estimates)),
        "too_few": bool(too_few),
    }


def _differing(n: np.ndarray, r: np.ndarray) -> np.ndarray:
    """Return, for each prompt, the probability that two of its answers differ."""
    pairs = n * (n - 1)
    return np.divide(2 * r * (n - r), pairs, out=np.zeros(len(n)), where=pairs > 0)


def tabulate_tiers(decisions: pd.DataFrame) -> Table:
    """Return `tier_row` of every system of the matched triples."""
    rows: list[dict[str, object]] = []
    for system, own in decisions.groupby("system", sort=True):
        rows.append({"source": "triples", "system": system} | tier_row(own))
    return pd.DataFrame(rows)


def tabulate_tier_rates(decisions: pd.DataFrame) -> Table:
    """Estimate what share of each tier's answers each system refuses.

    Requests of the tier `benign` ask for no harm, so a rate there is a false refusal
    rate. Prompts of one tier are resampled; the interval is Korn and Graubard's
    (`ratios.share_of_totals`), because many rates are close to 0 or 1.

    Parameters
    ----------
    decisions : DataFrame
        The matched triples (`sources.read_recorded_decisions`), or with partial answers
        as answers (`sources.read_partial_as_answered`).

    Returns
    -------
    Table
        source, system, tier; n, answers; n_prompts, those with a decision; undecided,
        the share of answers without one; rate, the refused share of the others, with
        an interval over prompts; too_few: fewer than `MIN_TIER_PROMPTS` prompts, or
        more than `MOST_UNDECIDED` undecided in the tier or in the whole system, which
        then has no rate there.
    """
    rows: list[dict[str, object]] = []
    is_error = decisions["decision"] == "error"
    by_system = is_error.groupby(decisions["system"]).mean()
    for (system, tier), own in decisions.groupby(["system", "setting"], sort=True):
        about = {"source": "triples", "system": system, "tier": tier}
        rows.append(about | _tier_rate(own, by_system[system]))
    return pd.DataFrame(rows)


def _estimate_refused_share(own: pd.DataFrame) -> Estimate:
    """Estimate the refused share of the decided answers in one tier."""
    refused = refused_bits(own["decision"])
    clusters = ClusterBootstrap(own["cluster"])
    sums = clusters.sums(own["cluster"], ~np.isnan(refused), refused == 1)
    return share_of_totals(clusters, (sums[0], sums[1]))


def _tier_rate(own: pd.DataFrame, undecided_of_all: float) -> dict[str, object]:
    """Return a row of `tabulate_tier_rates`, of one system's answers in one tier."""
    refused = refused_bits(own["decision"])
    known = ~np.isnan(refused)
    undecided = 1 - known.mean()
    clusters = ClusterBootstrap(own["cluster"])
    rate = _estimate_refused_share(own)
    most = max(undecided, undecided_of_all)
    n_prompts = int(own["cluster"][known].nunique())
    return {
        "n": len(own),
        "n_prompts": n_prompts,
        "undecided": undecided,
        **to_columns(withhold(clusters, most, {"rate": rate})),
        "too_few": bool(n_prompts < MIN_TIER_PROMPTS or most > MOST_UNDECIDED),
    }
