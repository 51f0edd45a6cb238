"""The commands behind the Makefile: run all notebooks live, redraw from the record, promote a live run, make a report.

`python -m paraguard_utils.run {reproduce,figures,record,html}`
"""

import argparse
import contextlib
import os
import re
import shutil
import sys
import time

import nbformat
import pandas as pd

from paraguard_utils import encoder, models, paths, querying, stores, tables, targets
from paraguard_utils.errors import UserError
from paraguard_utils.settings import LIVE

CORPUS = "paraguard_mini"
MINUTES = "notebook_minutes"
COMPARED = {
    "table1_targets": ["target", "reading"],
    "table2_cohorts": ["target", "reading", "risk", "similarity"],
    "table3_guards": ["target", "reading"],
    "fig3_correlations": ["target", "reading"],
}
"""Tables compared with the record, and the columns that identify their rows."""

PROMOTED = ("corpus", "vectors", "traces", "guards", "labels", "pairs", "scores", "tables")
"""Folders of a live store that `record` copies to `data/`."""


def notebooks():
    """Return the project's notebooks in order."""
    return sorted(paths.NOTEBOOKS.glob("[0-9]*.ipynb"))


def execute(notebook, output, parameters):
    """Run one notebook with papermill, its progress bars on stderr.

    Parameters
    ----------
    notebook, output : Path
    parameters : dict

    Raises
    ------
    UserError
        A cell failed; the message is the cell's last line.
    """
    import papermill
    from traitlets.config import Config

    os.environ.setdefault("PYTHONWARNINGS", "ignore:IProgress not found")
    output.parent.mkdir(parents=True, exist_ok=True)
    try:
        papermill.execute_notebook(
            notebook,
            output,
            parameters,
            cwd=paths.ROOT,
            progress_bar=False,
            stderr_file=sys.stderr,
            # Local sockets instead of TCP ports: nothing on the machine can listen in.
            config=Config({"KernelManager": {"transport": "ipc"}}),
        )
    except papermill.PapermillExecutionError as error:
        raise UserError(f"{notebook.stem}: {error.ename}: {error.evalue}") from None


def run_all(store_name):
    """Run all notebooks in order, with a line for each, and return their minutes by name."""
    minutes = {}
    for notebook in notebooks():
        started = time.monotonic()
        print(f"{notebook.stem} ...", flush=True)
        output = paths.RESULTS / store_name / "notebooks" / notebook.name
        execute(notebook, output, {"store": store_name} if store_name != stores.RECORDED else {})
        minutes[notebook.stem] = round((time.monotonic() - started) / 60, 1)
        print(f"{notebook.stem} done in {minutes[notebook.stem]:.1f} min", flush=True)
    return minutes


def with_minutes(readme, minutes):
    """Put the recorded minutes into the last cell of each notebook's row in the README.

    Parameters
    ----------
    readme : str
    minutes : DataFrame
        notebook, minutes.

    Returns
    -------
    str
    """
    for row in minutes.itertuples():
        line = re.compile(rf"^(\|.*notebooks/{row.notebook}\.ipynb.*\|)[^|]*\|$", re.MULTILINE)
        readme = line.sub(rf"\1 {row.minutes:g} |", readme)
    return readme


def preflight():
    """Say what a live run has to do: prompts, already done, expected minutes, memory; return how many are done."""
    listed = targets.published("chat")
    live = stores.Store(LIVE)
    corpus = stores.Store(stores.RECORDED)
    size = len(corpus.read("corpus", CORPUS)) if corpus.has("corpus", CORPUS) else 0
    done = 0
    for name in listed.index:
        file = live.path("traces", CORPUS, name)
        for part in [file, *file.with_suffix(".parts").glob("part-*.parquet")]:
            with contextlib.suppress(OSError, ValueError):  # missing or damaged: asked again
                done += len(pd.read_parquet(part, columns=["prompt_id"]))
    total = size * len(listed)
    earlier = [stores.read_meta(corpus.path("traces", CORPUS, name)) for name in listed.index]
    asked = sum(meta.get("asked_now", 0) for meta in earlier)
    line = f"preflight: {total} prompts to ask ({size} x {len(listed)} targets), {min(done, total)} already done"
    if asked:
        minutes = max(total - done, 0) * sum(meta["seconds"] for meta in earlier) / asked / 60
        memory = max(meta.get("peak_gb", 0) for meta in earlier)
        line += f", about {minutes:.0f} min of asking and {memory:.1f} GB of memory, as in the recorded run"
    print(line, flush=True)
    return done


