"""Names: a public one stands in one module, so that whoever searches for it finds it."""

import ast
from collections import defaultdict

from paraguard_utils import paths

PROTOCOL = {"REMEDIES", "main", "apply", "audit", "takes", "resolve"}
"""What each remedy and each kind of backend has, and a command called as its function."""


def public_names(text):
    """Return the functions, classes and constants that a module defines for others."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            ):
                yield from (
                    one.id for one in ast.walk(target) if isinstance(one, ast.Name)
                )


def test_a_public_name_stands_in_one_module():
    found = defaultdict(set)
    files = []
    for package in ("paraguard_utils", "paraguard_lab", "paraguard_tools"):
        files += (paths.ROOT / package).rglob("*.py")
    for path in files:
        for name in public_names(path.read_text(encoding="utf-8")):
            if not name.startswith("_") and name not in PROTOCOL:
                found[name].add(path.relative_to(paths.ROOT).as_posix())
    assert {
        name: sorted(files) for name, files in found.items() if len(files) > 1
    } == {}
