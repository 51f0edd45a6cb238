"""Which room may import which (`pyproject.toml`, importlinter)."""

import subprocess
import sys
from pathlib import Path

from paraguard_utils import paths


def test_imports_run_one_way():
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command, "--no-cache"], capture_output=True, text=True, cwd=paths.ROOT, check=False)
    assert done.returncode == 0, done.stdout
