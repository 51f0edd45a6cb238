import gc
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pandas as pd
import pytest

# jsonschema, behind nbformat, takes this package where it is installed; it compiles a
# grammar for seconds as it is imported, and no notebook here has addresses to check.
sys.modules.setdefault("rfc3987_syntax", None)

# The same examples on every machine, and no verdict that hangs on how busy it is.
hypothesis.settings.register_profile(
    "paraguard",
    deadline=None,
    max_examples=200 if os.environ.get("PARAGUARD_WEEKLY") else 40,
    database=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("paraguard")


LONGEST = (
    "06_validity.ipynb",
    "A3_more.ipynb",
    "test_explorer.py",
    "A4_decisions.ipynb",
    "07_remedies.ipynb",
    "test_remedies_models.py",
    "test_rebuild.py",
    "test_unsafe.py",
    "test_handout.py",
    "test_live.py",
    "A5_what_it_hangs_on.ipynb",
    "test_hostile_gate.py",
    "test_outside_records.py",
    "test_served.py",
    "test_package.py",
    "test_faults.py",
    "test_commands.py",
    "test_action.py",
    "08_public_records.ipynb",
    "test_build.py",
    "test_project.py",
)
"""Files that take longest, which two workers begin with: one that is begun last leaves
the other worker without work.
"""


def place(item):
    """Return where a file stands in the order in which files run."""
    name = item.path.name
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


def pytest_collection_modifyitems(config, items):
    """Bring the longest files to the front; mark what opens pages; skip what only a
    weekly run tries; leave out what another environment has tried (`make test`).
    """
    items.sort(key=place)
    if passed := os.environ.get("PARAGUARD_PASSED"):
        tried = set(Path(passed).read_text(encoding="utf-8").splitlines())
        config.hook.pytest_deselected(items=[i for i in items if i.nodeid in tried])
        items[:] = [item for item in items if item.nodeid not in tried]
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker("browser")
        if item.get_closest_marker("weekly") and not os.environ.get("PARAGUARD_WEEKLY"):
            item.add_marker(pytest.mark.skip(reason="PARAGUARD_WEEKLY is not set"))


def pytest_collection_finish():
    """Collect no garbage among what is imported: it is looked through for seconds."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logreport(report):
    """Note in a file, if one is named, what has passed."""
    file = os.environ.get("PARAGUARD_NOTE_PASSED")
    in_worker = "PYTEST_XDIST_WORKER" in os.environ  # which tells the main process
    if file and not in_worker and report.when == "call" and report.passed:
        with Path(file).open("a", encoding="utf-8") as noted:
            noted.write(f"{report.nodeid}\n")


@pytest.fixture(autouse=True)
def closed_figures():
    """Figures that a test leaves open warn in a later one."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture(scope="module")
def browser():
    """A Chromium, where one is installed."""
    from playwright.sync_api import sync_playwright

    found = next(
        filter(
            None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
        ),
        None,
    )
    if found is None:
        pytest.skip(
            "no Chromium or Chrome is installed: pages are not tried in a browser"
        )
    with sync_playwright() as tools:
        opened = tools.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def results(tmp_path, monkeypatch):
    """Live stores below a temporary folder."""
    from paraguard_utils import paths

    monkeypatch.setattr(paths, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def answers(monkeypatch):
    """What the tiny model is made to say, by the key of what it is asked."""
    from asking import ANSWERS

    from paraguard_utils.models import engine

    said, real = {}, engine.Engine.ask

    def ask(self, batch):
        rows = real(self, batch)
        for row in rows:
            row["response"] = ANSWERS[int(row["key"], 16) % 3].format(row["key"][:4])
            said[row["key"]] = row["response"]
        return rows

    monkeypatch.setattr(engine.Engine, "ask", ask)
    return said


@pytest.fixture
def watched(monkeypatch):
    """What was written at any time, by path: parts are gone in the end."""
    from asking import texts_in

    from paraguard_utils import stores

    written, real = [], stores.write_atomically

    def write(path, produce):
        real(path, produce)
        written.append((path, texts_in(path)))

    monkeypatch.setattr(stores, "write_atomically", write)
    return written


@pytest.fixture
def store_name(tmp_path):
    """Name of a live store in the project itself, since notebooks run in processes of
    their own; removed afterwards.
    """
    from paraguard_utils import paths

    name = f"test-{tmp_path.name}"
    shutil.rmtree(paths.RESULTS / name, ignore_errors=True)  # of a run that was killed
    yield name
    shutil.rmtree(paths.RESULTS / name, ignore_errors=True)


@pytest.fixture
def command(monkeypatch, capsys):
    """The command line, run in this process: what it prints and the line it ends with,
    "" where all went well.
    """
    from paraguard_tools import __main__

    def call(*arguments):
        monkeypatch.setattr("sys.argv", ["paraguard", *arguments])
        with pytest.raises(SystemExit) as ended:
            __main__.main()
        done = capsys.readouterr()
        error = (
            done.err
            if isinstance(ended.value.code, int) and ended.value.code
            else ended.value.code or ""
        )
        return SimpleNamespace(printed=done.out, error=error, status=ended.value.code)

    return call


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory):
    """A tiny chat model in a folder."""
    import tiny

    return tiny.write(tmp_path_factory.mktemp("models") / "Tiny Chat")


@pytest.fixture(scope="session")
def tiny_model(tiny_folder):
    """The tiny chat model, loaded."""
    from paraguard_utils.models import loading

    return loading.load_model(loading.resolve_model(str(tiny_folder)))


@pytest.fixture(scope="session")
def recorded_corpus():
    """The recorded corpus."""
    from paraguard_utils import stores

    return stores.Store("recorded").read("corpus", "paraguard_mini")


@pytest.fixture
def prompts():
    """Nine short prompts of different lengths."""
    texts = ["how do I " + "kill a process " * i + f"{i}" for i in range(9)]
    return pd.DataFrame({"prompt_id": [f"p{i}" for i in range(9)], "text": texts})
