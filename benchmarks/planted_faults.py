"""Would the tests see a fault? Faults are planted, one at a time, in a copy of the
project.

`.venv/bin/python benchmarks/planted_faults.py` takes about half an hour on two cores.
For each fault the tests of its room run until one fails; where none does, all fast
tests run. The table says which test caught it.
"""

import ast
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from paraguard_utils import paths, stores

PACKAGES = ("paraguard_utils", "paraguard_lab", "paraguard_tools")

TESTS = {
    "signals": "signals brute_force",
    "confusion": "confusion brute_force",
    "system": "confusion brute_force",
    "vectors": "signals brute_force",
    "chance": "chance brute_force",
    "trace_store": "trace_store faults",
    "local": "trace_store shards faults",
    "prompting": "trace_store faults",
    "stores": "stores trace_store",
    "parts": "stores trace_store",
    "refusals": "refusals project",
    "gates": "gates corpus",
    "text": "gates corpus",
    "estimates": "estimates disagreement",
    "inference": "inference remedies",
    "ratios": "ratios hangs_on",
    "disagreement": "disagreement variance",
    "variance": "variance",
    "validity": "validity",
    "veto": "veto",
    "label_noise": "annotations",
    "wording": "wording",
    "shared_wording": "shared_wording",
    "rephrasing": "rephrasing",
    "words": "gates corpus",
    "triggers": "triggers",
    "effects": "remedies",
    "curve": "remedies",
    "coin": "coin",
    "pair_shares": "hangs_on",
    "harm": "hangs_on",
    "drawn_pairs": "hangs_on",
    "within_request": "hangs_on",
    "voting": "hangs_on",
    "findings": "paper cohorts",
    "verdicts": "remedies predictions coin",
}
"""The tests that run first, by module."""


class Fault(NamedTuple):
    """A piece of code of a symbol, and what takes its place.

    `symbol` is MODULE.NAME: a function, class or constant at the top of a module, wherever
    the module lies. `right` occurs there once; layout, comments and the quotes of strings
    do not matter.
    """

    symbol: str
    right: str
    wrong: str


