"""A rebuild from the record goes from top to bottom: what 03 changes shows in all that
follow.
"""

import base64
import os
import shutil
import subprocess
import sys

import nbformat
import pandas as pd
import pytest
import yaml

from paraguard_lab import run
from paraguard_utils import paths, stores

COPIED = ("paraguard_utils", "paraguard_lab", "paraguard_tools", "notebooks")
LINKED = ("figures", "benchmarks", "README.md", "CITATION.cff")
SYSTEMS = [
    f"{model}--{instruction}"
    for model in ("smollm2-135m-instruct-q4_1", "qwen2.5-coder-0.5b-instruct-q4_k_m")
    for instruction in ("safety", "strict")
]
GUARDS = [
    "hatesonar",
    "smollm2-135m-instruct-moderation",
    "harmful-exemplars",
    "smollm2-135m-instruct-refusal",
]
WEIGHTS = {"weight_drift": 0.5, "weight_prob_shift": 0.1, "weight_ppl": 0.4}


def write(store, kind, *names):
    """Write what the record has to where a rebuild writes it."""
    frame = stores.Store("recorded").read(kind, *names)
    return store.write(kind, *names, frame=frame, meta={"of": "this run"})


def test_a_rebuild_reads_what_it_has_written_and_nothing_older(results):
    recorded = stores.Store("recorded")
    name = ("paraguard_mini", "smollm2-135m-instruct-q4_1--safety")
    in_data = {kind: recorded.path(kind, *name) for kind in ("scores", "labels")}
    assert in_data["scores"].is_relative_to(paths.DATA)
    older = write(recorded, "tables", "wording")
    os.utime(older, (1, 1))
    with run.rebuild():
        assert recorded.path("scores", *name) == in_data["scores"]
        scores = write(recorded, "scores", *name)
        write(recorded, "labels", *name)  # as 05 does
        assert recorded.path("scores", *name) == scores
        assert stores.Store("recorded").path("scores", *name) == scores
        assert recorded.path("labels", *name) == in_data["labels"]
        assert recorded.path("tables", "wording") != older
    assert recorded.path("scores", *name) == in_data["scores"]


def test_only_runs_from_the_record_rebuild(results, monkeypatch):
    seen = {}

    def note(notebook, output, parameters, folder):
        seen[notebook.stem] = stores.REBUILD_START in os.environ

    monkeypatch.setattr(run, "execute_notebook", note)
    run.run_all("recorded", run.list_notebooks("03"))
    run.run_all("live", run.list_notebooks("04"))
    assert seen == {"03_scoring": True, "04_cohort_analysis": False}
    assert stores.REBUILD_START not in os.environ


def cut_data(folder):
    """Make a `data/` that is the record of some systems and guards."""
    folder.mkdir()
    for path in paths.DATA.iterdir():
        (folder / path.name).symlink_to(path)
    systems, guards = folder / "systems.csv", folder / "guards.yaml"
    listed = pd.read_csv(systems, keep_default_na=False)
    entries = yaml.safe_load(guards.read_text(encoding="utf-8"))
    entries["panel"] = {name: entries["panel"][name] for name in GUARDS}
    for file in (systems, guards):
        file.unlink()
    listed[listed["system"].isin(SYSTEMS)].to_csv(systems, index=False)
    guards.write_text(yaml.safe_dump(entries, sort_keys=False), encoding="utf-8")


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    """A copy of the project in which 03, 04, 05 and 00 ran under other weights, on some
    of the systems and guards.

    Returns its `results/recorded/`, and all that was printed.
    """
    root = tmp_path_factory.mktemp("rebuilt")
    for name in COPIED:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(paths.ROOT / name, root / name, ignore=ignored)
    for name in LINKED:
        (root / name).symlink_to(paths.ROOT / name)
    cut_data(root / "data")
    given = [f"-p{name}={value}" for name, value in WEIGHTS.items()]
    command = [sys.executable, "-m", "paraguard_tools", "run", "03", "04", "05", "00"]
    done = subprocess.run(
        [*command, *given, "-presamples=100"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return root / "results" / "recorded", done.stdout


def table_of(folder, name):
    table = pd.read_csv(folder / "tables" / f"{name}.csv")
    table = table[table["system"].isin([*SYSTEMS, *GUARDS])]
    if "interpretation" in table:
        table = table[table["interpretation"] == "relative"]
    return table.reset_index(drop=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changed", "same"),
    [
        ("table1_systems", "ci", "frr"),
        ("table2_cohorts", "ci", "n"),
        ("table3_guards", "cr60", "frr"),
    ],
)
def test_other_weights_are_seen_in_every_table(rebuilt, name, changed, same):
    after = table_of(rebuilt[0], name)
    before = table_of(paths.DATA, name)
    assert after["system"].tolist() == before["system"].tolist()
    assert set(after["system"]) >= set(SYSTEMS)
    assert after[same].tolist() == pytest.approx(before[same].tolist(), nan_ok=True)
    both = after[changed].notna() & before[changed].notna()
    assert both.any() and (after[changed] != before[changed])[both].mean() > 0.5


@pytest.mark.slow
def test_a_guards_scores_say_which_weights_they_have(rebuilt):
    folder = rebuilt[0] / "scores" / "paraguard_mini"
    for system in ("hatesonar", "smollm2-135m-instruct-q4_1--safety"):
        parameters = stores.read_meta(folder / f"{system}.csv")["parameters"]
        assert parameters.items() >= WEIGHTS.items()


@pytest.mark.slow
def test_the_results_show_what_this_run_made(rebuilt):
    folder, printed = rebuilt
    notebooks = {
        path.stem: nbformat.read(path, as_version=4)
        for path in (folder / "notebooks").iterdir()
    }
    assert sorted(notebooks) == [
        "00_results",
        "03_scoring",
        "04_cohort_analysis",
        "05_guard_comparison",
    ]
    outputs = [
        output
        for cell in notebooks["00_results"].cells
        for output in cell.get("outputs", [])
    ]
    shown = "\n".join(str(output) for output in outputs)
    cd = {}
    for place in (folder, paths.DATA):
        table = table_of(place, "table1_systems")
        cd[place] = f"{table.loc[~table['too_few'], 'cd'].max():.3f}"
    assert cd[folder] in shown and cd[folder] != cd[paths.DATA]
    pictures = {
        base64.b64decode(output["data"]["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    }
    for name in ("system_overview", "fig3_ci_similarity", "both_corpora"):
        assert (folder / "figures" / f"{name}.png").read_bytes() in pictures
    every = printed + "".join(str(notebook) for notebook in notebooks.values())
    assert "run 03" not in every