def reproduce():
    """Run every notebook live, then compare with the record."""
    for name in targets.published("chat")["model"].unique():
        models.resolve(name)  # before anything expensive
    done = preflight()
    live = stores.Store(LIVE)
    minutes = run_all(LIVE)
    if not done:  # a resumed run says nothing about how long the whole takes
        frame = pd.DataFrame(minutes.items(), columns=["notebook", "minutes"])
        live.write("tables", MINUTES, frame=frame, meta={})
    table = live.read("tables", "table1_targets")
    print("\nTable 1\n")
    columns = ["frr", "ci", "cr75", "cr60", "cd", "excess", "flip_rate"]
    print(tables.shown(table, columns, ["target", "reading", "n_reject", "n_scored"]).to_string(index=False))
    print("\nFigures:")
    for figure in sorted((live.writes / "figures").glob("*.p[nd][gf]")):
        print(f"  {paths.shown(figure)}")
    print("\nDifferences to the recorded run:")
    for line in differences(live):
        print(f"  {line}")


def differences(live):
    """Describe what differs between a live store and the record: labels, then tables number by number.

    Returns
    -------
    list of str
    """
    recorded = stores.Store(stores.RECORDED)
    lines, equal, total = [], 0, 0
    for name in [*targets.published("chat").index, *targets.published("guard").index]:
        if not recorded.has("labels", CORPUS, name):
            lines.append(f"labels of {name}: nothing recorded")
            continue
        old, new = (store.read("labels", CORPUS, name).set_index("prompt_id") for store in (recorded, live))
        same = old["label"].eq(new["label"].reindex(old.index))
        equal, total = equal + int(same.sum()), total + len(same)
        lines += [f"label of {prompt} by {name}: {old['label'][prompt]} recorded" for prompt in same.index[~same]]
    if total:
        lines.insert(0, f"labels: {equal} of {total} equal ({equal / total:.2%})")
    for name, keys in COMPARED.items():
        if not recorded.has("tables", name):
            lines.append(f"{name}: nothing recorded")
            continue
        # Which store a row comes from is no number.
        old, new = (store.read("tables", name).drop(columns="store", errors="ignore") for store in (recorded, live))
        found = tables.differences(old, new, keys)
        lines.append(f"{name}: {len(found)} numbers differ")
        for row in found.head(20).to_dict("records"):
            where = ", ".join(str(row[key]) for key in keys)
            lines.append(f"  {where}: {row['column']} {row['recorded']} recorded, {row['live']} live")
    return lines


def figures():
    """Redraw every table and figure from recorded traces, without a model."""
    run_all(stores.RECORDED)
    print(f"tables and figures are in {paths.shown(paths.RESULTS / stores.RECORDED)}")