FAULTS = [
    Fault(
        "signals.perplexity",
        "np.mean(np.asarray(of_prompt",
        "np.median(np.asarray(of_prompt",
    ),
    Fault(
        "signals.ppl_relative",
        "return 1.0 - np.minimum(a, b) / np.maximum(a, b)",
        "return np.maximum(a, b) / np.minimum(a, b) - 1.0",
    ),
    Fault(
        "signals.drift",
        "cosines.max(axis=1).mean() + cosines.max(axis=0).mean()",
        "cosines.max(axis=1).mean() + cosines.max(axis=1).mean()",
    ),
    Fault(
        "signals.prob_shifts",
        "np.abs(tails[a] - tails[b])",
        "0 * np.abs(tails[a] - tails[b])",
    ),
    Fault(
        "vectors.find_nearest",
        "np.argsort(ids[pool])",
        "np.argsort(ids[pool])[::-1]",
    ),
    Fault(
        "confusion.score_prompts",
        'near["similarity"] >= scoring.theta',
        'near["similarity"] > scoring.theta',
    ),
    Fault(
        "confusion.score_prompts",
        'every["relative"].std(ddof=0)',
        'every["relative"].std(ddof=1)',
    ),
    Fault(
        "confusion.estimate_confusion",
        "clusters.share(cluster_ids, ci >= tau)",
        "clusters.share(cluster_ids, ci > tau)",
    ),
    Fault(
        "system.select_rejections",
        '(scores["label"] == "reject") & scores["ci"].notna()',
        'scores["ci"].notna()',
    ),
    Fault(
        "disagreement.count_decisions",
        ">= least].reset_index(drop=True)",
        ">= 1].reset_index(drop=True)",
    ),
    Fault(
        "chance.matched_excess",
        "& (counts @ n[0] > 0)",
        "& (counts @ n[0] >= 0)",
    ),
    Fault("chance._number_bins", 'side="right"', 'side="left"'),
    Fault(
        "chance.excess_at_equal_contrast",
        "pd.DataFrame(products).groupby(kinds).mean()",
        "pd.DataFrame(products).groupby(kinds).sum()",
    ),
    Fault(
        "chance.PermutationCandidates",
        "near &= np.cumsum(near, axis=1) <= k",
        "near &= np.cumsum(near, axis=1) < k",
    ),
    Fault(
        "chance.permutation_p_value",
        "(1 + np.count_nonzero(null >= value - 1e-12)) / (1 + len(null))",
        "np.count_nonzero(null >= value - 1e-12) / len(null)",
    ),
    Fault(
        "trace_store.select_wanted",
        'wanted = rows[rows["prompt_id"].map(keys).eq(rows["key"])]',
        "wanted = rows[:]",
    ),
    Fault(
        "prompting.PromptContext",
        "self._decoding_key, self.dtype)",
        "self._decoding_key)",
    ),
    Fault(
        "local.find_remaining_batches",
        "            remaining.append(unknown)",
        "            remaining = [[*sum(remaining, []), *unknown]]",
    ),
    Fault(
        "local.make_traces",
        'f"{open_thought[1]}\\n" + traces["response"]',
        'traces["response"]',
    ),
    Fault(
        "refusals.label_by_cues",
        "elif not opening:",
        "elif False:",
    ),
    Fault(
        "refusals.decide_by_cues",
        "if not (cue.unless and re2.search(cue.unless, opening)):",
        "if cue.rule:",
    ),
    Fault(
        "refusals.decide_by_cues",
        "Match(opening) or ())",
        "Match(opening) or (), reverse=True)",
    ),
    Fault("refusals.NORMALIZING_STEPS", '(r"n\'t\\b", " not")', '(r"n\'t\\b", "n")'),
    Fault(
        "refusals.RAW_CHARS", "RAW_CHARS = 2 * CUE_CHARS", "RAW_CHARS = CUE_CHARS // 4"
    ),
    Fault(
        "gates.judge_candidates",
        'candidates["similarity"] < limits.min_similarity',
        'candidates["similarity"] <= limits.min_similarity',
    ),
    Fault(
        "gates._farthest_first",
        "(label[i] in taken, late[i], nearest[i])",
        "(late[i], nearest[i])",
    ),
    Fault(
        "gates._farthest_first",
        "nearest = overlap[kept].max(axis=0)",
        "nearest = overlap[kept].min(axis=0)",
    ),
    Fault("words.jaccard", "/ len(a | b)", "/ (len(a) + len(b))"),
    Fault(
        "gates._farthest_first",
        "framed[kept].sum() >= limits.max_framed",
        "framed[kept].sum() > limits.max_framed",
    ),
    Fault(
        "estimates.bootstrap_t_interval",
        "np.percentile(known, [97.5, 2.5])",
        "np.percentile(known, [2.5, 97.5])",
    ),
    Fault(
        "estimates.estimate_with_error",
        "(influence**2 * counts)",
        "(influence**2)",
    ),
    Fault(
        "ratios.divide_totals",
        "np.stack([-hits / n**2, 1 / n], axis=-1)",
        "np.stack([hits / n**2, 1 / n], axis=-1)",
    ),
    Fault(
        "ratios._interval_at_end",
        "n_clusters = int(np.count_nonzero(sums[0]))",
        "n_clusters = int(sums[0].sum())",
    ),
    Fault(
        "inference.share_of_clusters",
        "int(hits.sum()), len(hits)",
        "int(hits.sum()), len(clusters.codes)",
    ),
    Fault("estimates.ClusterBootstrap", "n = len(set(cluster_ids))", "n = len(hits)"),
    Fault(
        "disagreement.cluster_sums",
        "opposite_pairs / (n - 1)",
        "opposite_pairs / n",
    ),
    Fault(
        "disagreement.isolation",
        "/ (n - 1)",
        "/ n",
    ),
    Fault(
        "disagreement.log_disagreement_ratio",
        "(4 * rejected - 2 * n) / opposite",
        "(2 * n - 4 * rejected) / opposite",
    ),
    Fault("coin._excess", "np.divide(twins, frr)", "np.divide(frr, twins)"),
    Fault(
        "verdicts.add_remedy_verdicts",
        'beats_coin == "better"',
        'beats_coin != "worse"',
    ),
    Fault("verdicts.add_remedy_verdicts", ".fillna(1.0)", ".fillna(np.nan)"),
    Fault("pair_shares.PairShares", "(same[first] + same[second]) / 2", "same[first]"),
    Fault("pair_shares.dealt_ratios", "every - own", "every"),
    Fault("pair_shares.gap_p", "(1 + n_beyond) / (1 + draws)", "n_beyond / draws"),
    Fault("inference.degrees_of_freedom", " - 1 / len(shares)", ""),
    Fault("inference.jackknife_t", "(n - 1) * left_out.var()", "left_out.var()"),
    Fault(
        "harm.estimate_harm", "jackknife_t(parts[name], left_out[name])", "parts[name]"
    ),
    Fault("harm.split_totals", "(c01 - c00) / 2", "(c01 - c00)"),
    Fault("harm.split_totals", "c11 - c10 - c01 + c00", "c11 - c10"),
    Fault("drawn_pairs.estimate_asked_again", 'drawn["size"] - 1', 'drawn["size"]'),
    Fault("estimates.binomial_interval", "hits + 1, n - hits", "hits, n - hits + 1"),
    Fault("within_request.sign_flip_p", "* 2 - 1", "* 1"),
    Fault("voting.put_together", "np.roll(own, -2)", "np.roll(own, -1)"),
    Fault("findings.count_similarity_claims", "high >= -limit", "high >= limit"),
    Fault(
        "variance._drawn_shares",
        "within - same + same * sums.inverse / sums.n",
        "within - same",
    ),
    Fault("variance.style_residuals", "fit(x[~out], y[~out])", "fit(x, y)"),
    Fault(
        "variance.split_sampled_variance",
        "opposite / (m * (m - 1))",
        "opposite / (m * m)",
    ),
    Fault(
        "variance.compare_with_majority",
        'decided["size"] >= 2, "mean"',
        'decided["size"] >= 1, "mean"',
    ),
    Fault(
        "variance.split_variance",
        "1 - dr.high, 1 - dr.low",
        "1 - dr.low, 1 - dr.high",
    ),
    Fault(
        "validity.pair_held_out",
        '(both["others"] - both["accepted"])',
        'both["others"]',
    ),
    Fault(
        "validity.ci_without_held_out",
        'rows[rows["neighbour_id"] != rows["held_out"]]',
        "rows",
    ),
    Fault(
        "validity.matched_disagreement_ratio",
        "-= counts @ (n * each)",
        "-= 0 * (counts @ (n * each))",
    ),
    Fault(
        "validity.compare_wording_halves",
        "means > means.median()",
        "means >= means.median()",
    ),
    Fault(
        "veto.is_overturned",
        'frame["score"] >= threshold',
        'frame["score"] > threshold',
    ),
    Fault(
        "veto.veto_frame",
        'unsafe.benign_cluster_of(system.prompts["cluster_id"])',
        'system.prompts["cluster_id"]',
    ),
    Fault(
        "veto.cross_judge_veto",
        'gained / benign["rejected"] * twins["rejected"]',
        'gained / benign["prompts"] * twins["rejected"]',
    ),
    Fault(
        "veto.veto_table",
        "clusters.codes.index[~choosing[0]]",
        "clusters.codes.index[choosing[0]]",
    ),
    Fault(
        "veto.cross_judge_veto",
        'lost > MAX_LOST * twins["rejected"]',
        'lost > MAX_LOST * twins["prompts"]',
    ),
    Fault(
        "label_noise.true_dr",
        "(rate * (1 - rate) * slope**2))",
        "(rate * (1 - rate) * slope))",
    ),
    Fault(
        "label_noise.correct_estimates",
        "(1 - value) / dr_inflation(rate, share, share_missed, n_read)",
        "(1 - value)",
    ),
    Fault(
        "label_noise.dr_inflation",
        "error_true / variance - from_both",
        "error_true / variance + from_both",
    ),
    Fault(
        "label_noise._draw_share",
        "max(1 - n_read / labelled, 0.0) if labelled else 1.0",
        "1.0",
    ),
    Fault(
        "label_noise.correct_estimates",
        "(1 - rate) * drawn_missed / true",
        "(1 - rate) * drawn_missed / (1 - true)",
    ),
    Fault(
        "wording.MatchedRatio",
        "n[:, self.s] * n[:, self.t] - own_pairs",
        "n[:, self.s] * n[:, self.t]",
    ),
    Fault(
        "wording.MatchedRatio",
        "(np.log(different) - np.log(expected))",
        "(np.log(expected) - np.log(different))",
    ),
    Fault(
        "wording.MatchedRatio",
        "1 / different, -by_n, -by_r,",
        "1 / different, -by_n, by_r,",
    ),
    Fault(
        "wording.MatchedRatio",
        "both_scored = scored[first] & scored[second]",
        "both_scored = scored[first]",
    ),
    Fault(
        "shared_wording.estimate_comparisons",
        "clusters, phrasings, free, near",
        "clusters, phrasings, near, free",
    ),
    Fault("wording.too_few_for_pairs", "np.union1d(first, second)", "np.unique(first)"),
    Fault(
        "rephrasing.count_rephrased",
        "answer_probability(n - 1, n - rejected, tries)",
        "answer_probability(n, n - rejected, tries)",
    ),
    Fault(
        "rephrasing.answer_probability",
        "tried = np.minimum(tries, others)",
        "tried = tries",
    ),
    Fault(
        "rephrasing.estimate_rephrasing",
        'twins["rejected"] < twins["n"]',
        'twins["rejected"] > 0',
    ),
    Fault(
        "triggers.conditional_odds_ratio",
        "2 * min(below, above)",
        "above",
    ),
    Fault(
        "triggers.conditional_odds_ratio",
        "solve(0.025, (outcomes <= observed)",
        "solve(0.05, (outcomes <= observed)",
    ),
    Fault(
        "triggers._refused_shares",
        'counts["refused"] - counts["both"]',
        'counts["refused"]',
    ),
    Fault(
        "triggers.trigger_table",
        'adjust_holm(table["p"])',
        'adjust_holm(table["p"].where(table["n_clusters"] > 0))',
    ),
    Fault("triggers.trigger_table", "near & system.is_scored", "near"),
    Fault(
        "verdicts._are_twins_kept",
        "(low > -MAX_KEPT_CHANGE) & (high < MAX_KEPT_CHANGE)",
        "low > -MAX_KEPT_CHANGE",
    ),
    Fault(
        "verdicts.add_remedy_verdicts",
        '["over_p"].where(of_remedy)',
        '["over_p"].where(of_remedy & (frame["over_p"] < LEVEL))',
    ),
    Fault("inference.normal_p", "2 * NormalDist()", "NormalDist()"),
    Fault(
        "curve.ThresholdCurve",
        "(p[:, None] >= self.thresholds",
        "(p[:, None] > self.thresholds",
    ),
    Fault(
        "effects.estimate_effects",
        "clusters.share(ids, (accepted & on_topic).to_numpy())",
        "clusters.share(ids[benign.is_scored], (accepted & on_topic)[benign.is_scored])",
    ),
    Fault(
        "verdicts.compare_with_control",
        "average_estimates(tuned) - average_estimates(controls)",
        "average_estimates(controls) - average_estimates(tuned)",
    ),
    Fault(
        "parts.Parts",
        'f"part-{max(numbers, default=-1) + 1:06d}.parquet"',
        'f"part-{max(numbers, default=0):06d}.parquet"',
    ),
    Fault(
        "disagreement.too_few_for_disagreement",
        "min(n_rejected, n_accepted) < MIN_DECISIONS_EACH",
        "n_rejected < MIN_DECISIONS_EACH",
    ),
    Fault(
        "shared_wording.estimate_comparisons",
        "pairs.overlap >= HIGH_OVERLAP",
        "pairs.overlap > HIGH_OVERLAP",
    ),
    Fault(
        "rephrasing.estimate_rephrasing",
        "count_rephrased(clusters, paired, tries)",
        "count_rephrased(clusters, harmless, tries)",
    ),
]

