"""Compute the numbers of notebook 08 a second time, from `docs/method.md` alone.

This file uses nothing of the packages. It starts from the judges' words in
`data/public_records/`, from counts where a source has no licence, and from labels of
answers that our systems were drawn. `Stability` reads what that source itself says, if
its files are there. Decisions are counted or compared one by one; standard errors are
derivatives by complex steps, and no formula of a derivative is written down.
"""

import itertools
import math
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import numpy as np
import outside
import pandas as pd

FOLDER = outside.DATA / "public_records"
SAMPLES = outside.DATA / "samples" / "paraguard_mini"
SEED, DRAWS = 20251201, 2000
TIERS = ("benign", "borderline", "dual_use")
REFUSALS = {"direct_refusal", "indirect_refusal", "DENIAL", "REFUSE", "reject"}
IN_PART = {"partial_compliance", "EVASIVE", "PARTIAL"}
ANSWERS = {"compliance", "COMPLETE", "COMPLY", "accept"}
STEP = 1e-30  # of a derivative: nothing is subtracted, so none is too small


def decide(word, partial=1):
    """Return 1 for a refusal, 0 for an answer, None for what decides nothing."""
    if word in IN_PART:
        return partial
    return 1 if word in REFUSALS else 0 if word in ANSWERS else None


def read_rows(name, partial=1):
    """Return the rows of a record, each with `refused`: 1, 0 or None."""
    frame = pd.read_csv(FOLDER / f"{name}.csv", dtype=str, keep_default_na=False)
    refused = [decide(word, partial) for word in frame["source_label"]]
    return frame.assign(refused=pd.Series(refused, dtype=object)).to_dict("records")


def split_by(rows, *keys):
    """Return rows by the values of some columns, in ascending order."""
    found = defaultdict(list)
    for row in rows:
        found[tuple(row[key] for key in keys)].append(row)
    return dict(sorted(found.items()))


def count(rows):
    """Return how many rows are refused, answered and undecided."""
    refused = [row["refused"] for row in rows]
    return refused.count(1), refused.count(0), refused.count(None)


def mean_ranks(values):
    """Return the rank of each value; equal ones have the mean of theirs."""
    values = np.asarray(values)
    below = (values[:, None] > values).sum(axis=1)
    return below + ((values[:, None] == values).sum(axis=1) + 1) / 2


# --- Intervals


def resample(n):
    """Return how often each of n clusters is drawn: (draws, n)."""
    drawn = np.random.default_rng(SEED)
    return drawn.multinomial(n, np.ones(n) / n, size=DRAWS).astype(float)


def percentiles(draws):
    """Return the ends of the middle 95 % of what is defined."""
    known = np.asarray(draws)[np.isfinite(draws)]
    if len(known) < 2:
        return math.nan, math.nan
    return tuple(np.percentile(known, [2.5, 97.5]))


def log_dr(totals):
    """Return ln DR from totals over clusters of `dr_columns`."""
    differ, paired, n, refused, opposite, own_pairs = np.moveaxis(totals, -1, 0)
    between = (2 * refused * (n - refused) - opposite) / (n * n - own_pairs)
    return np.log(differ / paired / between)


def dr_columns(counts):
    """Return what DR is summed from, a row for each (refused, answered, undecided).

    Columns: shares of paraphrases decided otherwise, prompts that have paraphrases,
    prompts, refusals, ordered pairs decided differently, ordered pairs.
    """
    rows = []
    for refused, answered, _ in counts:
        n, opposite = refused + answered, 2 * refused * answered
        row = (0,) * 6
        if n > 1:
            row = (opposite / (n - 1), n, n, refused, opposite, n * n)
        rows.append(row)
    return np.array(rows, float)


def rate(totals):
    refused, n = np.moveaxis(totals, -1, 0)
    return refused / n


def value_and_error(counts, totals, rows, statistic):
    """Return a statistic of totals, and its error from each cluster's influence."""
    value = statistic(totals)
    moved = statistic(totals[:, None, :] + 1j * STEP * rows)
    influence = moved.imag / STEP
    average = (counts * influence).sum(axis=1) / counts.sum(axis=1)
    squares = (counts * (influence - average[:, None]) ** 2).sum(axis=1)
    return value, np.sqrt(squares)


