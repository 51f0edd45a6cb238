"""Write the pages about a store: the site of the record, and the explorer."""

import json
from pathlib import Path

import nbformat
import yaml

from paraguard_lab import run
from paraguard_lab.analysis import guarded
from paraguard_lab.report import croissant, numbers
from paraguard_tools.pages import explorer, handout
from paraguard_utils import paths, registry, stores, unsafe
from paraguard_utils.analysis import pipeline
from paraguard_utils.labels import systems
from paraguard_utils.settings import CORPUS, StudySettings, check_settings
from paraguard_utils.stores import RECORDED, Store


def write_html(folder: Path | None = None) -> None:
    """Write the site of the record into a folder, by default `results/`.

    Its pages are the first page, the report, the explorer, the data card, the method
    and the leaderboard.
    """
    folder = folder or paths.RESULTS
    notebooks = {
        path.stem: nbformat.read(path, as_version=4) for path in run.list_notebooks()
    }
    sources = [paths.ROOT / file for file in handout.SITE_PAGES]
    filled = numbers.collect_numbers(Store(RECORDED), [handout.ABSTRACT, *sources])
    citation = (paths.ROOT / "CITATION.cff").read_text(encoding="utf-8")
    card = croissant.CROISSANT_FILE.read_text(encoding="utf-8")
    report = handout.render_report(
        notebooks, filled, citation=yaml.safe_load(citation), record=json.loads(card)
    )
    stores.write_text(folder / "report.html", report)
    for file, page in handout.SITE_PAGES.items():
        markdown = (paths.ROOT / file).read_text(encoding="utf-8")
        markdown = numbers.fill_numbers(markdown, filled)
        stores.write_text(folder / page, handout.render_page(file, markdown, notebooks))
    write_explorer(
        check_settings({"store": RECORDED, "corpus": CORPUS}, StudySettings), folder
    )
    print(
        f"open {paths.display_path(folder / 'index.html')}, which links to the report"
        " and all other pages"
    )


def write_explorer(config: StudySettings, folder: Path | None = None) -> None:
    """Write the explorer of a store's decisions on one corpus.

    If the settings name a model, it has the systems of that model only.
    """
    files = config.open_files()
    unsafe.refuse_unsafe(files.prompts, "the explorer")  # before all scores are read
    names = systems.list_systems_to_score(files, config.model)
    decided = pipeline.read_systems(files, names)
    decided |= guarded.read_guards(files, decided.values())
    titles = dict(zip(decided, registry.display_titles(decided), strict=True))
    header = explorer.ExplorerHeader(files.name, files.store.name, titles)
    page = explorer.render_explorer(files.prompts, decided, header)
    path = (folder or paths.RESULTS) / "explorer.html"
    stores.write_text(path, page)
    print(
        f"{path.stat().st_size / 1e6:.1f} MB: open {paths.display_path(path)} in a"
        " browser"
    )