_NO_CODE = (
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.COMMENT,
)


class Token(NamedTuple):
    """A token without its layout, and where it begins and ends in its text."""

    text: str
    start: int
    end: int


def read_tokens(code: str) -> list[Token]:
    """Return the tokens of code, or of a piece of it, without layout and comments."""
    line_starts = [0]
    for line in code.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    tokens: list[Token] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in _NO_CODE or not token.string.strip():
                continue
            start = line_starts[token.start[0] - 1] + token.start[1]
            end = line_starts[token.end[0] - 1] + token.end[1]
            tokens.append(Token(_plain_string(token), start, end))
    except (tokenize.TokenError, IndentationError):
        pass  # a piece of code may end inside brackets
    return [
        token
        for token, following in itertools.zip_longest(tokens, tokens[1:])
        if not (token.text == "," and following and following.text in ")]}")
    ]


def _plain_string(token: tokenize.TokenInfo) -> str:
    """Return a token's text, a string's in one kind of quotes."""
    if token.type == tokenize.STRING and token.string[0] in "'\"":
        return repr(ast.literal_eval(token.string))
    return token.string


def find_module(symbol: str) -> Path:
    """Return the file of the one module that defines MODULE.NAME."""
    module, _, name = symbol.partition(".")
    files = []
    for package in PACKAGES:
        for file in (paths.ROOT / package).rglob(f"{module}.py"):
            if name in find_symbols(file.read_text(encoding="utf-8")):
                files.append(file)
    if len(files) != 1:
        raise ValueError(f"{symbol} is in {len(files)} modules instead of one")
    return files[0]


