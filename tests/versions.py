"""Try the package with the lowest versions that it allows, or with the newest.

    python tests/versions.py lowest FOLDER [EXTRA ...]
    python tests/versions.py newest FOLDER [EXTRA ...]

An environment is made in FOLDER, with the extras. The commands for a log of one's own run
there, and tests: with the extra `record`, those of the thin package, of the audit and of
the notebook 00; without it, those of the functions that an audit calls.
"""

import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
NAME = PROJECT["project"]["name"]

TOOLS = ("hypothesis", "pytest")
RECORD_TOOLS = (
    *("beautifulsoup4", "krippendorff", "markdown-it-py"),
    *("nbval", "pytest-httpserver"),
)

CORE_TESTS = (
    "tests/tools/test_core.py",
    "tests/utils/test_estimates.py",
    # Examples of modules that need more than the core
    *("-k", "not batches and not draws and not sampling"),
)
RECORD_TESTS = (
    *("--nbval", "notebooks/00_results.ipynb", "notebooks/03_scoring.ipynb"),
    "tests/utils",
    "tests/tools/test_command_line.py",
    "tests/tools/test_label_command.py",
    # Answers are labelled with a sentence encoder, which needs torch.
    "--deselect=tests/tools/test_label_command.py::test_command_line",
    "tests/tools/test_logs.py",
    "tests/tools/test_thresholds.py",
)


def list_requirements(extras: Iterable[str]) -> Iterator[Requirement]:
    """Yield what the core and some extras ask for, without the package itself."""
    optional = PROJECT["project"]["optional-dependencies"]
    waiting = list(PROJECT["project"]["dependencies"])
    for extra in extras:
        waiting += optional[extra]
    while waiting:
        one = Requirement(waiting.pop(0))
        if canonicalize_name(one.name) != NAME:
            yield one
        for extra in one.extras if canonicalize_name(one.name) == NAME else ():
            waiting += optional[extra]


def find_lowest(requirement: Requirement) -> str:
    """Return the lowest version that a requirement allows, as a constraint for pip.

    >>> find_lowest(Requirement("pandas>=3.0"))
    'pandas==3.0'
    """
    (bound,) = requirement.specifier
    if bound.operator not in (">=", "=="):
        raise SystemExit(f"{requirement}: no lowest version follows from that")
    return f"{requirement.name}=={bound.version}"


def call(*command: object, folder: Path = ROOT) -> None:
    """Run a command, and stop if it fails."""
    words = [str(word) for word in command]
    print(f"$ {' '.join(words)}", flush=True)
    done = subprocess.run(words, cwd=folder, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def make_environment(end: str, folder: Path, extras: list[str]) -> Path:
    """Make an environment at one end of the bounds; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    constraints = folder / "constraints.txt"
    lines = []
    if end == "lowest":
        lines = [f"{find_lowest(one)}\n" for one in list_requirements(extras)]
    constraints.write_text("".join(lines), encoding="utf-8")
    tools = [*TOOLS, *(RECORD_TOOLS if "record" in extras else ())]
    package = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    install = (python, "-m", "pip", "install", "--quiet", "--upgrade")
    call(*install, "pip")
    call(*install, "-c", constraints, "-e", package, *tools)
    call(python, "-m", "pip", "list")
    return python


def try_commands(python: Path, folder: Path) -> None:
    """Run the commands for a log of one's own, as somebody who has only the core."""
    answers = folder / "answers.csv"
    answers.write_text(
        'completion\n"I am sorry, but I cannot help with that."\nSure: take a spade.\n',
        encoding="utf-8",
    )
    scores = folder / "scores.csv"
    rows = [f"{i / 100},c{i},{int(i > 80)}" for i in range(100)]
    scores.write_text("\n".join(["score,cluster,harmful", *rows]) + "\n", "utf-8")
    paraguard = python.with_name("paraguard")
    call(paraguard, "audit", "--demo", folder=folder)
    call(paraguard, "label", answers, "--column", "completion", "--labeller", "cues")
    call(paraguard, "threshold", scores, "--requests", "0.5")


def run_tests(python: Path, extras: list[str]) -> None:
    """Run the tests of what is installed."""
    tests = RECORD_TESTS if "record" in extras else CORE_TESTS
    usual = ("-q", "-p", "no:cacheprovider", "-m", "not slow and not browser")
    call(python, "-m", "pytest", *usual, *tests)


if __name__ == "__main__":
    end, name, *extras = sys.argv[1:]
    if end not in ("lowest", "newest"):
        raise SystemExit(__doc__)
    folder = Path(name).resolve()
    python = make_environment(end, folder, extras)
    try_commands(python, folder)
    run_tests(python, extras)
