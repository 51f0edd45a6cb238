"""The explorer: one page on which a reader explores the rejections of a store (`docs/method.md`, Metrics)."""

import argparse
import sys
from pathlib import Path

from paraguard_utils import paths, registry, settings, stores
from paraguard_utils.errors import UserError
from paraguard_utils.querying import targets
from paraguard_utils.report import explorer_page
from paraguard_utils.scoring import pipeline
from paraguard_utils.settings import CORPUS, Settings
from paraguard_utils.stores import Store


def write(store: Store, corpus_name: str, config: Settings, path: Path) -> int:
    """Write the page of all targets that 03 describes in a store.

    Parameters
    ----------
    store : stores.Store
    corpus_name : str
    config : settings.Settings
        model is used.
    path : Path

    Returns
    -------
    int
        Rejections on the page.

    Raises
    ------
    UserError
        Files are missing or do not belong together, or `path` cannot be written.
    """
    corpus = store.read_earlier("corpus", corpus_name)
    names, _ = targets.to_score(store, corpus_name, config)
    data = pipeline.scored_targets(store, corpus_name, corpus, names)
    titles = dict(zip(names, registry.titles(names), strict=True))
    html = explorer_page.page(corpus, data, explorer_page.About(corpus_name, store.name, titles))
    stores.atomic(path, lambda part: part.write_text(html, encoding="utf-8"))
    return len(pipeline.rejections({name: own.scores for name, own in data.items()}))


def main():
    """Write one page on which the rejections of a store can be explored, without a network."""
    parser = argparse.ArgumentParser(prog="python -m paraguard_utils.report.explorer", description=main.__doc__)
    parser.add_argument("--store", default=stores.RECORDED, help="a store with scores (default: %(default)s)")
    parser.add_argument("--corpus", default=CORPUS, help="the corpus's name (default: %(default)s)")
    parser.add_argument("--model", default="", help="also this model's targets; implies the live store")
    options = parser.parse_args()
    path = paths.RESULTS / "explorer.html"
    try:
        config = settings.freeze(vars(options))
        n = write(config.open_store(), config.corpus, config, path)
    except UserError as error:
        sys.exit(f"error: {error}")
    print(f"{n} rejections, {path.stat().st_size / 1e6:.1f} MB: open {paths.shown(path)} in a browser")


if __name__ == "__main__":
    main()