def find_symbols(code: str) -> dict[str, tuple[int, int]]:
    """Return what a module defines at its top: name to first and last line, from 1."""
    symbols = {}
    for node in ast.parse(code).body:
        names = []
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name.id for name in targets if isinstance(name, ast.Name)]
        for name in names:
            symbols[name] = (node.lineno, node.end_lineno or node.lineno)
    return symbols


def planted(fault: Fault, code: str) -> str:
    """Return the text of a module with a fault in it.

    Raises
    ------
    ValueError
        The symbol does not hold the right code exactly once: it has changed, and the fault
        must follow.
    """
    first, last = find_symbols(code)[fault.symbol.partition(".")[2]]
    lines = code.splitlines(keepends=True)
    offset = len("".join(lines[: first - 1]))
    body = "".join(lines[first - 1 : last])
    tokens = read_tokens(body)
    texts = [token.text for token in tokens]
    right = [token.text for token in read_tokens(fault.right)]
    places = [i for i in range(len(texts)) if texts[i : i + len(right)] == right]
    if len(places) != 1:
        raise ValueError(
            f"{fault.symbol} holds {fault.right!r} {len(places)} times instead of once"
        )
    start = offset + tokens[places[0]].start
    end = offset + tokens[places[0] + len(right) - 1].end
    return code[:start] + fault.wrong + code[end:]


