"""Frames have types: what is passed for another kind of frame fails mypy."""

import subprocess
import sys
from pathlib import Path

import pytest

from paraguard_utils import paths

CALLER = """
from paraguard_utils.labels.labelling import hash_labels
from paraguard_utils.schemas import Labels, Scores


def hash_both(labels: Labels, scores: Scores) -> list[str]:
    return [
        hash_labels(labels),
        hash_labels(scores),
    ]
"""


@pytest.mark.slow
def test_scores_passed_for_labels_fail_mypy(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    caller = tmp_path / "caller.py"
    caller.write_text(CALLER)

    done = subprocess.run(
        [sys.executable, "-m", "mypy", str(caller)],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
    )

    problems = [line for line in done.stdout.splitlines() if "caller.py" in line]
    assert len(problems) == 1, done.stdout + done.stderr
    assert "caller.py:9:" in problems[0]
    assert 'incompatible type "Scores"; expected "Labels"' in problems[0]
