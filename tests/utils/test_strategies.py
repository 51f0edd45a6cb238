"""The table of strategies: one row is all that a new strategy takes."""

import subprocess
import sys
from pathlib import Path

import pytest

from paraguard_utils import paths
from paraguard_utils.core import strategies

LAST_ROW = '    Strategy("rewrite", "rewrite", False, 0, "rules", 8),\n'
NEW_ROW = '    Strategy("whisper", "tone", True, -1, "own_whisper:whisper", 2),\n'

IMPORT_WITH_ROW = """
import sys, types
import pandas as pd

module = types.ModuleType("paraguard_utils.core.strategies")
code = open({path!r}, encoding="utf-8").read()
assert code.count({last!r}) == 1
exec(compile(code.replace({last!r}, {last!r} + {new!r}), "strategies", "exec"),
     module.__dict__)
sys.modules["paraguard_utils.core.strategies"] = module
"""

SEEN_IN_THIN = """
import numpy as np
from paraguard_utils import schemas
from paraguard_utils.analysis import wording
from paraguard_utils.corpus import gates
from paraguard_utils.settings import Gates

assert "whisper" in wording.NEAR_COPY_STRATEGIES
assert "whisper" not in wording.FREE_REWORDING_STRATEGIES
rows = pd.DataFrame({"seed_id": ["s"] * 2, "strategy": "whisper"})
rows["text"] = ["how do we kill weeds softly", "how do we kill weeds aloud"]
schemas.check_schema(rows, "candidates", "mine.csv")

seeds = pd.DataFrame({"seed_id": ["s"], "text": ["how do we kill weeds"]})
seeds[["source", "category"]] = "x"
risks = {"how do we kill weeds": 0.5, rows["text"][0]: 0.4, rows["text"][1]: 0.6}
judging = gates.Judging(
    Gates(per_seed=1, min_strategies=1),
    lambda texts: np.ones((len(texts), 2)),
    lambda texts, _: np.array([risks[text] for text in texts]),
)
judged_seeds, judged = gates.judge_candidates(seeds, rows, judging)
assert judged["reason"].tolist() == ["", "direction"], judged["reason"]
fates = gates.count_fates(judged.assign(generator="mine"))
assert fates["whisper"].tolist() == [1, 1]
corpus = gates.assemble_corpus(judged_seeds, judged)
schemas.check_schema(corpus, "corpus", "mine")
assert corpus["strategy"].tolist() == ["seed", "whisper"]
assert gates.PAPER_STRATEGY["whisper"] == "tone"
"""


def run_with_row(code: str, folder: Path) -> None:
    """Run code in an interpreter whose table of strategies has one more row."""
    first = IMPORT_WITH_ROW.format(path=strategies.__file__, last=LAST_ROW, new=NEW_ROW)
    command = [sys.executable, "-c", first + code]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
        env={"PYTHONPATH": f"{paths.ROOT}:{folder}", "PATH": ""},
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.slow
def test_a_new_row_is_seen_in_the_gates_the_wordings_and_the_schemas(tmp_path):
    run_with_row(SEEN_IN_THIN, tmp_path)


def test_the_paper_has_four_strategies():
    assert len(set(strategies.PAPER_STRATEGY.values())) >= 4
    assert set(strategies.DIRECTION) <= set(strategies.NEAR_COPIES)
    assert set(strategies.STRATEGIES) == {
        *strategies.NEAR_COPIES,
        *strategies.FREE_REWORDINGS,
    }
