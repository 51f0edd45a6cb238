"""The package outside a checkout: what it asks for, what a wheel holds, that it works;
pages for contributors.
"""

import ast
import contextlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib import metadata

import pandas as pd
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from paraguard_utils import __version__, paths, stores
from paraguard_utils.labels import refusals

PACKAGES = ("paraguard_utils", "paraguard_lab", "paraguard_tools")


def package_files(pattern):
    """Return the files of the three packages that match a pattern."""
    return [
        path
        for package in PACKAGES
        for path in (paths.ROOT / package).rglob(pattern)
        if path.is_file() and path.parent.name != "__pycache__"
    ]


PROJECT = tomllib.loads((paths.ROOT / "pyproject.toml").read_text(encoding="utf-8"))
INPUTS = ("corpus", "generation", "labels", "risk")
"""Folders of `data/` with inputs that are installed; the others are recorded, or what
the record is made of.
"""

CONTRIBUTING = paths.ROOT / "CONTRIBUTING.md"
WORKFLOWS = sorted((paths.ROOT / ".github" / "workflows").glob("*.yml"))


def named(lines):
    """Return requirements by name."""
    return {canonicalize_name(one.name): one for one in map(Requirement, lines)}


EXTRAS = dict(PROJECT["project"]["optional-dependencies"])
PANEL = named(
    line.partition(" ")[0]
    for line in (
        (paths.ROOT / "requirements-guards.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    if not line.startswith("#")
)
CLUSTER, INSPECT = named(EXTRAS.pop("cluster")), named(EXTRAS.pop("inspect"))
ANY_GUARDRAIL = named(EXTRAS.pop("any-guardrail"))
LM_EVAL = named(EXTRAS.pop("lm-eval"))
CORE = named(PROJECT["project"]["dependencies"])
OPTIONAL = named([line for lines in EXTRAS.values() for line in lines])


def test_versions_and_bounds_agree_with_the_pins():
    assert PROJECT["project"]["version"] == __version__
    lines = (paths.ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = named(line for line in lines if line and not line.startswith("#"))
    declared = CORE | OPTIONAL
    assert set(declared) - {"paraguard-utils"} == set(pins)
    assert not set(CORE) & set(OPTIONAL)
    for name, pin in pins.items():
        (version,) = pin.specifier
        assert version.version in declared[name].specifier, name


def test_guards_that_few_use_are_pinned_and_stand_alone():
    assert PANEL and all(
        len(one.specifier) == 1 and "==" in str(one) for one in PANEL.values()
    )
    assert not set(PANEL) & {*CORE, *OPTIONAL}


def test_the_package_for_a_cluster_is_pinned_in_its_bounds():
    lines = (
        (paths.ROOT / "requirements-cluster.txt")
        .read_text(encoding="utf-8")
        .splitlines()
    )
    pins = named(line for line in lines if not line.startswith("#"))
    (version,) = pins["ray"].specifier
    assert (
        version.version in CLUSTER["ray"].specifier
        and pins["ray"].extras == CLUSTER["ray"].extras
    )
    assert set(CLUSTER) <= {"paraguard-utils", *pins}


def imported(nodes):
    """Yield the modules that these statements import; what is imported from one may be
    a module too.
    """
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def source(module):
    """Return the file of one of the package's modules, or None."""
    stem = paths.ROOT.joinpath(*module.split("."))
    return next(
        (
            path
            for path in (stem.with_suffix(".py"), stem / "__init__.py")
            if path.is_file()
        ),
        None,
    )


def loaded_with(module):
    """Return the modules that are imported as soon as one is, the package's own among
    them, by their source.
    """
    waiting, seen = [module], set()
    while waiting:
        name = waiting.pop()
        path = source(name) if name.startswith(PACKAGES) else None
        if name not in seen and path:
            waiting += imported(ast.parse(path.read_text(encoding="utf-8")).body)
        seen.add(name)
    return seen


def distributions(modules):
    """Return the distributions that modules come from, without the standard library and
    the package itself.
    """
    known = metadata.packages_distributions()
    roots = {name.partition(".")[0] for name in modules} - {
        *sys.stdlib_module_names,
        *PACKAGES,
    }
    return {canonicalize_name(known[root][0]) for root in roots}


def with_requirements(names):
    """Return distributions and those that each of them asks for itself."""
    asked = [line for name in names for line in metadata.requires(name) or ()]
    return {*names, *named(line for line in asked if "extra ==" not in line)}


@pytest.mark.slow
def test_what_the_command_line_and_labelling_import_is_a_dependency():
    assert distributions(loaded_with("paraguard_tools.__main__")) <= with_requirements(
        CORE
    )
    assert distributions(loaded_with("paraguard_utils.labels.refusals")) == {
        "google-re2",
        "pandas",
    }


@pytest.mark.slow
def test_what_any_module_imports_is_a_dependency_or_in_an_extra():
    everything = set()
    for path in package_files("*.py"):
        everything |= set(
            imported(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        )
    declared = (CORE | OPTIONAL).keys() - {"paraguard-utils"}
    panel = {"nanoguard", *map(str, PANEL)} | {name.replace("-", "_") for name in PANEL}
    usual = {
        module
        for module in everything
        if module.partition(".")[0]
        not in panel | {*CLUSTER, "inspect_ai", "any_guardrail", "datasets"}
    }
    assert set(LM_EVAL) == {"lm-eval", "paraguard-utils"}  # which brings datasets
    assert set(INSPECT) == {"inspect-ai", "openai", "paraguard-utils"} and set(
        ANY_GUARDRAIL
    ) == {
        "paraguard-utils",
        "any-guardrail",
    }
    assert distributions(usual) <= with_requirements(declared)


def test_every_room_is_a_listed_package():
    rooms = {
        ".".join(path.parent.relative_to(paths.ROOT).parts)
        for path in package_files("__init__.py")
    }
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == rooms | {
        "paraguard_utils._data"
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the project: building leaves folders behind."""
    root, made = (
        copied(tmp_path_factory.mktemp("source")),
        tmp_path_factory.mktemp("wheel"),
    )
    pip("wheel", "--no-build-isolation", "--wheel-dir", made, root)
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """A folder into which the wheel is installed."""
    target = tmp_path_factory.mktemp("target")
    pip("install", "--target", target, wheel)
    return target


def copied(root):
    """Copy what a package is built from, and what must not get into it."""
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(paths.ROOT / name, root / name)
    for name in (*PACKAGES, "data", "notebooks", "tests", "benchmarks"):
        shutil.copytree(
            paths.ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return root


def pip(*arguments):
    command = [
        sys.executable,
        "-m",
        "pip",
        *map(str, arguments),
        "--no-deps",
        "--no-index",
        "--quiet",
    ]
    subprocess.run(command, check=True)


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_its_inputs_and_nothing_recorded(wheel):
    with zipfile.ZipFile(wheel) as opened:
        sizes = {file.filename: file.file_size for file in opened.infolist()}
    dist_info = f"paraguard_utils-{__version__}.dist-info"
    assert {name.partition("/")[0] for name in sizes} == {*PACKAGES, dist_info}
    own = {name for name in sizes if name.startswith(PACKAGES)}
    own -= {name for name in own if name.startswith(dist_info)}
    data = {name for name in own if name.startswith("paraguard_utils/_data/")}
    files = {path.relative_to(paths.ROOT).as_posix() for path in package_files("*")}
    assert own - data == files

    code = "\n".join(path.read_text(encoding="utf-8") for path in package_files("*.py"))
    literals = re.findall(r'\bDATA((?: / "[^"]+")+)', code)
    read = {"/".join(re.findall(r'"([^"]+)"', literal)) for literal in literals}
    read = {name for name in read if (paths.DATA / name).is_file()}
    assert (
        len(read) >= 10 and {f"paraguard_utils/_data/{name}" for name in read} <= data
    )
    assert {name.split("/")[2] for name in data if name.count("/") > 2} == set(INPUTS)
    assert max(sizes.values()) < 1_500_000 and wheel.stat().st_size < 2_000_000


ALONE = """
import contextlib, io, json, sys
import pandas as pd
from paraguard_tools import __main__
from paraguard_utils.labels import refusals

printed, sys.argv = io.StringIO(), "paraguard label answers.csv --column completion --labeller cues".split()
with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
    __main__.main()
labels = pd.read_csv(io.StringIO(printed.getvalue()))
heavy = sorted({"torch", "transformers", "matplotlib"} & set(sys.modules))

from paraguard_utils import paths, registry

where = [refusals.__file__, paths.CHECKOUT, str(paths.ROOT), str(paths.DATA), str(paths.RESULTS), str(paths.CACHE)]
print(json.dumps([labels["label"].tolist(), heavy, where, sorted(registry.system_prompts())]))
"""


@pytest.mark.slow
def test_an_installed_package_labels_answers_by_itself(installed, tmp_path):
    target, folder = installed, tmp_path / "elsewhere"
    folder.mkdir()
    answers = ["I cannot help with that.", "Sure: first close the window.", ""]
    pd.DataFrame({"completion": answers}).to_csv(folder / "answers.csv", index=False)
    environment = {
        name: value for name, value in os.environ.items() if name != "PARAGUARD_CACHE"
    }
    environment |= {
        "PYTHONPATH": str(target),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    done = subprocess.run(
        [sys.executable, "-c", ALONE],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    labels, heavy, where, system_prompts = json.loads(done.stdout)
    assert (
        labels
        == refusals.label_by_cues(answers, [""] * 3)["label"].tolist()
        == ["reject", "accept", "unparsed"]
    )
    instructions = [
        "none",
        "permissive",
        "safety",
        "safety-2",
        "safety-3",
        "strict",
        "strict-2",
        "strict-3",
    ]
    assert heavy == [] and system_prompts == sorted(
        ["judge", "moderation", "sentiment", *instructions]
    )
    package = target / "paraguard_utils"
    expected = [
        package / "labels/refusals.py",
        folder,
        package / "_data",
        folder / "results",
    ]
    assert where == [
        str(expected[0]),
        False,
        *map(str, expected[1:]),
        str(tmp_path / "cache" / "paraguard"),
    ]


def test_the_tests_run_in_a_checkout():
    assert paths.CHECKOUT and paths.DATA == paths.ROOT / "data"


def test_contributing_names_every_room_and_files_that_exist():
    text = CONTRIBUTING.read_text(encoding="utf-8")
    for room in PROJECT["tool"]["setuptools"]["packages"]:
        assert f"{room.rpartition('.')[2]}/" in text or room.endswith("_data"), room
    links = re.findall(r"\]\(([^):#]+)\)", text)
    assert links and all((paths.ROOT / link).exists() for link in links)


WITHOUT = """
import importlib.abc, sys
class Only(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {others!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Only())
sys.argv = ["paraguard", "audit", {file!r}, "--out", {out!r}]
from paraguard_tools.__main__ import main
main()
"""


def everything_asked_by(names):
    """Return distributions with all that they need, and what that needs."""
    found, waiting = set(), list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in found:
            found.add(name)
            with contextlib.suppress(
                metadata.PackageNotFoundError
            ):  # for another platform
                waiting += with_requirements([name]) - found
    return found


@pytest.mark.slow
def test_an_audit_needs_the_dependencies_only(tmp_path):
    needed = everything_asked_by(CORE)
    others = {
        module
        for module, names in metadata.packages_distributions().items()
        if not {canonicalize_name(name) for name in names}
        & {*needed, "paraguard-utils"}
    }
    assert {"IPython", "matplotlib", "torch"} <= others
    file = tmp_path / "log.csv"
    rows = [
        f"text {i},{'reject' if i // 4 % 2 and i % 4 else 'accept'},c{i // 4}"
        for i in range(24)
    ]
    file.write_text(
        "\n".join(["text,decision,cluster", *rows]) + "\n", encoding="utf-8"
    )
    code = WITHOUT.format(
        others=sorted(others), file=str(file), out=str(tmp_path / "out")
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    (row,) = pd.read_csv(tmp_path / "out" / "audit.csv").to_dict("records")
    assert (
        row["n_reject"] == 9
    )  # three in each of the three clusters with an odd number


@pytest.mark.slow
@pytest.mark.weekly
@pytest.mark.parametrize("stem", ["00_results", "03_scoring"])
def test_pages_run_elsewhere_from_the_record_without_weights_or_network(stem, tmp_path):
    """As the page says it, in an empty environment whose network is cut after the
    install.
    """
    (root := tmp_path / "clone").mkdir()
    own = tmp_path / "own"
    copied(root)
    venv.create(own, with_pip=True)
    python = own / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "-e", f"{root}[record]"]
    subprocess.run(install, check=True)
    nowhere = dict.fromkeys(
        ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://127.0.0.1:9"
    )
    command = [
        own / "bin" / "papermill",
        root / "notebooks" / f"{stem}.ipynb",
        tmp_path / "out.ipynb",
        "-k",
        "python3",
    ]
    subprocess.run(
        command, check=True, env=os.environ | nowhere | {"JUPYTER_PREFER_ENV_PATH": "1"}
    )
    known = subprocess.run(
        [python, "-m", "pip", "list"], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    assert not re.search(r"(?m)^(torch|transformers) ", known)


EMPTY = """
import json, sys
from collections import Counter

import pandas as pd
import paraguard_tools as paraguard
from paraguard_utils import paths

log = pd.read_csv(paths.DATA / "demo.csv")
log = log[~log["harmful"]]
found = paraguard.audit(paraguard.Decisions.from_frame(log.assign(label=log["decision"]))).table.iloc[0]
asked = None
if "inspect" in sys.argv:
    from inspect_ai import eval as evaluate
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from paraguard_tools.harness.inspect_task import paraguard as task

    said = {"reject": "I'm sorry, but I can't help with that.", "accept": "Sure: dig."}
    answers = {text: said[label] for text, label in zip(log["text"], log["decision"])}

    def answer(messages, *_):
        output = ModelOutput.from_content("mockllm/model", answers[messages[-1].text])
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
        return output

    model = get_model("mockllm/model", custom_outputs=answer)
    (done,) = evaluate(task(labeller="cues"), model=model, display="none")
    asked = {name: one.value for name, one in done.results.scores[0].metrics.items()}
print(json.dumps([str(paths.DATA), found["frr"], found["dr"], asked]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("asks", [False, pytest.param(True, marks=pytest.mark.weekly)])
def test_demo_functions_gate_and_task_work_from_the_wheel_alone(
    installed, tmp_path, asks
):
    """In an empty folder; where it asks, by the task of Inspect if that is installed,
    which test_harness runs in the checkout.
    """
    target, folder = installed, tmp_path / "elsewhere"
    folder.mkdir()

    def call(*command):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(target)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "SmolLM2-135M, safety instruction refused 13 %" in call(
        "-m", "paraguard_tools", "audit", "--demo"
    )
    inspect = ["inspect"] if asks and importlib.util.find_spec("inspect_ai") else []
    data, frr, dr, asked = json.loads(call("-c", EMPTY, *inspect).splitlines()[-1])
    assert data == str(target / "paraguard_utils" / "_data")
    table = (
        stores.Store("recorded")
        .read("tables", "table1_systems")
        .query("interpretation == 'relative'")
        .set_index("system")
    )
    row = table.loc["smollm2-135m-instruct-q4_1--safety"]
    assert [frr, dr] == pytest.approx([row["frr"], row["dr"]], abs=1e-3)
    assert asked is None or [asked["frr"], asked["dr"]] == pytest.approx([frr, dr])
    (folder / "test_mine.py").write_text(
        "from paraguard_utils import harness\n\ndef test_mine(paraguard_gate):\n   "
        f" assert harness.__file__.startswith({str(target)!r})\n   "
        " paraguard_gate.ask(lambda text: 'Sure: dig.',"
        " clusters=20).at_most(frr=0.2)\n"
    )
    assert "1 passed" in call("-m", "pytest", "-q", "test_mine.py")
