"""The command line: every command says how it is used."""

import json
import re
import subprocess
import sys

import pytest
import typer

from paraguard_tools import __main__
from paraguard_utils import __version__, paths, settings
from paraguard_utils.corpus import risk


def commands(group, *above):
    """Every command as the words that call it."""
    click = typer.main.get_command(group) if isinstance(group, typer.Typer) else group
    for name, command in click.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, *above, name)
        else:
            yield (*above, name)


@pytest.mark.parametrize("words", list(commands(__main__.app)), ids=" ".join)
def test_help_shows_an_example(words, command):
    printed = command(*words, "--help").printed
    example = re.search(r"Example: paraguard (.*)", printed)
    assert example and example[1].startswith(" ".join(words))


def test_the_command_without_arguments_lists_the_commands(command):
    done = command()
    text = done.printed + done.error
    assert all(
        name in text
        for name in ("corpus", "label", "agreement", "explorer", "run", "reproduce")
    )


def test_readme_names_only_commands_that_there_are():
    known = {" ".join(words) for words in commands(__main__.app)}
    text = (paths.ROOT / "README.md").read_text(encoding="utf-8") + (
        paths.DATA / "README.md"
    ).read_text("utf-8")
    named = re.findall(
        r"paraguard ((?:corpus )?[a-z][a-z-]*)", re.sub(r"\s+", " ", text)
    )
    assert named and set(named) <= known


def test_the_risk_scorer_of_the_settings_is_the_frozen_one():
    assert settings.BuildSettings.model_fields["risk"].default == risk.RISK_VERSION


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["audit", "--nope"], "No such option.*--nope"),
        (["audit", "--fail-above", "x"], "Invalid value for '--fail-above'"),
        (["nosuch"], "No such command 'nosuch'"),
        (["adit"], r"No such command 'adit'; did you mean 'audit'\?"),
        (["rnu"], r"No such command 'rnu'; did you mean 'run'\?"),
        (["corpus", "nosuch"], "No such command 'nosuch'"),
    ],
)
def test_a_wrong_command_line_is_one_line(command, words, line):
    done = command(*words)
    assert (
        done.status == 2 and re.match(line, done.error) and done.error.count("\n") == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("value", ["[" * 10_000, "{a: " * 10_000, "1\n::error::x: ["])
def test_a_parameter_that_is_no_yaml_is_one_line(command, value):
    done = command("run", "00", "-p", f"k={value}")
    assert done.status != 0 and "write -p NAME=VALUE" in done.error
    assert done.error.count("\n") <= 1 and len(done.error) < 500


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["run", "02", "--store", "live", "--model", "x\n::error::y\x1b[31m\u202e"],
        ["remedy", "--model", "x\n::error::y\x1b[31m\u202e"],
        ["remedy", "--model", "m", "--store", "x\n::error::y\x1b[31m\u202e"],
        ["label", "x\n::error::y\x1b[31m\u202e.csv"],
        ["convert", "x\n::error::y\x1b[31m\u202e"],
        ["nosuch\n::error::y\x1b[31m\u202e"],
    ],
    ids=lambda words: words[0][:6],
)
def test_a_name_in_an_error_is_one_visible_line(command, words):
    done = command(*words)
    assert done.status != 0
    line = done.error.rstrip("\n")
    assert line.isprintable() and not line.startswith("::") and "error::y" in line


def test_the_version_is_printed(command):
    done = command("--version")
    assert done.printed == f"paraguard {__version__}\n" and not done.status


def test_the_help_names_every_command_by_whom_it_is_for(command):
    named = [
        *__main__.YOUR_LOG,
        *(n for names in __main__.STUDY.values() for n in names),
    ]
    click = typer.main.get_command(__main__.app)
    assert sorted(named) == sorted(click.commands)
    printed = " ".join(command("--help").printed.split())
    assert "Your own log: audit, label, threshold" in printed
    assert "A study of your model: run, remedy" in printed


OWN_LOG = """
import sys
from paraguard_tools.__main__ import main
try:
    main()
finally:
    print(sorted({"pandera", "yaml", "scipy.stats", "sklearn", "torch"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_a_log_of_ones_own_waits_for_nothing_that_a_study_needs():
    done = subprocess.run(
        [sys.executable, "-c", OWN_LOG, "audit", "--help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0 and "Example: paraguard audit" in done.stdout
    assert done.stdout.endswith("\n[]\n"), done.stdout


WITHOUT_STUDY = """
import contextlib, importlib.abc, io, json, sys

class Missing(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "yaml":
            raise ModuleNotFoundError(f"No module named {name!r}", name="yaml")

sys.meta_path.insert(0, Missing())
from paraguard_tools.__main__ import main

ends = []
for line in sys.argv[1:]:
    said = io.StringIO()
    sys.argv = ["paraguard", *line.split()]
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            main()
        ends.append([0, said.getvalue()])
    except SystemExit as ended:
        ends.append([ended.code, said.getvalue()])
print(json.dumps(ends))
"""

STUDY_LINES = {
    "adit": ["did you mean 'audit'?"],
    "rnu": ["did you mean 'run'?"],
    "nosuch": ["No such command 'nosuch'"],
    "run --help": ["package yaml", "in a clone", "make setup"],
    "corpus build": ["package yaml", "in a clone", "make setup"],
    "--help": ["A study of your model (in a clone", "make setup): run,"],
}
"""What each command line says where the packages of a study are missing."""


@pytest.fixture(scope="module")
def without_study():
    """How each of `STUDY_LINES` ends, and what it says, in a process without yaml."""
    command = [sys.executable, "-c", WITHOUT_STUDY, *STUDY_LINES]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return dict(zip(STUDY_LINES, json.loads(done.stdout), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("words", STUDY_LINES)
def test_without_the_studys_packages_its_commands_are_still_known(without_study, words):
    status, printed = without_study[words]
    text = " ".join(printed.split())
    lines = STUDY_LINES[words]
    assert all(line in text for line in lines), text
    assert words == "--help" or (status == 2 and len(text) < 200)
    assert ("yaml" in text) == ("package yaml" in lines)
