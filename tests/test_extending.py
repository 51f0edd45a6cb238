"""How many files it takes to add one of each: in a copy of the project something is
added, and it works.
"""

import shutil
import subprocess
import sys
from importlib import metadata

import pytest

from paraguard_utils import paths

METRIC = {
    "paraguard_utils/analysis/confusion.py": {
        "\n\nRATES = {\n": (
            """

def share_answered(system):
    scored = system.is_scored
    ids = system.prompts["cluster_id"].to_numpy()[scored]
    return system.clusters.share(ids, system.refused[scored] == 0)


RATES = {
    "answered": Measure("helped", share_answered, headline=True),
"""
        ),
    },
}
"""By file: texts that stand there once, and what takes their place; what is added where
there is no such file.
"""

FIGURE = {
    "paraguard_utils/report/figures/corpus.py": {
        "\n\ndef plot_gate_distributions(": (
            """

def plot_lengths(table):
    figure, axis = style.subplots(1, 1)
    axis.hist(table)
    return figure


def plot_gate_distributions("""
        ),
    },
    "paraguard_utils/report/figures/__init__.py": {
        "corpus import plot_gate_distributions": (
            "corpus import plot_gate_distributions, plot_lengths"
        ),
        '"plot_gate_distributions",': '"plot_gate_distributions",\n    "plot_lengths",',
    },
    "figures/FIGURE_MAP.csv": {
        "sources\nCorpus gates,": (
            """sources
Lengths,notebooks/01_corpus_building.ipynb,figures/lengths.png,column,data/corpus/paraguard_mini.csv
Corpus gates,"""
        ),
    },
    "notebooks/01_corpus_building.ipynb": {
        "plot_gate_distributions(measured, limits)": "plot_lengths(lengths)"
    },
}

LABELLER = {
    "paraguard_lab/labels/readings.py": {
        '    if labeller == "aside":\n': (
            """    if labeller == "lenient":
        return labels.assign(label="accept")
    if labeller == "aside":
"""
        ),
    },
    "paraguard_utils/settings.py": {
        '    "combined", "full"': '    "combined", "lenient", "full"'
    },
}

VERSION = metadata.version("tabulate")
"""Of a package that is installed, in the place of a guard's."""

GUARD = {
    "data/guards.yaml": {
        "\npanel:\n": (
            f"""
panel:
  tabulate:
    title: Shouted
    kind: package
    version: {VERSION}
    sha256: "{"0" * 64}"
    threshold: 0.5
    axis: toxicity
    licence: MIT
    citation: https://example.org
    about: rejects what is shouted
"""
        ),
    },
    "paraguard_tools/guards/packaged.py": {
        '\n@_loads("hatesonar")\n': (
            """
@_loads("tabulate")
def _load_tabulate(files):
    return lambda texts: [float(text.isupper()) for text in texts]


@_loads("hatesonar")
"""
        ),
    },
    "requirements-guards.txt": {
        "\nhatesonar==": (
            f"\ntabulate=={VERSION} --hash=sha256:{'0' * 64}\nhatesonar=="
        ),
    },
}

REMEDY = {
    "paraguard_lab/remedies/catalogue/yes_to_all.py": {
        "": (
            """from paraguard_lab.remedies.contract import RemediedSystem, Remedy


def apply(base, train, validation):
    return RemediedSystem(lambda of, prompts: base.decide(of, prompts).assign(label="accept"))


REMEDIES = (Remedy("yes-to-all", "decision", "ours", apply),)
"""
        ),
    },
}

USES = {
    "metric": (
        METRIC,
        1,
        """
import pandas as pd
from paraguard_lab.analysis.comparisons import compare_systems
from paraguard_lab.analysis.excess import COMPARED_MEASURES
from paraguard_utils.analysis import confusion
from paraguard_utils.analysis.system import System
from paraguard_utils.report import tables
corpus = pd.DataFrame({"prompt_id": list("abcd"), "cluster_id": list("xxyy")})
labels = pd.DataFrame({"label": ["accept", "reject", "accept", "accept"]})
system = System.of("t", corpus, labels)
row = confusion.rate_row(system)
shown = tables.format_estimates(pd.DataFrame([row]), ["answered"], ["system"])
assert shown.iloc[0, 1].startswith("0.750 ["), shown
assert "helped |" in tables.to_markdown(shown, "")
both = {name: confusion.estimate_rates(system) for name in "ab"}
compared = compare_systems(both, ["frr", *COMPARED_MEASURES[:1]])
assert "answered" in set(compared["measure"])
""",
    ),
    "figure": (
        FIGURE,
        4,
        """
import matplotlib
matplotlib.use("agg")
from paraguard_utils.report import figures
assert figures.plot_lengths([1, 2, 2]).axes
""",
    ),
    "labeller": (
        LABELLER,
        2,
        """
import pandas as pd
from paraguard_utils.labels import labelling
from paraguard_utils.settings import AnalysisSettings, check_settings
given = {"store": "mine", "corpus": "mine", "labeller": "lenient"}
given = check_settings(given, AnalysisSettings)
labels = pd.DataFrame({"label": ["reject", "accept"], "kind": ["policy", ""], "answer": "on_topic"})
assert labelling.convert_labels(labels, given.labeller)["label"].eq("accept").all()
""",
    ),
    "guard": (
        GUARD,
        3,
        """
from paraguard_utils import registry
from paraguard_utils.guards import panel
from paraguard_utils.settings import GuardSettings, check_settings
given = check_settings({"store": "mine", "corpus": "mine"}, GuardSettings)
assert "tabulate" in given.asked_guards()
guard = panel.load_guard("tabulate")
assert list(guard.score(["KILL THEM", "kill weeds"])) == [1, 0] and guard.axis == "toxicity"
assert registry.display_titles(["tabulate"]) == ["Shouted"]
""",
    ),
    "remedy": (
        REMEDY,
        2,
        """
from paraguard_lab.remedies import catalogue
assert catalogue.all_remedies()["yes-to-all"].kind == "decision"
""",
    ),
}
"""What is added, how many files that may take beside its test, and a use of it."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of what the package and its inputs are."""
    folder = tmp_path_factory.mktemp("copy")
    kept = shutil.ignore_patterns(
        "__pycache__", "traces", "vectors", "pairs", "samples"
    )
    packages = ("paraguard_utils", "paraguard_lab", "paraguard_tools")
    for name in (*packages, "data", "figures", "notebooks"):
        shutil.copytree(paths.ROOT / name, folder / name, ignore=kept)
    for name in ("pyproject.toml", "requirements-guards.txt"):
        shutil.copy(paths.ROOT / name, folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", USES)
def test_one_more_takes_few_files(name, copy):
    added, most, use = USES[name]
    assert len(added) <= most
    for file, changes in added.items():
        path = copy / file
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for old, new in changes.items():
            assert text.count(old) == 1 or text == old, f"{file}: {old!r}"
            text = text.replace(old, new) if old else new
        path.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", use],
        cwd=copy,
        env={"PYTHONPATH": str(copy), "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
