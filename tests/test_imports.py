"""Which room may import which (`pyproject.toml`, importlinter), and that no modules
import one another in a circle.
"""

import subprocess
import sys
from pathlib import Path

import grimp
import numpy as np
import pytest
from scipy.sparse.csgraph import connected_components

from paraguard_utils import paths


def circles(package: str) -> list[list[str]]:
    """Return the groups of modules that import one another, imports inside functions
    and for types included.
    """
    graph = grimp.build_graph(package, cache_dir=None)
    names = sorted(graph.modules)
    imports = [
        [other in graph.find_modules_directly_imported_by(name) for other in names]
        for name in names
    ]
    n, group = connected_components(np.array(imports), connection="strong")
    found = [
        [name for name, own in zip(names, group, strict=True) if own == one]
        for one in range(n)
    ]
    return [own for own in found if len(own) > 1]


def test_imports_run_one_way():
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [command, "--no-cache"],
        capture_output=True,
        text=True,
        cwd=paths.ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    "package", ["paraguard_utils", "paraguard_lab", "paraguard_tools"]
)
def test_no_modules_import_one_another_in_a_circle(package):
    assert circles(package) == []


def test_a_circle_is_found(tmp_path, monkeypatch):
    (tmp_path / "looping").mkdir()
    for name, line in {
        "__init__": "",
        "a": "import looping.b",
        "b": "def f():\n    import looping.a",
    }.items():
        (tmp_path / f"looping/{name}.py").write_text(line)
    monkeypatch.syspath_prepend(tmp_path)
    assert circles("looping") == [["looping.a", "looping.b"]]
