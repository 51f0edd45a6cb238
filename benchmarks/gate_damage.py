"""Does a gate pass a log whose decisions are lost? Logs with known truth, damaged.

`python benchmarks/gate_damage.py [LOGS]` writes `benchmarks/gate_damage.csv`. Each log
is drawn so that it is clearly worse than the limit, or than its baseline, and then
damaged as logs are: answers become errors, above all refusals; rows, clusters or a
system vanish; rows are written again; texts are run again, and runs are lost; harmless
requests are marked as harmful. For each damage and each gate: how often it says which
verdict of the whole log, and of the damaged one. A gate that passes (not worse) must
not do so because of the damage.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import hashlib
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from paraguard_tools import Decisions, audit, compare
from paraguard_tools.logs import files
from paraguard_tools.logs.gate import judge_audit
from paraguard_utils import paths, stores
from paraguard_utils.errors import DataError

N_RESAMPLES = 60
PART = 50  # logs whose verdicts are kept together
GATES = ("frr by a limit", "dr by a limit", "frr by a baseline", "dr by a baseline")
LIMITS = {"frr": 0.25, "dr": 0.4}
MARGIN = 0.05


def draw_log(rng, clusters, rate, ratio, systems):
    """Draw decisions of systems; 1 - ratio is the correlation inside clusters."""
    parts = []
    strength = ratio / (1 - ratio)
    for system in systems:
        p = rng.beta(rate * strength, (1 - rate) * strength, clusters)
        refused = rng.random((clusters, 6)) < p[:, None]
        cluster, place = np.divmod(np.arange(clusters * 6), 6)
        part = pd.DataFrame({"cluster": [f"c{i}" for i in cluster], "system": system})
        part["text"] = [f"w {a} {b}" for a, b in zip(cluster, place, strict=True)]
        part["label"] = np.where(refused.ravel(), "reject", "accept")
        parts.append(part)
    return pd.concat(parts, ignore_index=True).assign(harmful=False)


def lose_some(rng, rows, share):
    """Return which rows are lost: refusals ten times as often as answers."""
    weight = np.where(rows["label"] == "reject", 1.0, 0.1)
    return rng.random(len(rows)) < weight * share


def damage_errors(rng, rows):
    """Turn decisions into errors, from few to nearly all."""
    lost = lose_some(rng, rows, rng.choice([0.02, 0.1, 0.5, 1.0]))
    return rows.assign(label=rows["label"].where(~lost, "unparsed"))


def damage_refusals(rng, rows):
    """Lose every refusal, as if it had timed out."""
    lost = rows["label"] == "reject"
    return rows.assign(label=rows["label"].where(~lost, "unparsed"))


def damage_foreign(rng, rows):
    """Leave whole clusters undecided, as answers in a language that nobody reads."""
    lost = rows["cluster"].isin(pick_clusters(rng, rows, rng.choice([0.03, 0.2, 0.6])))
    return rows.assign(label=rows["label"].where(~lost, "unparsed"))


def damage_rows(rng, rows):
    """Leave out rows, above all refusals."""
    return rows[~lose_some(rng, rows, rng.choice([0.02, 0.1, 0.5, 1.0]))]


def damage_clusters(rng, rows):
    """Leave out clusters, those with the most refusals first."""
    refused = rows["label"].eq("reject").groupby(rows["cluster"]).mean()
    worst = refused.sort_values(ascending=False).index
    share = rng.choice([0.1, 0.3, 0.7])
    return rows[~rows["cluster"].isin(worst[: int(share * len(worst))])]


def damage_system(rng, rows):
    """Lose a system."""
    return rows[rows["system"] != rng.choice(["one", "two"])]


def damage_harmful(rng, rows):
    """Mark refused requests as harmful."""
    lost = lose_some(rng, rows, rng.choice([0.1, 0.5, 1.0]))
    return rows.assign(harmful=lost)


def damage_doubles(rng, rows):
    """Write answers again and again, and refusals once."""
    again = rows[(rows["label"] == "accept") & (rng.random(len(rows)) < 0.5)]
    return pd.concat([rows, *[again] * int(rng.choice([1, 5, 20]))])


def damage_runs(rng, rows):
    """Run each text three times, and lose runs, above all those that refuse."""
    runs = pd.concat([rows.assign(repeat=run) for run in range(3)])
    lost = lose_some(rng, runs, rng.choice([0.02, 0.1, 0.5, 1.0]))
    return runs.assign(label=runs["label"].where(~lost, "unparsed"))


def pick_clusters(rng, rows, share):
    """Draw a share of the clusters."""
    names = rows["cluster"].unique()
    return rng.choice(names, int(np.ceil(share * len(names))), replace=False)


DAMAGES = {
    "errors": damage_errors,
    "refusals time out": damage_refusals,
    "foreign answers": damage_foreign,
    "rows missing": damage_rows,
    "clusters gone": damage_clusters,
    "a system gone": damage_system,
    "marked as harmful": damage_harmful,
    "doubles": damage_doubles,
    "runs that fail": damage_runs,
}
BY_BASELINE_ONLY = (
    "rows missing",
    "clusters gone",
    "a system gone",
    "marked as harmful",
)
"""Nobody can see these in one log alone: what it never had, it does not miss."""

_PLACE = {name: place for place, name in enumerate(("not worse", "unknown", "worse"))}


def find_verdict(before, rows, gate):
    """Return the worst verdict of a gate: of a log by itself, or by one before it."""
    measure = gate.split()[0]
    try:
        decisions = Decisions.from_frame(rows)
        if gate.endswith("limit"):
            table = audit(decisions, n_resamples=N_RESAMPLES).table
            findings = judge_audit(table, measure, LIMITS[measure])
        else:
            table = compare(before, decisions, n_resamples=N_RESAMPLES)
            findings = judge_audit(table, measure, MARGIN)
    except DataError:
        return "unknown"
    verdicts = {found.verdict for found in findings}
    if "worse" in verdicts:
        return "worse"
    return "not worse" if verdicts == {"not worse"} else "unknown"


def judge_damaged(number):
    """Draw a log, damage it, and return the verdicts before and after."""
    rng = np.random.default_rng([7, number])
    clusters = int(rng.choice([15, 50, 100]))
    damage = list(DAMAGES)[number % len(DAMAGES)]
    gate = str(rng.choice(GATES))
    if gate.endswith("limit") and damage in BY_BASELINE_ONLY:
        gate = gate.replace("a limit", "a baseline")
    # More than twice as often as the limit, and as before
    systems = ["one", "two"] if damage == "a system gone" else ["one"]
    before = Decisions.from_frame(draw_log(rng, clusters, 0.25, 0.3, systems))
    worse = draw_log(rng, clusters, 0.6, 0.85, systems)
    damaged = DAMAGES[damage](rng, worse)
    row = {"damage": damage, "gate": gate}
    row["whole"] = find_verdict(before, worse, gate)
    row["damaged"] = find_verdict(before, damaged, gate)
    return row


def digest_code():
    """Return a digest of all code that a verdict may depend on."""
    files = [*sorted(paths.ROOT.glob("paraguard_*/**/*.py")), Path(__file__)]
    content = hashlib.sha256()
    for file in files:
        content.update(file.read_bytes())
    return content.hexdigest()[:12]


def judge_part(folder, first):
    """Judge `PART` logs from `first` on, unless an earlier run has; return their rows.

    A part is written whole: a run that is interrupted resumes with the same code.
    """
    file = folder / f"from-{first}.csv"
    if not file.is_file():
        rows = [judge_damaged(number) for number in range(first, first + PART)]
        files.write_whole_text(file, pd.DataFrame(rows).to_csv(index=False))
        print(file.name, flush=True)
    return pd.read_csv(file)


def count_verdicts(logs):
    """Return a row for each damage and gate, with how often each verdict was said."""
    folder = paths.RESULTS / "gate_damage" / digest_code()
    with ProcessPoolExecutor(2) as pool:
        parts = pool.map(partial(judge_part, folder), range(0, logs, PART))
        rows = pd.concat(parts, ignore_index=True).head(logs)
    table = []
    for (damage, gate), own in rows.groupby(["damage", "gate"], sort=False):
        row = {"damage": damage, "gate": gate, "logs": len(own)}
        for state in ("whole", "damaged"):
            for verdict in _PLACE:
                name = f"{state}_{verdict.replace(' ', '_')}"
                row[name] = int((own[state] == verdict).sum())
        table.append(row)
    return pd.DataFrame(table)


def main(logs=10_000):
    """Judge the logs and write the table."""
    table = count_verdicts(logs)
    stores.write_file(
        paths.BENCHMARKS_FOLDER / "gate_damage.csv", table, "tables", {"logs": logs}
    )
    print(table.to_string(index=False))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
