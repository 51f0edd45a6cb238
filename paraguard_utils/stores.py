"""Stores: folders of files that join the notebooks.

`recorded` is what is in git: read from `data/`, never written. Any other store is live:
it reads and writes `results/<store>/`, computes what is missing, and takes the corpus
and its vectors from the recorded store where it has none of its own. Recorded traces
never enter a live store; recorded scores of guards do in a run with a model or a guard
of the user, on which they do not depend. A `rebuild` of the record reads the pairs,
scores and tables that its own earlier notebooks wrote.

Beside each file, `<file>.meta.json` says how it was made. It also holds the SHA-256 of
the file's content, so that a file that was cut or changed later is not read as it is.
"""

import hashlib
import io
import json
import os
import re
import sys
import uuid
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from paraguard_utils import __version__, paths, seams
from paraguard_utils.errors import Changed, DataError, Missing
from paraguard_utils.schemas import SCHEMAS, Corpus, check_schema, list_text_columns

RECORDED = "recorded"
LIVE = "live"


class FileKind(NamedTuple):
    """A kind of file in a store; its columns are those of `schemas.SCHEMAS`, if any.

    In `path`, below the store, the braces take the names that are passed: of the corpus
    and of the system. `maker` is the notebook or command that makes it. `recorded` is
    how `record` takes it from a live store: "promoted"; "on request", if a live run may
    lack it; "derived", made anew from what was promoted.
    """

    path: str
    maker: str
    recorded: str = ""


KINDS = {
    "corpus": FileKind("corpus/{}.csv", "01_corpus_building", "promoted"),
    "sentences": FileKind("vectors/{1}/{0}.parquet", "01_corpus_building", "promoted"),
    "tokens": FileKind("vectors/{}/tokens.parquet", "02_querying", "promoted"),
    "traces": FileKind("traces/{}/{}.parquet", "02_querying", "promoted"),
    "guards": FileKind("guards/{}/{}.csv", "05_guard_comparison", "promoted"),
    "labels": FileKind(
        "labels/{}/{}.csv",
        "02_querying, 05_guard_comparison or 07_remedies",
        "promoted",
    ),
    "pairs": FileKind(
        "pairs/{}/{}.parquet", "03_scoring or 05_guard_comparison", "derived"
    ),
    "scores": FileKind(
        "scores/{}/{}.csv", "03_scoring or 05_guard_comparison", "derived"
    ),
    "tables": FileKind(
        "tables/{}.csv",
        "the notebook of that table (paraguard corpus build for public_*, paraguard"
        " agreement for xstest_*)",
        "derived",
    ),
    "figures": FileKind("figures/{}", "the notebook of that figure"),
}
"""Kinds by name; extensions of the list `kinds` add theirs."""


_FILE_NAME = re.compile(r"[^/\\.\0][^/\\\0]{0,199}")

CONTENT = "content_sha256"
"""Name in a meta file of the SHA-256 of its file (`digest_content`).

While a file is being replaced it holds two, with a space between. A file whose meta
file lacks it, as those that earlier versions wrote, is not checked.
"""

_MAPPINGS = ("decoding", "inputs", "learned", "parameters")
"""Names in meta files whose values are mappings."""

REBUILD_START = "PARAGUARD_REBUILD_START"
"""Environment variable of a rebuild and its kernels: when it began, in nanoseconds by
the clock of the file system."""

IS_SAID = "PARAGUARD_SAID"  # set if a run has said that it reads the record


def _is_of_this_rebuild(path: Path) -> bool:
    start = os.environ.get(REBUILD_START)
    if start is None or not path.is_file():
        return False
    return path.stat().st_mtime_ns >= int(start)


