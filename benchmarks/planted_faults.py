"""Would the tests see a fault? Eighty-two are planted, one at a time, in a copy of the project.

`.venv/bin/python benchmarks/planted_faults.py` takes about half an hour on two cores. For each fault the tests of its
room run until one fails; where none does, all fast tests run. The table says which test caught it.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from paraguard_utils import paths, stores

ROOMS = {
    "core/signals.py": "signals brute_force",
    "core/confusion.py": "confusion brute_force",
    "core/vectors.py": "signals brute_force",
    "analysis/confusion.py": "confusion brute_force",
    "analysis/chance.py": "chance brute_force",
    "models/trace_store.py": "trace_store faults",
    "models/local.py": "trace_store shards faults",
    "models/prompting.py": "trace_store faults",
    "stores.py": "stores trace_store",
    "labels/refusals.py": "refusals project",
    "corpus/gates.py": "gates corpus",
    "text.py": "gates corpus",
    "core/estimates.py": "estimates disagreement",
    "core/disagreement.py": "disagreement variance",
    "analysis/variance.py": "variance",
    "analysis/validity.py": "validity",
    "analysis/veto.py": "veto",
    "core/label_noise.py": "readings",
    "analysis/wording.py": "wording",
    "analysis/rephrasing.py": "rephrasing",
    "core/wording.py": "wording",
    "core/rephrasing.py": "rephrasing",
    "core/words.py": "gates corpus",
    "analysis/triggers.py": "triggers",
    "remedies/effects.py": "remedies predictions",
}
"""The tests that are asked first, by file."""


class Fault(NamedTuple):
    """A text of a file below `paraguard_utils/`, which stands there once, and what takes its place."""

    file: str
    right: str
    wrong: str


FAULTS = [
    Fault("core/signals.py", "np.array([np.mean(np.asarray(own", "np.array([np.median(np.asarray(own"),
    Fault(
        "core/signals.py",
        "return 1.0 - np.minimum(a, b) / np.maximum(a, b)",
        "return np.maximum(a, b) / np.minimum(a, b) - 1.0",
    ),
    Fault(
        "core/signals.py",
        "cosines.max(axis=1).mean() + cosines.max(axis=0).mean()",
        "cosines.max(axis=1).mean() + cosines.max(axis=1).mean()",
    ),
    Fault("core/signals.py", "np.abs(tails[a] - tails[b])", "0 * np.abs(tails[a] - tails[b])"),
    Fault("core/vectors.py", "np.lexsort((tie, -cosines.round(12)))", "np.lexsort((-tie, -cosines.round(12)))"),
    Fault("analysis/confusion.py", 'near["similarity"] >= theta', 'near["similarity"] > theta'),
    Fault("analysis/confusion.py", 'every["relative"].std(ddof=0)', 'every["relative"].std(ddof=1)'),
    Fault("core/confusion.py", "clusters.share(cluster_ids, ci >= tau)", "clusters.share(cluster_ids, ci > tau)"),
    Fault(
        "analysis/confusion.py",
        '(scores["label"] == "reject") & scores["ci"].notna()',
        'scores["ci"].notna()',
    ),
    Fault("core/disagreement.py", ">= least].reset_index(drop=True)", ">= 1].reset_index(drop=True)"),
    Fault("analysis/chance.py", "n_r > 0) & (n_a > 0)", "n_r > 0) & (n_a >= 0)"),
    Fault("analysis/chance.py", 'side="right"), len(ends) + 1', 'side="left"), len(ends) + 1'),
    Fault(
        "analysis/chance.py",
        "weight = 1.0 / np.bincount(group, minlength=2 * n)[group]",
        "weight = np.ones(len(group))",
    ),
    Fault("analysis/chance.py", "near &= np.cumsum(near, axis=1) <= k", "near &= np.cumsum(near, axis=1) < k"),
    Fault(
        "analysis/chance.py",
        "(1 + np.count_nonzero(null >= value - 1e-12)) / (1 + len(null))",
        "np.count_nonzero(null >= value - 1e-12) / len(null)",
    ),
    Fault("models/trace_store.py", 'return rows[rows["prompt_id"].map(keys).eq(rows["key"])]', "return rows[:]"),
    Fault("models/prompting.py", "self._decoding_key, self.dtype)", "self._decoding_key)"),
    Fault("stores.py", "max(taken, default=-1) + 1", "max(taken, default=0)"),
    Fault(
        "models/local.py",
        "return kept + split_into_batches(rest, size, more), ",
        "return split_into_batches([request for group in open_ for request in group], size, more), ",
    ),
    Fault("models/local.py", 'f"{opened[1]}\\n" + rows["response"]', 'rows["response"]'),
    Fault("labels/refusals.py", 'reason == "error" or not opening', 'reason == "error"'),
    Fault("labels/refusals.py", "if not unless or not re2.search(unless, opening))", "if rule)"),
    Fault("labels/refusals.py", "Match(opening) or ())", "Match(opening) or (), reverse=True)"),
    Fault("labels/refusals.py", '(r"n\'t\\b", " not")', '(r"n\'t\\b", "n")'),
    Fault("labels/refusals.py", "RAW_CHARS = 2 * CUE_CHARS", "RAW_CHARS = CUE_CHARS // 4"),
    Fault(
        "corpus/gates.py",
        'candidates["similarity"] < gates.min_similarity',
        'candidates["similarity"] <= gates.min_similarity',
    ),
    Fault("corpus/gates.py", "(label[i] in there, late[i], nearest[i])", "(late[i], nearest[i])"),
    Fault("corpus/gates.py", "nearest = overlap[kept].max(axis=0)", "nearest = overlap[kept].min(axis=0)"),
    Fault("core/words.py", "/ len(a | b)", "/ (len(a) + len(b))"),
    Fault(
        "corpus/gates.py",
        "framed[kept].sum() >= gates.max_framed",
        "framed[kept].sum() > gates.max_framed",
    ),
    Fault("core/estimates.py", "np.percentile(known, [97.5, 2.5])", "np.percentile(known, [2.5, 97.5])"),
    Fault("core/estimates.py", "((slopes @ columns.T) ** 2 * weights)", "((slopes @ columns.T) ** 2)"),
    Fault("core/estimates.py", "np.stack([-hits / n**2, 1 / n], axis=-1)", "np.stack([hits / n**2, 1 / n], axis=-1)"),
    Fault(
        "core/estimates.py",
        "there = int(np.count_nonzero(sides[0][0]))",
        "there = int(sides[0][0].sum())",
    ),
    Fault("core/estimates.py", "int(hits.sum()), len(hits)", "int(hits.sum()), len(self.codes)"),
    Fault("core/estimates.py", "n = len(set(cluster_ids))", "n = len(hits)"),
    Fault("core/disagreement.py", "np.stack([opposite / (n - 1), n", "np.stack([opposite / n, n"),
    Fault(
        "core/disagreement.py",
        '/ (there["n"].to_numpy() - 1)',
        '/ there["n"].to_numpy()',
    ),
    Fault("core/disagreement.py", "(4 * r - 2 * n) / different", "(2 * n - 4 * r) / different"),
    Fault("core/disagreement.py", "drawn <= observed + 1e-12", "drawn >= observed - 1e-12"),
    Fault("core/disagreement.py", "bool(min(refused, total - refused) < MIN_DECISIONS", "bool(refused < MIN_DECISIONS"),
    Fault("analysis/variance.py", "(within - same + same * inverse / n)", "(within - same)"),
    Fault("analysis/variance.py", "fit(x[~out], y[~out])", "fit(x, y)"),
    Fault("analysis/variance.py", "opposite / (m * (m - 1))", "opposite / (m * m)"),
    Fault("analysis/variance.py", 'decided["size"] >= 2, "mean"', 'decided["size"] >= 1, "mean"'),
    Fault("analysis/variance.py", "1 - ratio[2], 1 - ratio[1]", "1 - ratio[1], 1 - ratio[2]"),
    Fault("analysis/validity.py", '(both["others"] - both["accepted"])', 'both["others"]'),
    Fault(
        "analysis/validity.py",
        'rows[rows["neighbour_id"] != rows["held_out"]].sort_values',
        "rows.sort_values",
    ),
    Fault("analysis/validity.py", "-= counts @ (n * each)", "-= 0 * (counts @ (n * each))"),
    Fault("analysis/validity.py", "means > means.median()", "means >= means.median()"),
    Fault("analysis/veto.py", 'frame["score"] >= threshold', 'frame["score"] > threshold'),
    Fault(
        "analysis/veto.py",
        'unsafe.benign_cluster_of(corpus["cluster_id"]).to_numpy()',
        'corpus["cluster_id"].to_numpy()',
    ),
    Fault("analysis/veto.py", "gained / own[:, 1] * other[:, 1]", "gained / own[:, 0] * other[:, 1]"),
    Fault("analysis/veto.py", "clusters.codes.index[~choosing[0]]", "clusters.codes.index[choosing[0]]"),
    Fault("analysis/veto.py", "lost > MAX_LOST * other[:, 1]", "lost > MAX_LOST * other[:, 0]"),
    Fault("core/label_noise.py", "(rate * (1 - rate) * slope**2))", "(rate * (1 - rate) * slope))"),
    Fault(
        "core/label_noise.py",
        "(1 - value) / dr_inflation(rate, **shares, n=(precision[1], missed[1]))",
        "(1 - value)",
    ),
    Fault("core/label_noise.py", "- 2 * (1 - 2 * t) * common", "+ 2 * (1 - 2 * t) * common"),
    Fault("core/label_noise.py", "max(1 - read / there, 0.0) if there else 1.0", "1.0"),
    Fault("core/label_noise.py", '(1 - rate) * drawn["missed"] / t', '(1 - rate) * drawn["missed"] / (1 - t)'),
    Fault("core/wording.py", "pairs = n[:, s] * n[:, t] - pairs", "pairs = n[:, s] * n[:, t]"),
    Fault("core/wording.py", "(np.log(different) - np.log(expected))", "(np.log(expected) - np.log(different))"),
    Fault("core/wording.py", "1 / different, -by_n, -by_r,", "1 / different, -by_n, by_r,"),
    Fault("core/wording.py", "known = scored[first] & scored[second]", "known = scored[first]"),
    Fault("analysis/wording.py", 'ends["free"], ends["near"]', 'ends["near"], ends["free"]'),
    Fault("core/wording.py", "np.union1d(*ends)", "np.unique(ends[0])"),
    Fault("analysis/wording.py", "own.overlap >= core.HIGH", "own.overlap > core.HIGH"),
    Fault("core/rephrasing.py", "answer_probability(n - 1, n - r, tries)", "answer_probability(n, n - r, tries)"),
    Fault("core/rephrasing.py", "tried = np.minimum(tries, m)", "tried = tries"),
    Fault(
        "analysis/rephrasing.py",
        "rephrased(clusters, paired, tries), lost",
        "rephrased(clusters, harmless, tries), lost",
    ),
    Fault("analysis/rephrasing.py", 'twins["rejected"] < twins["n"]', 'twins["rejected"] > 0'),
    Fault("analysis/triggers.py", "2 * min(null[: at + 1].sum(), null[at:].sum())", "null[at:].sum()"),
    Fault("analysis/triggers.py", "root(0.025, tails[1])", "root(0.05, tails[1])"),
    Fault("analysis/triggers.py", "(refused - both) / (n - exposed)", "refused / (n - exposed)"),
    Fault(
        "analysis/triggers.py",
        'adjust_holm(found["p"])',
        'adjust_holm(found["p"].where(found["n_clusters"] > 0))',
    ),
    Fault("analysis/triggers.py", " & is_scored(labels)", ""),
    Fault("remedies/effects.py", "low > -MAX_KEPT_CHANGE and high < MAX_KEPT_CHANGE", "low > -MAX_KEPT_CHANGE"),
    Fault(
        "remedies/effects.py", '["over_p"].where(of_remedy)', '["over_p"].where(of_remedy & (frame["over_p"] < LEVEL))'
    ),
    Fault("remedies/effects.py", "2 * ndtr(-abs(", "ndtr(-abs("),
    Fault("remedies/effects.py", "(p[:, None] >= self.thresholds", "(p[:, None] > self.thresholds"),
    Fault("remedies/effects.py", "clusters.share(ids, answered)", "clusters.share(ids[scored], answered[scored])"),
    Fault(
        "remedies/effects.py",
        "average_estimates(tuned) - average_estimates(control)",
        "average_estimates(control) - average_estimates(tuned)",
    ),
]


def planted(fault: Fault, package: Path) -> str:
    """Return the text of a fault's file with the fault in it.

    Raises
    ------
    ValueError
        The file does not hold the right text exactly once: it has changed, and the fault must follow.
    """
    text = (package / fault.file).read_text(encoding="utf-8")
    if text.count(fault.right) != 1:
        raise ValueError(f"{fault.file} holds {fault.right!r} {text.count(fault.right)} times instead of once")
    return text.replace(fault.right, fault.wrong)


def caught_by(root: Path, tests: list[str], marked: str = "not slow and not browser") -> str:
    """Run tests until one fails; return its name, "" where all pass."""
    environment = os.environ | {"PYTHONPATH": str(root), "PARAGUARD_CACHE": str(paths.CACHE)}
    command = [sys.executable, "-m", "pytest", *tests, "-m", marked]
    # That each fault's place is there is tested too, and every fault takes its own away.
    options = ["--deselect=tests/test_project.py::test_planted_faults_fit_the_code", "-x", "-q", "-n", "2"]
    done = subprocess.run([*command, *options], cwd=root, env=environment, capture_output=True, text=True, check=False)
    named = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, flags=re.MULTILINE)
    return named[1] if named else "" if done.returncode == 0 else "collection"


def main() -> None:
    """Plant every fault, print who caught it and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        ignored = shutil.ignore_patterns(".git", ".venv", ".cache", "results", "__pycache__", ".*_cache")
        shutil.copytree(paths.ROOT, root, ignore=ignored)
        (root / "results").mkdir()
        package = root / "paraguard_utils"
        if found := caught_by(root, ["tests"]):
            sys.exit(f"{found} fails without any fault; mend that first")
        for number, fault in enumerate(FAULTS, 1):
            right = (package / fault.file).read_text(encoding="utf-8")
            (package / fault.file).write_text(planted(fault, package), encoding="utf-8")
            first = [f"tests/test_{name}.py" for name in ROOMS[fault.file].split()]
            found = caught_by(root, first, "not browser") or caught_by(root, ["tests"])
            (package / fault.file).write_text(right, encoding="utf-8")
            rows.append({"file": fault.file, "right": fault.right, "wrong": fault.wrong, "caught_by": found})
            print(f"{number:2d} {fault.file}: {found or 'NOT CAUGHT'}", flush=True)
    table = pd.DataFrame(rows)
    output = paths.ROOT / "benchmarks" / "planted_faults.csv"
    stores.write_file(output, table, "tables", {})
    print(f"{(table['caught_by'] != '').sum()} of {len(table)} faults caught; written to {paths.display_path(output)}")


if __name__ == "__main__":
    main()
