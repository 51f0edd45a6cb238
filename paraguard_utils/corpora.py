"""Reading what a corpus is built from, and the corpus itself."""

from functools import partial

from paraguard_utils import encoder, paths, stores
from paraguard_utils.errors import DataError
from paraguard_utils.settings import input_file


def read_inputs(seeds, candidates):
    """Read and check a seeds file and a candidates file.

    Parameters
    ----------
    seeds, candidates : str
        Paths, relative to the caller's folder or to the project.

    Returns
    -------
    seeds, candidates : DataFrame

    Raises
    ------
    UserError
        A file is missing or does not fit, or a candidate names a seed that is not there.
    """
    seed_file, candidate_file = input_file(seeds), input_file(candidates)
    seed_rows = _stripped(stores.read(seed_file, "seeds"))
    candidate_rows = _stripped(stores.read(candidate_file, "candidates"))
    orphans = ~candidate_rows["seed_id"].isin(seed_rows["seed_id"])
    if orphans.any():
        row = int(orphans.to_numpy().argmax())
        raise DataError(
            f"{paths.shown(candidate_file)}: row {row + 2}, column seed_id: {candidate_rows['seed_id'][row]!r} "
            f"is not in {paths.shown(seed_file)}; add the seed or remove the row"
        )
    return seed_rows, candidate_rows


def _stripped(frame):
    """Remove white space around texts: a prompt is asked as it stands."""
    return frame.assign(text=frame["text"].str.strip())


def embedder(store, corpus_name):
    """Return the function from texts to sentence vectors that reads and fills a store."""
    return partial(encoder.vectors, store, corpus_name)