def ignore_made(folder: str, names: list[str]) -> set[str]:
    """Return what of a folder is not copied; the leaderboard's results are."""
    patterns = (".git", ".venv*", ".cache", "__pycache__", ".*_cache")
    made = shutil.ignore_patterns(*patterns)(folder, names)
    return made | {"results"} if Path(folder) == paths.ROOT else made


def caught_by(
    root: Path, tests: list[str], marked: str = "not slow and not browser"
) -> str:
    """Run tests until one fails; return its name, "" where all pass."""
    environment = os.environ | {
        "PYTHONPATH": str(root),
        "PARAGUARD_CACHE": str(paths.CACHE),
    }
    command = [sys.executable, "-m", "pytest", *tests, "-m", marked]
    # That each fault's place is there is tested too, and every fault takes its own
    # away.
    options = [
        "--deselect=tests/test_project.py::test_planted_faults_fit_the_code",
        "-x",
        "-q",
        "-n",
        "2",
    ]
    done = subprocess.run(
        [*command, *options],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    named = re.search(
        r"^(?:FAILED|ERROR) (.*?)(?: - |$)", done.stdout, flags=re.MULTILINE
    )
    return named[1] if named else "" if done.returncode == 0 else "collection"


def main() -> None:
    """Plant every fault, print who caught it and write the table."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "copy"
        shutil.copytree(paths.ROOT, root, ignore=ignore_made)
        (root / "results").mkdir()
        if found := caught_by(root, ["tests"]):
            sys.exit(f"{found} fails without any fault; mend that first")
        for number, fault in enumerate(FAULTS, 1):
            file = root / find_module(fault.symbol).relative_to(paths.ROOT)
            right = file.read_text(encoding="utf-8")
            file.write_text(planted(fault, right), encoding="utf-8")
            first = []
            for name in TESTS[fault.symbol.partition(".")[0]].split():
                first += map(str, (root / "tests").rglob(f"test_{name}.py"))
            found = caught_by(root, first, "not browser") or caught_by(root, ["tests"])
            file.write_text(right, encoding="utf-8")
            rows.append(
                {
                    "symbol": fault.symbol,
                    "right": fault.right,
                    "wrong": fault.wrong,
                    "caught_by": found,
                }
            )
            print(f"{number:2d} {fault.symbol}: {found or 'NOT CAUGHT'}", flush=True)
    table = pd.DataFrame(rows)
    output = paths.ROOT / "benchmarks" / "planted_faults.csv"
    stores.write_file(output, table, "tables", {})
    print(
        f"{(table['caught_by'] != '').sum()} of {len(table)} faults caught; written to"
        f" {paths.display_path(output)}"
    )


if __name__ == "__main__":
    main()