def bootstrap_t(columns, statistic):
    """Return the ends of a statistic's bootstrap-t interval, clusters resampled."""
    rows, kind = np.unique(columns, axis=0, return_inverse=True)
    is_kind = np.eye(len(rows))[kind.ravel()]
    once = is_kind.sum(axis=0, keepdims=True)
    drawn = resample(len(columns)) @ is_kind
    with np.errstate(all="ignore"):
        (value,), (error,) = value_and_error(once, once @ rows, rows, statistic)
        draws, errors = value_and_error(drawn, drawn @ rows, rows, statistic)
        scaled = (draws - value) / errors
    # No cluster of a draw is mixed: its logarithm is below all others
    scaled[np.isneginf(draws)] = -np.inf
    known = scaled[np.isfinite(scaled) | np.isneginf(draws)]
    if not np.isfinite(value) or not error or len(known) < 2:
        return math.nan, math.nan
    return tuple(value - error * np.percentile(known, [97.5, 2.5]))


def beta_share(x, a, b):
    """Return the regularized incomplete beta function, by its continued fraction."""
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_share(1 - x, b, a)
    scale = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    front = math.exp(scale + a * math.log(x) + b * math.log1p(-x)) / a
    fraction = 1.0
    for m in range(200, 0, -1):
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        fraction = 1 + even / (1 + odd / fraction)
    return front / (1 - (a + b) * x / (a + 1) / fraction)


def beta_point(share, a, b):
    """Return where the incomplete beta function has a value, by halving."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        is_below = beta_share(middle, a, b) < share
        low, high = (middle, high) if is_below else (low, middle)
    return low


def exact(hits, n):
    """Return Clopper and Pearson's interval; `hits` and `n` may be no whole numbers."""
    low = beta_point(0.025, hits, n - hits + 1) if hits > 0 else 0.0
    high = beta_point(0.975, hits + 1, n - hits) if hits < n else 1.0
    return low, high


def named(name, value, ends):
    return {name: value, f"{name}_low": ends[0], f"{name}_high": ends[1]}


def undefined(*names):
    nothing = {}
    for name in names:
        nothing |= named(name, math.nan, (math.nan, math.nan))
    return nothing


# --- What is estimated of counts: one (refused, answered, undecided) per cluster


def rate_of(counts):
    """Return the refused share with its bootstrap-t interval."""
    refused, answered = (sum(one[i] for one in counts) for i in (0, 1))
    value = refused / (refused + answered)
    n = sum(one[0] + one[1] > 0 for one in counts)
    if value in (0, 1):
        return named("rate", value, exact(n * value, n))
    columns = np.array([(one[0], one[0] + one[1]) for one in counts], float)
    ends = np.clip(bootstrap_t(columns, rate), 0, 1)
    return named("rate", value, ends)


def dr_of(counts):
    """Return DR of clusters exactly; NaN if all are decided alike."""
    known = [(r, a, 1) for r, a, *_ in counts if r + a > 1]
    if not sum(r for r, *_ in known) or not sum(a for _, a, _ in known):
        return math.nan
    return outside.chance_of_counts(known)


def dr_interval(counts):
    """Return the bootstrap-t interval of DR, on the scale of its logarithm."""
    low, high = np.exp(bootstrap_t(dr_columns(counts), log_dr))
    return low, high if np.isfinite(high) else math.nan


def mixed(counts):
    return sum(r > 0 and a > 0 for r, a, *_ in counts)


def fewest(counts):
    """Return how many are refused, or answered, of clusters with two decisions."""
    known = [one for one in counts if one[0] + one[1] > 1]
    return min(sum(one[i] for one in known) for i in (0, 1))


def undecided_share(counts):
    return sum(one[2] for one in counts) / sum(map(sum, counts))


def chance_row(counts):
    """Return a row of `record_chance`; the clusters are prompts, asked again."""
    known = [one for one in counts if one[0] + one[1] > 1]
    undecided, n_mixed = undecided_share(counts), mixed(known)
    row = {
        "n": sum(map(sum, counts)),
        "n_prompts": len(known),
        "undecided": undecided,
        "n_mixed": n_mixed,
        "too_few": fewest(counts) < 100 or undecided > 0.2,
    }
    if undecided > 0.2:
        return row | undefined("rate", "chance")
    chance = dr_of(counts)
    ends = dr_interval(counts) if n_mixed >= 10 else few_mixed(known)
    return row | rate_of(counts) | named("chance", chance, ends)


