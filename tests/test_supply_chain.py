"""Workflows and the release: what a stranger can name is never run."""

import os
import re
import runpy
import shutil
import subprocess

import pytest
import yaml

from paraguard_utils import paths

WORKFLOWS = sorted((paths.ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")


def list_steps(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.name == "action.yml":
        return content["runs"]["steps"]
    return [step for job in content["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, paths.ROOT / "action.yml"], ids=lambda path: path.name
)
def test_actions_are_pinned_and_no_expression_reaches_a_shell(path):
    text = path.read_text(encoding="utf-8")
    used = re.findall(r"^ *(?:- )?(uses: .*)$", text, flags=re.MULTILINE)
    assert len(used) == sum("uses" in step for step in list_steps(path))
    assert [line for line in used if not PINNED.fullmatch(line)] == []
    for step in list_steps(path):
        assert "${{" not in step.get("run", "")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_may_read_only(path):
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert content["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in content[True]  # YAML reads `on` as true
    more = {
        (name, scope)
        for name, job in content["jobs"].items()
        for scope, right in job.get("permissions", {}).items()
        if right == "write"
    }
    allowed = {
        "release.yml": {("publish", "id-token")},
        "site.yml": {("deploy", "pages"), ("deploy", "id-token")},
    }
    assert more == allowed.get(path.name, set())


TAGS = (
    "v1;touch${IFS}CANARY;#",
    "$(touch CANARY)",
    "v1.0.0`touch CANARY`",
    "$(shell touch CANARY)",
    "--help",
    "v1.0.0\n",
    "v1.0",
    "v\u0661.0.0",
)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_is_a_version_before_anything_is_built(tag):
    release = runpy.run_path(str(paths.ROOT / "tests" / "release.py"))
    with pytest.raises(SystemExit, match="is no version such as"):
        release["release"](tag)
    for fine in ("", "v1.0.0", "1.20.3"):
        release["check_tag"](fine)


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_reaches_no_shell(tag, tmp_path):
    if not shutil.which("make"):
        pytest.skip("there is no make")
    shutil.copy(paths.ROOT / "Makefile", tmp_path)
    before = set(tmp_path.iterdir())
    done = subprocess.run(
        ["make", "dist", "PYTHON=echo"],
        cwd=tmp_path,
        env=os.environ | {"TAG": tag},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "echo tests/release.py\ntests/release.py\n" in done.stdout
    assert set(tmp_path.iterdir()) == before