def record():
    """Promote a live run to the record and execute the committed notebooks from it.

    Only the project's corpus and its published targets are promoted, whatever else the live store holds.
    """
    live = stores.Store(LIVE)
    for name in (*COMPARED, MINUTES):
        if not live.has("tables", name):
            raise UserError(f"the live store has no table {name}; run make reproduce, from scratch, first")
    known = [*targets.published("chat").index, *targets.published("guard").index]
    for name in COMPARED:
        meta = stores.read_meta(live.path("tables", name))["parameters"]
        rows = live.read("tables", name)
        if meta["corpus"] != CORPUS or not set(rows["target"]) <= set(known) or meta.get("model"):
            raise UserError(f"the live table {name} is of another corpus or other targets; run make reproduce first")
    for folder in PROMOTED:
        _replace(live.writes / folder, paths.DATA / folder, known)
    path = paths.DATA / "tables" / "table1_targets.csv"
    frame = stores.read(path, "tables").assign(store=stores.RECORDED)
    stores.write(path, frame, "tables", stores.read_meta(path))
    figure_map = (paths.FIGURES / "FIGURE_MAP.csv").read_bytes()
    _replace(live.writes / "figures", paths.FIGURES, known)
    (paths.FIGURES / "FIGURE_MAP.csv").write_bytes(figure_map)
    readme = paths.ROOT / "README.md"
    minutes = stores.Store(stores.RECORDED).read("tables", MINUTES)
    readme.write_text(with_minutes(readme.read_text(encoding="utf-8"), minutes), encoding="utf-8")
    run_all(stores.RECORDED)
    for notebook in notebooks():
        executed = paths.RESULTS / stores.RECORDED / "notebooks" / notebook.name
        nbformat.write(cleaned(nbformat.read(executed, as_version=4)), notebook)


def _replace(source, destination, targets):
    """Copy a live folder's publishable files over another's, and remove there what is not among them."""
    wanted = {path.relative_to(source) for path in source.rglob("*") if path.is_file() and _publishable(path, targets)}
    for path in destination.rglob("*"):
        if path.is_file() and path.relative_to(destination) not in wanted:
            path.unlink()
    for name in wanted:
        (destination / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, destination / name)


def _publishable(path, targets):
    stem = path.name.removesuffix(".meta.json").rpartition(".")[0]
    if path.suffix in (".lock", ".corrupt", ".tmp") or ".parts" in path.parent.name:
        return False
    if path.parents[1].name in ("traces", "guards", "labels", "pairs", "scores"):
        return path.parent.name == CORPUS and stem in targets
    if path.parent.name == "corpus" or path.parent.name == encoder.NAME:
        return stem == CORPUS
    if path.parents[1].name == "vectors":
        return path.parent.name in {querying.model_of(name) for name in targets}
    return not stem.startswith("most_confused_") or stem.removeprefix("most_confused_") in targets


def cleaned(notebook):
    """Remove what a run leaves behind, but keep tags, outputs and execution counts.

    Parameters
    ----------
    notebook : nbformat.NotebookNode

    Returns
    -------
    nbformat.NotebookNode
    """
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    notebook.cells = [cell for cell in notebook.cells if "injected-parameters" not in cell.metadata.get("tags", [])]
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {"tags": cell.metadata.tags} if cell.metadata.get("tags") else {}
        if cell.cell_type == "code":
            # Warnings and progress bars vary from run to run.
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def html():
    """Write one readable report of all recorded notebooks."""
    from nbconvert import HTMLExporter

    joined = nbformat.v4.new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}})
    for notebook in notebooks():
        joined.cells += nbformat.read(notebook, as_version=4).cells
    for number, cell in enumerate(joined.cells):
        cell.id = f"cell-{number}"
    body, _ = HTMLExporter(template_name="classic", embed_images=True).from_notebook_node(
        joined, resources={"metadata": {"name": "ParaGuard"}}
    )
    path = paths.RESULTS / "report.html"
    path.parent.mkdir(exist_ok=True)
    path.write_text(body, encoding="utf-8")
    print(f"the report is {paths.shown(path)}")


def main():
    """Run one command; a user's error is one line on stderr."""
    commands = {"reproduce": reproduce, "figures": figures, "record": record, "html": html}
    parser = argparse.ArgumentParser(prog="python -m paraguard_utils.run", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=commands)
    try:
        commands[parser.parse_args().command]()
    except UserError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