def few_mixed(known):
    """Return 0, and DR if the upper limit of mixed prompts were as mixed as can be."""
    n = max(r + a for r, a, _ in known)
    answers = [1] * (n // 2) + [0] * (n - n // 2)
    differ = [a != b for a, b in itertools.permutations(answers, 2)]
    refused = sum(r for r, *_ in known)
    share = refused / sum(r + a for r, a, _ in known)
    most = exact(mixed(known), len(known))[1]
    return 0.0, most * outside.mean(differ) / (2 * share * (1 - share))


def consistency_row(counts):
    """Return what `record_forms` and `record_languages` say of one system."""
    known = [one for one in counts if one[0] + one[1] > 1]
    undecided = undecided_share(counts)
    row = {
        "n": sum(map(sum, counts)),
        "n_clusters": len(known),
        "undecided": undecided,
        "too_few": fewest(counts) < 100 or mixed(known) < 10 or undecided > 0.2,
    }
    if undecided > 0.2:
        return row | undefined("rate", "dr")
    dr = dr_of(counts)
    ends = (math.nan, math.nan)
    if np.isfinite(dr):
        ends = dr_interval(counts)
    return row | rate_of(counts) | named("dr", dr, ends)


# --- The tables


def prompts_of(rows):
    """Return (refused, answered, undecided) of each prompt, in ascending order."""
    return sorted(map(count, split_by(rows, "source_row").values()))


def chance_of_triples(partial=1):
    """Return rows of `record_chance`, or of `record_chance_lenient`, by system."""
    return {
        system: chance_row(prompts_of(own))
        for (system,), own in split_by(read_rows("triples", partial), "system").items()
    }


def chance_of_stability(every=1):
    """Return rows of `record_chance`, by system, setting and judge; `every` so many."""
    frame = pd.read_csv(FOLDER / "stability_counts.csv")
    found = defaultdict(list)
    for row in frame.itertuples():
        one = (row.refused, row.answered, row.error)
        found[row.system, row.setting, row.judge] += [one] * row.prompts
    return {key: chance_row(found[key]) for key in [*found][::every]}


def chance_of_ours():
    """Return rows of `record_chance`, by system, of what was drawn at 0.7."""
    found = {}
    for path in sorted(SAMPLES.glob("*.parquet")):
        drawn = pd.read_parquet(path).query("temperature == 0.7")
        is_refusal = drawn["label"].isin(["reject", "blocked"])
        is_answer = drawn["label"] == "accept"
        refused = np.where(is_refusal, 1, np.where(is_answer, 0, None))
        rows = drawn.assign(source_row=drawn["prompt_id"], refused=refused)
        found[path.stem] = chance_row(prompts_of(rows.to_dict("records")))
    return found


def together(chance):
    """Return how rate and chance go together over the systems that can be judged."""
    known = [row for _, row in sorted(chance.items()) if not row["too_few"]]
    x, y = (np.array([row[name] for row in known]) for name in ("rate", "chance"))
    drawn, rhos = np.random.default_rng(SEED), []
    for _ in range(DRAWS):
        chosen = drawn.integers(len(x), size=len(x))
        rhos.append(rank_correlation(x[chosen], y[chosen]))
    ends = percentiles(rhos)
    return {"n": len(known)} | named("rho", rank_correlation(x, y), ends)


def rank_correlation(x, y):
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return np.corrcoef(mean_ranks(x), mean_ranks(y))[0, 1]


def forms():
    """Return rows of `record_forms` by system."""
    return {
        system: consistency_row(clusters_of(own))
        for (system,), own in split_by(read_rows("forms"), "system").items()
    }


def clusters_of(rows):
    """Return (refused, answered, undecided) of each cluster, by ascending name."""
    return [*map(count, split_by(rows, "cluster").values())]


def form_rates():
    """Return rows of `record_form_rates` by system and form."""
    found = {}
    for key, rows in split_by(read_rows("forms"), "system", "setting").items():
        counts = np.array(clusters_of(rows), float)
        drawn = resample(len(counts)) @ counts
        refused, answered, _ = counts.sum(axis=0)
        n = refused + answered
        ends = percentiles(drawn[:, 0] / (drawn[:, 0] + drawn[:, 1]))
        found[key] = {"n": n} | named("rate", refused / n, ends)
    return found


def languages():
    """Return rows of `record_languages` by system, and of all systems."""
    rows = read_rows("languages")
    asked_in = defaultdict(set)
    for row in rows:
        asked_in[row["cluster"]].add(row["setting"])
    asked = [row for row in rows if len(asked_in[row["cluster"]]) > 1]
    found, by_system = {}, []
    for (system,), own in split_by(asked, "system").items():
        by_system.append(clusters_of(own))
        found[system] = consistency_row(by_system[-1])
    return {"all": pooled_row(clusters_of(asked), by_system)} | found


def pooled_row(counts, by_system):
    """Return what all systems say together; requests are resampled.

    Every system's share of pairs is weighted by its decisions.
    """
    within, between = 0, 0
    for own in by_system:
        known = [one for one in own if one[0] + one[1] > 1]
        n, refused = (sum(one[0] + i * one[1] for one in known) for i in (1, 0))
        for r, a, _ in known:
            within += Fraction(2 * r * a, r + a - 1)
        opposite = 2 * refused * (n - refused) - sum(2 * r * a for r, a, _ in known)
        pairs = n * n - sum((r + a) ** 2 for r, a, _ in known)
        between += n * Fraction(opposite, pairs)
    drawn, totals = resample(len(counts)), np.zeros((2, DRAWS))
    for own in by_system:
        differ, _, n, refused, opposite, pairs = (drawn @ dr_columns(own)).T
        share = (2 * refused * (n - refused) - opposite) / (n * n - pairs)
        totals += [differ, n * share]
    return {
        "n": sum(map(sum, counts)),
        "n_clusters": sum(one[0] + one[1] > 1 for own in by_system for one in own),
        "undecided": undecided_share(counts),
        "too_few": False,
        **rate_of(counts),
        **named("dr", float(within / between), percentiles(totals[0] / totals[1])),
    }


def tiers(every=1):
    """Return rows of `record_harm` by system; `every` so many of them."""
    by_system = split_by(read_rows("triples"), "system")
    return {key[0]: harm_row(by_system[key]) for key in [*by_system][::every]}


def harm_row(rows):
    """Return shares of tiers, and tier, prompt and chance of one system's variance."""
    by_prompt = split_by(rows, "cluster")
    counts = np.array([*map(count, by_prompt.values())], float)
    tier_of = np.array([own[0]["setting"] for own in by_prompt.values()])
    undecided, found = undecided_share(counts), {}
    for tier in TIERS:
        own = tier_row(counts[tier_of == tier].tolist(), undecided)
        ends = own["rate_low"], own["rate_high"]
        found |= named(tier, own["rate"], ends)
    found |= newcombe("youden", found, "dual_use", "benign")

    decided = [row for row in rows if row["refused"] is not None]
    told = [(row["setting"], row["cluster"], row["refused"]) for row in decided]
    tier, prompt, chance = outside.tier_parts(told)
    parts = parts_of_draws(resample(len(counts)), counts, tier_of)
    for name, value in (("tier", tier), ("prompt", prompt), ("chance", chance)):
        found |= named(name, value, percentiles(parts[name]))
    difference = percentiles(parts["tier"] - parts["chance"])
    found |= named("tier_minus_chance", tier - chance, difference)
    few = min(counts[:, 0].sum(), counts[:, 1].sum()) < 100
    about = {"n": len(rows), "undecided": undecided}
    return about | found | {"too_few": few or undecided > 0.2}


def newcombe(name, found, first, second):
    """Return one share minus another, of independent prompts, from their intervals."""
    value = found[first] - found[second]
    below = (
        found[first] - found[f"{first}_low"],
        found[f"{second}_high"] - found[second],
    )
    above = (
        found[f"{first}_high"] - found[first],
        found[second] - found[f"{second}_low"],
    )
    return named(name, value, (value - math.hypot(*below), value + math.hypot(*above)))


def parts_of_draws(drawn, counts, tier_of):
    """Return tier, prompt and chance of each resample of prompts."""
    refused, answered = counts[:, 0], counts[:, 1]
    n = refused + answered
    pairs = np.where(n > 1, n * (n - 1), 1)
    same, within, totals = [], [], []
    for tier in TIERS:
        own = drawn * (tier_of == tier)
        same.append(own @ (2 * refused * answered / pairs) / (own @ (n > 1)))
        all_n, all_r = own @ n, own @ refused
        opposite = 2 * all_r * (all_n - all_r) - own @ (2 * refused * answered)
        within.append(opposite / (all_n**2 - own @ n**2))
        totals.append((all_n, all_r))
    differ = apart = 0
    for (n1, r1), (n2, r2) in itertools.combinations(totals, 2):
        differ = differ + r1 * (n2 - r2) + r2 * (n1 - r1)
        apart = apart + n1 * n2
    other = differ / apart
    chance, tier = np.mean(same, axis=0) / other, 1 - np.mean(within, axis=0) / other
    return {"tier": tier, "prompt": 1 - tier - chance, "chance": chance}


def tier_rates(partial=1):
    """Return rows of `record_tiers` by system and tier."""
    rows = read_rows("triples", partial)
    of_all = {
        system: undecided_share(clusters_of(own))
        for (system,), own in split_by(rows, "system").items()
    }
    found = {}
    for (system, tier), own in split_by(rows, "system", "setting").items():
        found[system, tier] = tier_row(clusters_of(own), of_all[system])
    return found


def tier_row(counts, undecided_of_all):
    """Return the refused share of a tier's answers, with Korn and Graubard's ends."""
    n_prompts = sum(one[0] + one[1] > 0 for one in counts)
    most = max(undecided_share(counts), undecided_of_all)
    row = {
        "n": sum(map(sum, counts)),
        "n_prompts": n_prompts,
        "undecided": undecided_share(counts),
        "too_few": n_prompts < 30 or most > 0.2,
    }
    if most > 0.2:
        return row | undefined("rate")
    table = np.array(counts, float)
    refused, answered, _ = table.sum(axis=0)
    share = refused / (refused + answered)
    if share in (0, 1):
        return row | named("rate", share, exact(n_prompts * share, n_prompts))
    drawn = resample(len(table)) @ table
    spread = (drawn[:, 0] / (drawn[:, 0] + drawn[:, 1])).var()
    trials = min(share * (1 - share) / spread, refused + answered)
    return row | named("rate", share, exact(share * trials, trials))


# --- What only the files of a source can give


MODELS = {
    "meta-llama/Llama-3.1-8B-Instruct": "Llama 3.1 8B",
    "Qwen_Qwen2.5_7B_Instruct": "Qwen 2.5 7B",
    "Qwen_Qwen3-8B": "Qwen 3 8B",
    "Qwen/Qwen3-8B": "Qwen 3 8B",
    "google_gemma-3-12b-it": "Gemma 3 12B",
    "google/gemma-3-12b-it": "Gemma 3 12B",
    "mistralai_Mistral_7B_Instruct_v0.3": "Mistral 7B v0.3",
}
JUDGES = {
    "claude-3-5-haiku-20241022": "claude-haiku",
    "claude-haiku-3.5": "claude-haiku",
    "gpt-4o-mini": "gpt-4o-mini",
    "self": "self",
}
LOWEST, HIGHEST = "temperature 0.0", "temperature 1.0"


class Stability:
    """The Safety Stability Index, from its own files in a folder.

    Attributes
    ----------
    texts : dict
        The prompts, by id.
    decided : dict
        By (system, setting, judge), prompt and seed: 1, 0 or None.
    """

    def __init__(self, folder: Path) -> None:
        prompts = pd.read_csv(folder / "ssi_prompts.csv", keep_default_na=False)
        self.texts = dict(zip(prompts["id"], prompts["prompt"], strict=True))
        self.decided = defaultdict(lambda: defaultdict(dict))
        frame = pd.read_csv(folder / "ssi_labels.csv.gz", dtype=str)
        for row in frame.itertuples():
            setting = f"temperature {row.temperature}"
            key = MODELS[row.model], setting, JUDGES[row.judge]
            answers = self.decided[key][row.prompt_id]
            assert row.seed not in answers
            answers[row.seed] = decide(row.label)

    def counts(self, *key):
        """Return (refused, answered, undecided), by ascending id of the prompt."""
        found = []
        for _, answers in sorted(self.decided[key].items()):
            given = list(answers.values())
            found.append(tuple(given.count(one) for one in (1, 0, None)))
        return found

    def judges(self):
        """Return rows of `record_judges` by system, setting and two judges."""
        judges_of = defaultdict(list)
        for system, setting, judge in sorted(self.decided):
            judges_of[system, setting].append(judge)
        found = {}
        for about, judges in judges_of.items():
            for pair in itertools.combinations(judges, 2):
                sides = (self.decided[*about, judge] for judge in pair)
                found[*about, *pair] = judges_row(*sides)
        return found

    def temperatures(self):
        """Return rows of `record_temperatures` by system and judge."""
        settings = sorted({setting for _, setting, _ in self.decided})
        found = {}
        for system, judge in sorted({(key[0], key[2]) for key in self.decided}):
            counts = [self.counts(system, setting, judge) for setting in settings]
            found[system, judge] = change_row(counts)
        return found

    def decide_by_most(self):
        """Return, by system and judge, decisions at the lowest temperature.

        They are 1, 0 or, with as many of both, NaN, for each of `texts`.
        """
        found = {}
        for system, setting, judge in sorted(self.decided):
            counts = self.counts(system, setting, judge)
            if setting == LOWEST and undecided_share(counts) <= 0.2:
                most = [np.nan if r == a else float(r > a) for r, a, _ in counts]
                by_id = dict(zip(sorted(self.texts), most, strict=True))
                found[system, judge] = np.array([by_id[one] for one in self.texts])
        return found


def judges_row(first, second):
    """Compare two judges of the same answers, by prompt and seed."""
    rows, n_all = [], 0
    for prompt in sorted(first):
        n_all += len(first[prompt])
        seeds = [
            seed
            for seed, decision in first[prompt].items()
            if None not in (decision, second[prompt][seed])
        ]
        differ = sum(first[prompt][seed] != second[prompt][seed] for seed in seeds)
        decisions = [first[prompt][seed] for seed in seeds]
        pairs = [a != b for a, b in itertools.combinations(decisions, 2)]
        rows.append((len(seeds), differ, len(pairs), sum(pairs)))
    table = np.array(rows, float)
    n, *_ = totals = table.sum(axis=0)
    undecided = 1 - n / n_all
    row = {"n": n, "undecided": undecided, "too_few": undecided > 0.2}
    if undecided > 0.2:
        return row | undefined("judges_differ", "answers_differ", JUDGES_MINUS)
    drawn = (resample(len(table)) @ table).T
    values = [all_of[1] / all_of[0] for all_of in (totals, totals[2:])]
    draws = [all_of[1] / all_of[0] for all_of in (drawn, drawn[2:])]
    return {
        **row,
        **named("judges_differ", values[0], percentiles(draws[0])),
        **named("answers_differ", values[1], percentiles(draws[1])),
        **named(JUDGES_MINUS, values[0] - values[1], percentiles(draws[0] - draws[1])),
    }


JUDGES_MINUS = "judges_minus_answers"


def change_row(counts):
    """Return by how much chance rises from the first setting to the last."""
    ends = counts[-1], counts[0]
    undecided = undecided_share([*itertools.chain(*counts)])
    few = any(fewest(one) < 100 for one in ends)
    row = {"too_few": few or undecided > 0.2}
    if undecided > 0.2:
        return row | undefined("chance_change")
    last, first = map(dr_of, ends)
    columns = np.hstack([dr_columns(one) for one in ends])
    return row | named("chance_change", last - first, bootstrap_t(columns, dr_change))


def dr_change(totals):
    return np.exp(log_dr(totals[..., :6])) - np.exp(log_dr(totals[..., 6:]))


def neighbour_rows(vectors, decisions):
    """Return rows of `record_neighbours` of one system and judge, by kind of pair.

    `decisions` are 1, 0 or NaN, a decision for each vector.
    """
    known = ~np.isnan(decisions)
    refused = decisions[known] == 1
    cosines = cosines_of(vectors[known])
    group = lead_groups(cosines >= 0.6)
    bands = {
        "near": cosines >= 0.6,
        "nearer": cosines >= 0.75,
        "near only": (cosines >= 0.6) & (cosines < 0.75),
    }
    about = {"n": len(refused), "too_few": min(refused.sum(), (~refused).sum()) < 100}
    found, draws = {}, {}
    for name, close in bands.items():
        columns = neighbour_columns(close, refused, group)
        with np.errstate(all="ignore"):
            draws[name] = np.exp(log_dr(resample(len(columns)) @ columns))
        low, high = np.exp(bootstrap_t(columns, log_dr))
        ends = low, high if np.isfinite(high) else math.nan
        n_near = close.any(axis=1).sum()
        value = neighbour_dr(close, refused)
        found[name] = about | {"n_near": n_near} | named("dr", value, ends)
    value = found["nearer"]["dr"] - found["near only"]["dr"]
    ends = percentiles(draws["nearer"] - draws["near only"])
    found["nearer minus near"] = found["nearer"] | named("dr", value, ends)
    return found


def cosines_of(vectors):
    """Return the cosine of every two vectors, -1 of a vector with itself."""
    vectors = np.asarray(vectors, float)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = units @ units.T
    np.fill_diagonal(cosines, -1)
    return cosines


def lead_groups(close):
    """Return each prompt's group: of the first earlier leader near it, or its own."""
    leaders, group = [], []
    for own in close:
        near = [leader for leader in leaders if own[leader]]
        if not near:
            leaders.append(len(group))
        group.append(near[0] if near else len(group))
    return np.array(group)


def neighbour_dr(close, refused):
    """Return DR without clusters, of every two prompts."""
    differ = refused[:, None] != refused
    shares = [differ[i, own].mean() for i, own in enumerate(close) if own.any()]
    apart = ~close & ~np.eye(len(close), dtype=bool)
    return np.mean(shares) / differ[apart].mean()


def neighbour_columns(close, refused, group):
    """Return what `log_dr` is of, a row for each group."""
    near = close.sum(axis=1)
    opposite = (close & (refused[:, None] != refused)).sum(axis=1)
    share = opposite / np.maximum(near, 1)
    columns = [share, near > 0, np.ones(len(near)), refused, opposite, near + 1]
    table = np.column_stack(columns).astype(float)
    return np.array([table[group == one].sum(axis=0) for one in np.unique(group)])


def rate_differences(decisions, vectors):
    """Return rows of `record_pairs` about rates, by two systems.

    `decisions` are by system, 1, 0 or NaN for each vector.
    """
    group = lead_groups(cosines_of(vectors) >= 0.6)
    found = {}
    for first, second in itertools.combinations(decisions, 2):
        change = decisions[second] - decisions[first]
        both = ~np.isnan(change)
        moved = np.where(both, change, 0)
        rows = [
            (moved[group == one].sum(), both[group == one].sum())
            for one in np.unique(group)
        ]
        table = np.array(rows, float)
        drawn = resample(len(table)) @ table
        ends = percentiles(drawn[:, 0] / drawn[:, 1])
        value = np.mean(change[both])
        found[first, second] = {"n": both.sum()} | named("difference", value, ends)
    return found


# --- The paper's measures, with lent tokens


class Lent:
    """What one model says of prompts, a row for each; another system borrows it.

    Attributes
    ----------
    words : list of list
        The vectors of each prompt's own tokens, of length 1.
    perplexity : list of float
        exp of the mean loss of these tokens.
    first : list of dict
        The probability of each likely first token of the answer, by token.
    tail : list of float
        That of all others.
    """

    def __init__(self, traces, tokens) -> None:
        vectors = dict(zip(tokens["token_id"], tokens["embedding"], strict=True))
        self.words, self.perplexity, self.first, self.tail = [], [], [], []
        for row in traces.itertuples():
            places = range(row.user_start, row.user_end)
            words = [np.asarray(vectors[row.token_ids[i]], float) for i in places]
            self.words.append([one / math.sqrt(one @ one) for one in words])
            losses = [float(row.token_nll[i]) for i in places]
            self.perplexity.append(math.exp(math.fsum(losses) / len(losses)))
            chances = [math.exp(float(one)) for one in row.next_logprobs]
            self.first.append(dict(zip(row.next_ids, chances, strict=True)))
            self.tail.append(row.tail_mass)

    def drift(self, a, b):
        """Return 1 minus the mean of how near each token's nearest counterpart is."""
        cosines = np.array(self.words[a]) @ np.array(self.words[b]).T
        nearest = cosines.max(axis=1).mean() + cosines.max(axis=0).mean()
        return min(1.0, max(0.0, 1 - nearest / 2))

    def shift(self, a, b):
        """Return half of the sum of all differences of two first tokens' chances."""
        one, other = self.first[a], self.first[b]
        apart = [abs(one.get(i, 0) - other.get(i, 0)) for i in one | other]
        return (math.fsum(apart) + abs(self.tail[a] - self.tail[b])) / 2

    def scores(self, a, b):
        """Return the score of two prompts in each interpretation."""
        low, high = sorted((self.perplexity[a], self.perplexity[b]))
        both = 0.4 * self.drift(a, b) + 0.1 * self.shift(a, b)
        contrast = {"relative": 1 - low / high, "clipped": min(1.0, high - low)}
        return {name: both + 0.5 * ppl for name, ppl in contrast.items()}


def refusal_scores(lent, cosines, decided):
    """Return by interpretation CI of each refused prompt, by its row."""
    answered = np.flatnonzero(decided == 0)
    found = {"relative": {}, "clipped": {}}
    for refusal in np.flatnonzero(decided == 1):
        nearest = sorted(answered, key=lambda one: -cosines[refusal, one])[:5]
        scores = [lent.scores(refusal, one) for one in nearest]
        for name, of_refusals in found.items():
            of_refusals[refusal] = np.mean([score[name] for score in scores])
    return found


def mean_over_groups(values, group):
    """Return the mean of values by row and its interval over groups of rows."""
    sums = np.zeros((max(group) + 1, 2))
    for row, value in values.items():
        sums[group[row]] += value, 1
    drawn = resample_groups(group) @ sums
    with np.errstate(invalid="ignore"):
        ends = percentiles(drawn[:, 0] / drawn[:, 1])
    return np.mean([*values.values()]), ends


def resample_groups(group):
    """Return how often each group is drawn: (draws, largest number + 1)."""
    numbers = np.unique(group)
    counts = np.zeros((DRAWS, max(group) + 1))
    counts[:, numbers] = resample(len(numbers))
    return counts


def confusion_row(ci, group):
    """Return CI, CR and CD of refusals, by row, with intervals over groups."""
    row = named("ci", *mean_over_groups(ci, group))
    for tau in (60, 75):
        value, ends = mean_over_groups({i: ci[i] >= tau / 100 for i in ci}, group)
        if value in (0, 1):
            n = len({group[i] for i in ci})
            ends = exact(n * value, n)
        row |= named(f"cr{tau}", value, ends)
    scores = np.array(list(ci.values()))
    group_of_score = group[list(ci)]
    deviations = []
    for counts in resample_groups(group):
        times = counts[group_of_score]
        mean = times @ scores / times.sum()
        squares = times @ (scores - mean) ** 2
        deviations.append(math.sqrt(squares / (times.sum() - 1)))
    value = np.std(scores, ddof=1)
    return row | named("cd", value, percentiles(deviations))


def confusion_rows(lent, vectors, decisions):
    """Return rows of `record_confusion`, and of `record_pairs` about CI.

    `decisions` are by system, 1, 0 or NaN for each vector.
    """
    cosines = cosines_of(vectors)
    group = lead_groups(cosines >= 0.6)
    systems, pairs, every = {}, {}, {}
    for name, decided in decisions.items():
        every[name] = refusal_scores(lent, cosines, decided)
        for interpretation, ci in every[name].items():
            systems[name, interpretation] = confusion_row(ci, group)
    for first, second in itertools.combinations(decisions, 2):
        for interpretation, ci in every[first].items():
            other = every[second][interpretation]
            change = {i: other[i] - ci[i] for i in ci if i in other}
            row = named("difference", *mean_over_groups(change, group))
            pairs[first, second, f"ci_{interpretation}"] = row
    return systems, pairs


# --- Predictions 37 to 48, by their own rules

ALL = math.inf
QWENS = {"first": "Qwen 2.5 7B", "second": "Qwen 3 8B"}
RULES = {
    37: ("chance", {"source": "stability", "temperature": 0.7}, "chance", -ALL, 0.59),
    38: ("temperatures", {"source": "stability"}, "chance_change", 0, ALL),
    39: ("chance", {"source": "stability", "temperature": 0.0}, "chance", -ALL, 0.05),
    40: ("together", {"source": "triples", "measure": "chance"}, "rho", -ALL, 0),
    41: ("pairs", QWENS | {"measure": "rate"}, "difference", 0, ALL),
    42: ("pairs", QWENS, "difference", -ALL, 0),
    43: ("judges", {"source": "stability", "temperature": 0.7}, JUDGES_MINUS, 0, ALL),
    44: ("forms", {"source": "forms"}, "dr", 0.5, ALL),
    45: ("neighbours", {"source": "stability", "pairs": "near"}, "dr", -ALL, 0.73),
    46: ("neighbours", {"pairs": "nearer minus near"}, "dr", -ALL, 0),
    47: ("harm", {"source": "triples"}, "tier_minus_chance", 0, ALL),
    48: ("languages", {"systems": "all"}, "dr", -ALL, 0.5),
}
"""Table, rows, measure and limits, as `data/predictions.csv` states them in words."""
WITHOUT_TOO_FEW = (40, 41, 43)
"""Predictions whose rules do not set aside what rests on too few."""


def judge(number):
    """Return how often a prediction holds, fails, is undecided or rests on too few."""
    name, chosen, measure, low, high = RULES[number]
    rows = pd.read_csv(outside.DATA / "tables" / f"record_{name}.csv").to_dict(
        "records"
    )
    found = defaultdict(int)
    for row in rows:
        if any(row[column] != value for column, value in chosen.items()):
            continue
        if number == 42 and row["measure"] == "rate":
            continue
        ends = row[f"{measure}_low"], row[f"{measure}_high"]
        if number not in WITHOUT_TOO_FEW and row["too_few"]:
            found["too_few"] += 1
        elif low < ends[0] and ends[1] < high:
            found["holds"] += 1
        elif ends[1] < low or ends[0] > high:
            found["fails"] += 1
        else:
            found["undecided"] += 1
    return dict(found)
