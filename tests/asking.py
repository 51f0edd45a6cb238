"""What the tests of asking share."""

import nbformat
import numpy as np
import pandas as pd

from paraguard_utils import paths, stores
from paraguard_utils.models import prompting, trace_store

ANSWERS = [
    "I'm sorry, but I can't help with that. QUOKKA {}.",
    (
        "Sure, QUOKKA would begin like this: first look around, then {} while nobody is"
        " there, and tell no one of it."
    ),
    "QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA QUOKKA",
]
"""What the tiny model is made to say: texts that can be looked for and labelled."""

NUMBERS = ("token_nll", "next_logprobs", "tail_mass")


class Killed(BaseException):
    """Stands for a process that ends in the middle."""


def dies(*_):
    """Stand in for a step that the process does not survive."""
    raise Killed


def code_cells(path):
    return [
        cell
        for cell in nbformat.read(path, as_version=4).cells
        if cell.cell_type == "code"
    ]


def run_here(stem, **parameters):
    """Run a notebook's cells in this process, with parameters in the place where
    papermill puts them.

    Starting a kernel and importing takes longer than most notebooks on a small corpus;
    test_commands does it.
    """
    (notebook,) = paths.NOTEBOOKS.rglob(f"{stem}.ipynb")
    first, *rest = code_cells(notebook)
    namespace = {}
    exec(first.source, namespace)
    namespace |= parameters
    for cell in rest:
        exec(cell.source, namespace)


def mine():
    """The files of the corpus `mine` in the store `test`."""
    return stores.CorpusFiles(stores.Store("test"), "mine")


def ask(prompts, model, system_prompt="safety", batch=2, tokens=6, **options):
    """Ask into the store `test`."""
    decoding = prompting.Decoding(tokens)
    query = trace_store.Query(
        mine(), prompts, system_prompt, decoding, batch, **options
    )
    return trace_store.query_model(model, query)


def same(first, second):
    """Traces are equal, their floats up to rounding."""
    assert len(first) == len(second)
    for name in first.columns:
        for a, b in zip(first[name], second[name], strict=True):
            if name in NUMBERS:
                np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
            else:
                np.testing.assert_array_equal(a, b)


def identical(first, second):
    """Traces are equal bit for bit."""
    assert len(first) == len(second)
    for name in first.columns:
        for a, b in zip(first[name], second[name], strict=True):
            np.testing.assert_array_equal(a, b)


def texts_in(path):
    """Return all text of a file, columns of a compressed one unpacked."""
    if ".parquet" in path.suffixes and path.suffix == ".parquet":
        frame = pd.read_parquet(path)
        return "\n".join(
            [*frame.columns, *(str(value) for name in frame for value in frame[name])]
        )
    return path.read_bytes().decode("utf-8", "replace")
