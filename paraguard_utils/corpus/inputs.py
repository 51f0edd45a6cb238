"""Seeds and candidates of a corpus, read from files (`docs/method.md`, Corpus).

Generators of candidates are extensions: an entry point of the group
`paraguard.generators`, named by the parameter `candidates` (`rules`, `model:NAME`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_utils import seams
from paraguard_utils.corpus import gates
from paraguard_utils.models import encoder
from paraguard_utils.paths import resolve_input
from paraguard_utils.schemas import Candidates, Seeds
from paraguard_utils.settings import CorpusSettings, Gates
from paraguard_utils.stores import CorpusFiles, check_fields, read_file

JUDGED_FILE = "judged"  # the extension for a file whose candidates a model judges


@dataclass(frozen=True)
class CandidateSource:
    """Where candidates come from, and who judges them besides the gates.

    It is a CSV file that people wrote; an extension overrides what differs.

    Attributes
    ----------
    name : str
        What the parameter `candidates` names. A file's path is relative to the caller's
        folder or to the project, and `{corpus}` in it is the name of the corpus.
    """

    name: str

    def read(
        self, files: CorpusFiles, seeds: Seeds, limits: Gates = Gates()
    ) -> Candidates:
        """Read or write candidates of seeds: seed_id, strategy, text, generator, rule.

        They are written for the seeds that pass the sanity gates only. Raise DataError
        if a candidate is of a seed that is not there, and SettingsError if there is no
        such file.
        """
        path = _resolve(self.name, files.name)
        rows = read_file(path, "candidates")
        is_known = rows["seed_id"].isin(seeds["seed_id"])
        problem = f"is not in the seeds of {files.name}; add the seed or remove the row"
        check_fields(path, rows["seed_id"], is_known, problem)
        rows["text"] = rows["text"].str.strip()  # as it is queried
        return rows.assign(generator="authored", rule="authored")

    def review(self, files: CorpusFiles) -> gates.Review | None:
        """Return what judges candidates that pass alone; None for people's."""
        return None

    def about(self) -> dict[str, Any]:
        """Describe who writes and who judges for a meta file; {} for people's."""
        return {}

    def keep(
        self,
        files: CorpusFiles,
        seeds: Seeds,
        candidates: pd.DataFrame,
        meta: Mapping[str, Any],
    ) -> None:
        """Keep judged candidates of models, and a sheet on which people audit them."""


def find_source(settings: CorpusSettings) -> CandidateSource:
    """Find where the candidates that the settings name come from, loading no model.

    Raise UserError if a model that the settings name cannot be found.
    """
    kind = settings.candidates.partition(":")[0]
    generators = seams.find_extensions("generators")
    if kind not in generators and settings.intent_judge:
        kind = JUDGED_FILE
    if kind not in generators:
        return CandidateSource(settings.candidates)
    return seams.load_extension("generators", kind)(settings)


def read_seeds(corpus_name: str, name: str) -> Seeds:
    """Read and check a file of seeds.

    Parameters
    ----------
    corpus_name : str
    name : str
        A path, as of `CandidateSource`.

    Returns
    -------
    pandas.DataFrame
        seed_id, text, source, category, topical ("unstated" if the file lacks it).

    Raises
    ------
    SettingsError
        There is no such file.
    DataError
        It does not fit the schema.
    """
    rows = read_file(_resolve(name, corpus_name), "seeds")
    rows["text"] = rows["text"].str.strip()
    return rows.assign(topical=rows.get("topical", "unstated"))


def _resolve(name: str, corpus_name: str) -> Path:
    return resolve_input(name.replace("{corpus}", corpus_name))


def make_embedder(files: CorpusFiles) -> encoder.Embed:
    """Return a function from texts to sentence vectors that reads and fills a store."""
    return partial(encoder.stored_vectors, files)
