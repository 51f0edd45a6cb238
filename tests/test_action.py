"""The action's own steps, run as a pipeline runs them, with the package installed
beside.
"""

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from test_audit import file_of

from paraguard_utils import paths

pytestmark = pytest.mark.slow

ACTION = yaml.safe_load((paths.ROOT / "action.yml").read_text(encoding="utf-8"))
INSTALL, AUDIT = ACTION["runs"]["steps"]
OFFLINE = {"PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
"""Without a network, beside what is installed; pip takes 0 for this one as yes."""


def run(step, folder, **environment):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = os.environ | {"PATH": path} | environment
    return subprocess.run(
        ["bash", "-c", step["run"]],
        cwd=folder,
        env=own,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Install the package as the first step does, from a copy, because building leaves
    folders behind.
    """
    from test_package import copied

    root, target = (
        copied(tmp_path_factory.mktemp("source")),
        tmp_path_factory.mktemp("installed"),
    )
    done = run(
        INSTALL, root, GITHUB_ACTION_PATH=str(root), PIP_TARGET=str(target), **OFFLINE
    )
    assert done.returncode == 0, done.stderr
    return target


def gate(installed, folder, **given):
    names = {
        name: str(one.get("default", "")) for name, one in ACTION["inputs"].items()
    } | given
    asked = {
        variable: names[place.removeprefix("${{ inputs.").removesuffix(" }}")]
        for variable, place in AUDIT["env"].items()
    }
    return run(
        AUDIT,
        folder,
        PYTHONPATH=str(installed),
        GITHUB_STEP_SUMMARY=str(folder / "summary.md"),
        **asked,
    )


def test_it_passes_fails_and_fails_closed(installed, tmp_path):
    log = file_of(tmp_path / "log.csv", ["rrrrrr", "aaaaaa", "raaaaa"] * 60)
    passed = gate(installed, tmp_path, log=str(log), **{"fail-above": "0.8"})
    assert passed.returncode == 0, passed.stderr
    assert "not worse" in (tmp_path / "summary.md").read_text()
    suite = ElementTree.parse(tmp_path / "paraguard-audit" / "audit.xml").getroot()
    assert (suite.attrib["tests"], suite.attrib["failures"]) == ("1", "0")
    assert (
        gate(installed, tmp_path, log=str(log), **{"fail-above": "0.1"}).returncode == 3
    )
    (tmp_path / "empty.csv").write_text("")
    assert (
        gate(installed, tmp_path, log="empty.csv", **{"fail-above": "0.9"}).returncode
        == 1
    )


@pytest.mark.weekly
def test_every_other_end_of_an_audit_is_its_own(installed, tmp_path):
    """test_audit comes to the same ends in one process."""
    log = file_of(tmp_path / "log.csv", ["rrrrrr", "aaaaaa", "raaaaa"] * 60)
    worse = file_of(tmp_path / "worse.csv", ["rrraaa", "aaaaaa", "raaaaa"] * 60)
    assert gate(installed, tmp_path, log=str(worse), baseline=str(log)).returncode == 3
    nothing = file_of(tmp_path / "nothing.csv", ["aaaa"] * 40)
    limit = {"fail-above": "0.9"}
    assert gate(installed, tmp_path, log=str(nothing), **limit).returncode == 4
    none = gate(installed, tmp_path, log=str(log))
    assert none.returncode == 1 and "a gate without a limit" in none.stdout


def test_no_file_of_the_workspace_and_no_option_is_obeyed(installed, tmp_path):
    log = file_of(tmp_path / "--plan", ["rrrrrr", "aaaaaa", "raaaaa"] * 60)
    for name in ("typer.py", "pip.py", "paraguard_tools.py"):
        (tmp_path / name).write_text("import sys; sys.exit(0)")
    limit = {"fail-above": "0.1"}
    done = gate(installed, tmp_path, log="--plan", **limit)
    assert done.returncode == 3 and "worse: dr" in done.stdout, done.stderr
    report = tmp_path / "paraguard-audit" / "audit.xml"
    assert report.is_file()
    log.write_text("")
    assert gate(installed, tmp_path, log="--plan", **limit).returncode == 1
    assert not report.exists(), "the report of the run before"
    assert gate(installed, tmp_path, log="--demo", **limit).returncode == 1