class _Files:
    """Files in a store by kind; a subclass may give the first of their names."""

    def __init__(self, store_name: str, *first_names: str) -> None:
        self._store_name = store_name
        self._first_names = first_names
        self.recorded = store_name == RECORDED
        self.writes = paths.RESULTS / store_name

    def path(self, kind: str, *names: str) -> Path:
        """Return where a file of this store is read."""
        file = self._file(kind, names)
        written = self.writes / file
        is_figure = kind == "figures"
        is_remade = is_figure or KINDS[kind].recorded == "derived"
        if not self.recorded or (is_remade and _is_of_this_rebuild(written)):
            return written
        return (paths.ROOT if is_figure else paths.DATA) / file

    def output_path(self, kind: str, *names: str) -> Path:
        """Return where a file of this store is written, with its folder made."""
        path = self.writes / self._file(kind, names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _file(self, kind: str, names: Iterable[str]) -> str:
        names = (*self._first_names, *names)
        for name in names:
            if not _FILE_NAME.fullmatch(name):
                raise DataError(
                    f"{name[:100]!r} is no name of a file in a store: it has a"
                    " slash, begins with a dot, or has more than 200 characters"
                )
        return KINDS[kind].path.format(*names)

    def has(self, kind: str, *names: str) -> bool:
        """Return whether a file is in the store."""
        return self.path(kind, *names).is_file()

    def read(self, kind: str, *names: str) -> pd.DataFrame:
        """Read and check a file.

        Raise Missing if it is not there, DataError if it does not fit its schema.
        """
        path = self.path(kind, *names)
        if path.is_file():
            return read_file(path, kind)
        where = paths.display_path(path)
        maker = KINDS[kind].maker
        remedy = f"run {maker} with the same store, corpus and model"
        if self.recorded:
            remedy = (
                f"restore it (git checkout -- {where}) or, if it never was, run {maker}"
                " with a live store (store=live): the recorded store is read-only"
            )
        raise Missing(f"{where} is not in the {self._store_name} store; {remedy}")

    def read_earlier(self, kind: str, *names: str) -> pd.DataFrame:
        """Read the product of an earlier notebook.

        A live store without one takes the recorded one, and says so. That is only for
        the corpus, vectors, tokens and the counts over public benchmarks: a recorded
        trace is never a live one. Raise Missing if it is in neither.
        """
        recorded = _Files(RECORDED, *self._first_names)
        if self.has(kind, *names) or not recorded.has(kind, *names):
            return self.read(kind, *names)
        if IS_SAID not in os.environ:
            where = paths.display_path(self.path(kind, *names))
            print(f"{where} is not there: the recorded one is used", file=sys.stderr)
        return recorded.read(kind, *names)

    def write(
        self, kind: str, *names: str, frame: pd.DataFrame, meta: Mapping[str, object]
    ) -> Path:
        """Check and write a file, and a meta file of parameters and run facts.

        Return where it is.
        """
        path = self.output_path(kind, *names)
        write_file(path, frame, kind, meta)
        return path


class Store(_Files):
    """A store by its name: "recorded", or that of a folder under `results/`."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class CorpusFiles(_Files):
    """The files of one corpus in a store.

    Its methods are those of `Store`, without the name of the corpus: a file has a kind
    of `KINDS` and, where it is about one system, that system's name.

    Examples
    --------
    >>> files = CorpusFiles(Store("recorded"), "paraguard_mini")
    >>> len(files.prompts)
    1200
    """

    def __init__(self, store: Store, name: str) -> None:
        super().__init__(store.name, name)
        self.store = store
        self.name = name

    @cached_property
    def prompts(self) -> Corpus:
        """The corpus itself; a live store without one takes the recorded one."""
        return self.read_earlier("corpus")

    def other(self, name: str) -> "CorpusFiles":
        """Return the files of another corpus in the same store."""
        return CorpusFiles(self.store, name)


def read_file(path: str | Path, kind: str) -> pd.DataFrame:
    """Read one CSV or Parquet file and check it against its schema, if it has one.

    A file that is missing or wrong, or changed since it was written, is a DataError.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{paths.display_path(path)}: there is no such file")
    facts = path.stat()
    state = (facts.st_mtime_ns, facts.st_ino, facts.st_size)
    return _read_unchanged(path, kind, state).copy(deep=False)


# A notebook reads the same labels again and again, and checking them takes longest.
@lru_cache(maxsize=1024)
def _read_unchanged(path: Path, kind: str, state: tuple[int, ...]) -> pd.DataFrame:
    """Read and check a file once while its `state` is the same."""
    known = kind in SCHEMAS
    if path.suffix == ".parquet":
        try:
            frame = pd.read_parquet(path)
        except (ValueError, OSError) as error:
            raise _unreadable(path, error, _how_to_restore(path)) from error
    else:
        # A prompt may be the word "null": only empty fields are missing, and text
        # columns stay text.
        types = dict.fromkeys(list_text_columns(kind), str) if known else None
        frame = read_csv(path, dtype=types, na_values=[""])
    if known:
        frame = check_schema(frame, kind, paths.display_path(path))
    check_content(path)
    return frame


def read_csv(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV file in UTF-8, or raise a DataError."""
    try:
        text = path.read_bytes().decode()
        return pd.read_csv(io.StringIO(text), keep_default_na=False, **options)
    except (ValueError, OSError) as error:
        remedy = "save the file as comma-separated CSV UTF-8"
        if meta_path(path).exists():  # we wrote it ourselves
            remedy = _how_to_restore(path)
        raise _unreadable(path, error, remedy) from error


def _unreadable(path: Path, error: Exception, remedy: str) -> DataError:
    """Return what to say of a file that cannot be read."""
    problem = f"cannot be read ({str(error).strip().splitlines()[0]})"
    if isinstance(error, UnicodeDecodeError):
        row = error.object.count(b"\n", 0, error.start) + 1
        problem = f"row {row} is not UTF-8"
    return DataError(f"{paths.display_path(path)}: {problem}; {remedy}")


def check_fields(path: Path, fields: pd.Series, fine: pd.Series, problem: str) -> None:
    """Raise a DataError about the first field of a column that is not fine.

    The file is an upstream one; row 1 is the header.
    """
    if fine.all():
        return
    row = int((~fine).argmax())
    where = f"{paths.display_path(path)}: row {row + 2}, column {fields.name}"
    raise DataError(f"{where}: {fields.iloc[row]!r} {problem}")


def digest_content(path: Path, suffix: str = "") -> str:
    """Return the SHA-256 of a file's content as 64 hex digits.

    In CSV, the ends of lines count as line feeds: Git may have changed them. `suffix`
    says what the file holds if its own does not.
    """
    content = path.read_bytes()
    if (suffix or path.suffix) == ".csv":
        content = content.replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()


def check_content(path: Path) -> None:
    """Raise Changed if a file is not as `write_file` left it."""
    # Another process may replace the file, then its meta file, while we look.
    if _is_as_written(path) or _is_as_written(path):
        return
    meta = paths.display_path(meta_path(path))
    raise Changed(
        f"{paths.display_path(path)} was cut or changed after it was written;"
        f" {_how_to_restore(path)}, or, if that was on purpose, delete the line"
        f' "{CONTENT}" of {meta}'
    )


def _is_as_written(path: Path) -> bool:
    known = read_meta(path).get(CONTENT)
    return known is None or digest_content(path) in str(known).split()


def _how_to_restore(path: Path) -> str:
    """Say how to get a file of a store back, or its meta file."""
    where = paths.display_path(path)
    if path.is_relative_to(paths.DATA):
        return f"restore it (git checkout -- {where})"
    for kind in KINDS.values():
        if kind.path.partition("/")[0] in path.parts[-3:-1]:
            return f"remove it and run {kind.maker} again with the same store"
    return "remove it and run what made it again"


def write_file(
    path: str | Path, frame: pd.DataFrame, kind: str, meta: Mapping[str, object]
) -> None:
    """Write a frame atomically, and its meta file beside it.

    Floats in CSV have 5 significant digits. Wherever the process is killed, the file
    is the old or the new one, and its meta file knows its content.
    """
    path = Path(path)
    if kind in SCHEMAS:
        frame = check_schema(frame, kind, paths.display_path(path))
    facts: dict[str, Any] = dict(meta)

    def write(part: Path) -> None:
        if path.suffix == ".parquet":
            frame.to_parquet(part, index=False, compression="zstd")
        else:
            frame.to_csv(part, index=False, float_format="%.5g", lineterminator="\n")
        facts[CONTENT] = digest_content(part, path.suffix)
        _allow_content(path, facts[CONTENT])

    write_atomically(path, write)
    write_meta(path, facts)


def _allow_content(path: Path, digest: str) -> None:
    """Let a file's meta file allow the content that is about to replace the file's."""
    try:
        known = read_meta(path)
    except DataError:  # a damaged meta file is replaced later
        return
    if known.get(CONTENT):
        known[CONTENT] = f"{known[CONTENT]} {digest}"
        _write_facts(path, known)


def write_meta(path: str | Path, meta: Mapping[str, object]) -> None:
    """Write `<file>.meta.json`, which says how a file was made."""
    _write_facts(path, {"package": __version__, **meta})


def _write_facts(path: str | Path, facts: Mapping[str, object]) -> None:
    text = json.dumps(facts, indent=1, sort_keys=True, ensure_ascii=False)
    write_text(meta_path(path), f"{text}\n")


def meta_path(path: str | Path) -> Path:
    """Return the path of a file's meta file."""
    return Path(f"{path}.meta.json")


class Meta(dict[str, Any]):
    """What a meta file says; a value that it lacks is a DataError, which names it."""

    def __init__(self, path: Path, facts: Mapping[str, Any] | None = None) -> None:
        super().__init__(facts or {})
        self.path = path  # of the file that it is about

    def __missing__(self, name: str) -> Any:
        where = meta_path(self.path)
        problem = f"has no {name!r}" if where.is_file() else "is missing"
        raise _damaged_meta(self.path, problem)


def read_meta(path: str | Path) -> Meta:
    """Return a file's meta data, empty if there is none.

    Raise DataError if the meta file is damaged.
    """
    path = Path(path)
    file = meta_path(path)
    if not file.exists():
        return Meta(path)
    try:
        text = file.read_text(encoding="utf-8")
        facts = json.loads(text, object_hook=partial(Meta, path))
    except (OSError, ValueError, RecursionError) as error:
        reason = str(getattr(error, "strerror", None) or "it is no JSON in UTF-8")
        raise _damaged_meta(path, f"cannot be read ({reason})") from error
    if not isinstance(facts, Meta):
        raise _damaged_meta(path, "is no JSON object")
    for name in _MAPPINGS:
        if not isinstance(facts.get(name, {}), dict):
            raise _damaged_meta(path, f"has a {name!r} that is no JSON object")
    return facts


def _damaged_meta(path: Path, problem: str) -> DataError:
    """Return what to say of a meta file that cannot be used, and the remedy."""
    file = meta_path(path)
    remedy = _how_to_restore(file)
    return DataError(f"{paths.display_path(file)} {problem}; {remedy}")


def write_atomically(path: Path, produce: Callable[[Path], object]) -> None:
    """Let `produce` write a temporary file, then move it to `path` at once.

    If that fails, nothing is changed, and it is a DataError.
    """
    part = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            produce(part)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        problem = error.strerror or str(error).splitlines()[0]
        raise DataError(
            f"{paths.display_path(path)} cannot be written ({problem}); mend that and"
            " run again: what was written before is kept"
        ) from error


def write_text(path: Path, text: str) -> None:
    """Write a text as `write_atomically` does, in UTF-8, line ends as they are."""
    write_atomically(
        path, lambda part: part.write_text(text, encoding="utf-8", newline="\n")
    )


def frame_hash(frame: pd.DataFrame) -> str:
    """Return 16 hex digits over a frame's content, for meta files."""
    content = frame.to_csv(index=False, float_format="%.5g").encode()
    return hashlib.sha256(content).hexdigest()[:16]


for _name in seams.find_extensions("kinds"):
    seams.load_extension("kinds", _name)
