"""Stores: folders of files that join the notebooks.

`recorded` is what is in git: read from `data/`, never written. Any other store is live:
it reads and writes `results/<store>/`, computes what is missing, and takes the corpus
and its vectors from the recorded store where it has none of its own. Recorded traces
and guard scores never enter a live store. A `rebuild` of the record reads the pairs,
scores and tables that its own earlier notebooks wrote.
"""

import hashlib
import json
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import pandas as pd
from filelock import FileLock, Timeout

from paraguard_utils import __version__, paths
from paraguard_utils.errors import DataError, Missing
from paraguard_utils.schemas import SCHEMAS, Corpus, check_schema, list_text_columns

RECORDED, LIVE = "recorded", "live"

Shard: TypeAlias = tuple[
    int, int
]  # (i, n): the i-th of n parts of a work, counted from 1
WHOLE: Shard = (1, 1)  # all of it


class FileKind(NamedTuple):
    """A kind of file in a store.

    Its columns are those of `schemas.SCHEMAS`, where it has any.

    In `path`, below the store, the braces take the names that are passed, in order.
    `maker` is the notebook or command that makes it. `recorded` is how `record` takes
    it from a live store: "promoted"; "on request", where a live run may lack it;
    "derived", made anew from what was promoted.
    """

    path: str
    maker: str
    recorded: str = ""


KINDS = {
    "generated": FileKind("generated/{}.csv", "A2_writers", "promoted"),
    "corpus": FileKind("corpus/{}.csv", "01_corpus_building", "promoted"),
    "sentences": FileKind("vectors/{1}/{0}.parquet", "01_corpus_building", "promoted"),
    "drifts": FileKind("vectors/{1}/{0}.drifts.parquet", "06_validity", "promoted"),
    "tokens": FileKind("vectors/{}/tokens.parquet", "02_querying", "promoted"),
    "traces": FileKind("traces/{}/{}.parquet", "02_querying", "promoted"),
    "guards": FileKind("guards/{}/{}.csv", "05_guard_comparison", "promoted"),
    "labels": FileKind(
        "labels/{}/{}.csv",
        "02_querying, 05_guard_comparison or 07_remedies",
        "promoted",
    ),
    "verdicts": FileKind(
        "verdicts/{}/{}.csv", "02_querying with judge=MODEL", "on request"
    ),
    "answers": FileKind(
        "answers/{}/{}.csv", "02_querying with long_answers=200", "on request"
    ),
    "samples": FileKind(
        "samples/{}/{}.parquet", "02_querying with draw=true", "on request"
    ),
    "pairs": FileKind(
        "pairs/{}/{}.parquet", "03_scoring or 05_guard_comparison", "derived"
    ),
    "scores": FileKind(
        "scores/{}/{}.csv", "03_scoring or 05_guard_comparison", "derived"
    ),
    "tuning": FileKind("tuning/{}/{}.jsonl", "03_scoring", "derived"),
    "tables": FileKind(
        "tables/{}.csv",
        "the notebook of that table (paraguard corpus build for public_*, paraguard"
        " agreement for xstest_*)",
        "derived",
    ),
    "figures": FileKind("figures/{}", "the notebook of that figure"),
}


REBUILD_START = "PARAGUARD_REBUILD_START"
"""Environment variable of a rebuild and its kernels: when it began, in nanoseconds by
the clock of the file system."""


@contextmanager
def rebuild() -> Iterator[None]:
    """Inside a `with` block, let the recorded store read what it has itself written.

    Derived files (pairs, scores, tables) written to `results/recorded/` since the block
    began are read from there, by this process and the kernels that it starts. All other
    files are read from `data/`, as without a rebuild.
    """
    marker = paths.RESULTS / RECORDED / ".rebuild"
    write_text(marker, "")
    os.environ[REBUILD_START] = str(marker.stat().st_mtime_ns)
    try:
        yield
    finally:
        del os.environ[REBUILD_START]


def _is_of_this_rebuild(path: Path) -> bool:
    start = os.environ.get(REBUILD_START)
    if start is None or not path.is_file():
        return False
    return path.stat().st_mtime_ns >= int(start)


class Store:
    """A store by its name: "recorded", or that of a folder under `results/`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.recorded = name == RECORDED
        self.writes = paths.RESULTS / name
        self.reads = paths.DATA if self.recorded else self.writes

    def path(self, kind: str, *names: str) -> Path:
        """Return where a file of this store is read."""
        file = KINDS[kind].path.format(*names)
        is_figure = kind == "figures"
        if self.recorded and (is_figure or KINDS[kind].recorded == "derived"):
            written = self.writes / file
            if _is_of_this_rebuild(written):
                return written
        if self.recorded and is_figure:
            return paths.ROOT / file
        return self.reads / file

    def output_path(self, kind: str, *names: str) -> Path:
        """Return where a file of this store is written, with its folder made."""
        path = self.writes / KINDS[kind].path.format(*names)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def has(self, kind: str, *names: str) -> bool:
        """Return whether a file is in the store."""
        return self.path(kind, *names).is_file()

    def read(self, kind: str, *names: str) -> pd.DataFrame:
        """Read and check a file.

        Raise Missing where it is not there, DataError where it does not fit its schema.
        """
        path = self.path(kind, *names)
        if not path.is_file():
            remedy = (
                f"restore it (git checkout -- {paths.display_path(path)}) or, if it"
                f" never was, run {KINDS[kind].maker} with a live store (store=live):"
                " the recorded store is read-only"
                if self.recorded
                else f"run {KINDS[kind].maker} with the same store, corpus and model"
            )
            raise Missing(
                f"{paths.display_path(path)} is not in the {self.name} store; {remedy}"
            )
        return read_file(path, kind)

    def read_earlier(self, kind: str, *names: str) -> pd.DataFrame:
        """Read the product of an earlier notebook: a live store without one takes the
        recorded one, and says so.

        Only for the corpus, its vectors and the counts over public benchmarks: a
        recorded trace or guard score never enters a live store. Missing is raised where
        it is in neither.
        """
        recorded = Store(RECORDED)
        if self.has(kind, *names) or not recorded.has(kind, *names):
            return self.read(kind, *names)
        print(
            f"{paths.display_path(self.path(kind, *names))} is not there: the recorded"
            " one is used",
            file=sys.stderr,
        )
        return recorded.read(kind, *names)

    def write(
        self, kind: str, *names: str, frame: pd.DataFrame, meta: Mapping[str, object]
    ) -> Path:
        """Check and write a file, and beside it a meta file of parameters and run
        facts; return where it is.
        """
        path = self.output_path(kind, *names)
        write_file(path, frame, kind, meta)
        return path


@dataclass(frozen=True)
class CorpusFiles:
    """The files of one corpus in a store.

    Its methods are those of `Store`, without the name of the corpus: a file has a kind
    of `KINDS` and, where it is about one system, that system's name.

    Examples
    --------
    >>> files = CorpusFiles(Store("recorded"), "paraguard_mini")
    >>> len(files.prompts)
    1200
    """

    store: Store
    name: str

    @property
    def recorded(self) -> bool:
        """Whether the store is the recorded one, which is never written."""
        return self.store.recorded

    @cached_property
    def prompts(self) -> Corpus:
        """The corpus itself; a live store without one takes the recorded one."""
        return self.read_earlier("corpus")

    def other(self, name: str) -> "CorpusFiles":
        """Return the files of another corpus in the same store."""
        return CorpusFiles(self.store, name)

    def path(self, kind: str, system: str = "") -> Path:
        """Return where a file is read."""
        return self.store.path(kind, self.name, system)

    def output_path(self, kind: str, system: str = "") -> Path:
        """Return where a file is written, with its folder made."""
        return self.store.output_path(kind, self.name, system)

    def has(self, kind: str, system: str = "") -> bool:
        """Return whether a file is in the store."""
        return self.store.has(kind, self.name, system)

    def read(self, kind: str, system: str = "") -> pd.DataFrame:
        """Read and check a file, as `Store.read` does."""
        return self.store.read(kind, self.name, system)

    def read_earlier(self, kind: str, system: str = "") -> pd.DataFrame:
        """Read the product of an earlier notebook, as `Store.read_earlier` does."""
        return self.store.read_earlier(kind, self.name, system)

    def write(
        self,
        kind: str,
        system: str = "",
        *,
        frame: pd.DataFrame,
        meta: Mapping[str, object],
    ) -> Path:
        """Check and write a file and its meta file, as `Store.write` does."""
        return self.store.write(kind, self.name, system, frame=frame, meta=meta)


def read_file(path: str | Path, kind: str) -> pd.DataFrame:
    """Read one CSV or Parquet file and check it against its schema (tables have none),
    or raise DataError.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{paths.display_path(path)}: there is no such file")
    facts = path.stat()
    return _read_unchanged(
        path, kind, facts.st_mtime_ns, facts.st_ino, facts.st_size
    ).copy(deep=False)


@lru_cache(
    maxsize=1024
)  # a notebook reads the same labels again and again, and checking them takes longest
def _read_unchanged(path: Path, kind: str, *state: int) -> pd.DataFrame:
    """Read and check a file once while its `state` is the same."""
    where = paths.display_path(path)
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        # A prompt may be the word "null": only empty fields are missing, and text
        # columns stay text
        else:
            types = (
                dict.fromkeys(list_text_columns(kind), str) if kind in SCHEMAS else None
            )
            frame = pd.read_csv(
                path,
                dtype=types,
                keep_default_na=False,
                na_values=[""],
                encoding="utf-8",
            )
    except UnicodeDecodeError as error:
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        row = re.split("[\udc80-\udcff]", text, maxsplit=1)[0].count("\n") + 1
        raise DataError(
            f"{where}: row {row} is not UTF-8; save the file as CSV UTF-8"
        ) from error
    except pd.errors.ParserError as error:
        raise DataError(
            f"{where}: {str(error).strip()}; save the file as comma-separated CSV UTF-8"
        ) from error
    except (ValueError, OSError) as error:
        problem = str(error).splitlines()[0]
        raise DataError(
            f"{where}: cannot be read ({problem}); restore or remove the file"
        ) from error
    return check_schema(frame, kind, where) if kind in SCHEMAS else frame


def read_upstream_csv(
    path: Path, columns: Iterable[str] = (), advice: str = "pass the upstream file"
) -> pd.DataFrame:
    """Read an upstream CSV file with every field as text, empty fields as "".

    Raise DataError where it is not CSV in UTF-8, has no rows, or lacks a column;
    `advice` is what to do about that.
    """
    where = paths.display_path(path)
    try:
        rows = pd.read_csv(path, dtype=str, keep_default_na=False, encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{where}: is not UTF-8 (byte {error.start}); save the file as CSV UTF-8"
        ) from error
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise DataError(
            f"{where}: cannot be read as CSV ({str(error).strip()}); pass the upstream"
            " file"
        ) from error
    if rows.empty:
        raise DataError(f"{where}: there are no rows; pass the upstream file")
    for column in columns:
        if column not in rows:
            raise DataError(f"{where}: column {column!r} is missing; {advice}")
    return rows


def check_fields(path: Path, fields: pd.Series, fine: pd.Series, problem: str) -> None:
    """Raise a DataError about the first field of a column of an upstream file that is
    not fine; row 1 is the header.
    """
    if not fine.all():
        row = int((~fine).argmax())
        where = f"{paths.display_path(path)}: row {row + 2}, column {fields.name}"
        raise DataError(f"{where}: {fields.iloc[row]!r} {problem}")


def write_file(
    path: str | Path, frame: pd.DataFrame, kind: str, meta: Mapping[str, object]
) -> None:
    """Write a frame atomically, CSV floats at 5 significant digits, and its meta file
    beside it.
    """
    path = Path(path)
    if kind in SCHEMAS:
        frame = check_schema(frame, kind, paths.display_path(path))
    if path.suffix == ".parquet":
        write_atomically(
            path, lambda part: frame.to_parquet(part, index=False, compression="zstd")
        )
    else:
        write_atomically(
            path,
            lambda part: frame.to_csv(
                part, index=False, float_format="%.5g", lineterminator="\n"
            ),
        )
    write_meta(path, meta)


def write_meta(path: str | Path, meta: Mapping[str, object]) -> None:
    """Write `<file>.meta.json`: how a file came to be. Outside identity checks."""
    text = json.dumps(
        {"package": __version__, **meta}, indent=1, sort_keys=True, ensure_ascii=False
    )
    write_text(meta_path(path), f"{text}\n")


def meta_path(path: str | Path) -> Path:
    """Return the path of a file's meta file."""
    return Path(f"{path}.meta.json")


def read_meta(path: str | Path) -> dict[str, Any]:
    """Return a file's meta data, or {} where there is none."""
    path = meta_path(path)
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_atomically(path: Path, produce: Callable[[Path], object]) -> None:
    """Let `produce` write a temporary file, then move it to `path` at once.

    DataError, nothing changed, if it fails.
    """
    part = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"
        )
        os.close(handle)
        part = Path(name)
        produce(part)
        part.chmod(0o644)
        os.replace(part, path)
    except OSError as error:
        raise DataError(
            f"{paths.display_path(path)} cannot be written"
            f" ({error.strerror or str(error).splitlines()[0]}); mend that and run"
            " again: what was written before is kept"
        ) from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)


class Parts:
    """What a run that may be killed has of a file so far: a folder of parts, each
    written in one step, under one lock.

    The parts of `x.csv` are `x.parts/part-000000.parquet` and so on; parts made in
    another way lie `apart`, in `x.APART.parts`. They are checked if their `kind` has a
    schema. The lock, `x.csv.lock`, is held inside a `with` block, which begins by
    removing what a killed run had half written; if another process holds it, that
    raises `DataError`. One of n processes that work on the file side by side, a
    `shard`, has a folder and a lock of its own; `WHOLE` is alone, and has the parts of
    all shards.
    """

    def __init__(
        self, file: Path, kind: str, apart: str = "", shard: Shard = WHOLE
    ) -> None:
        self.file, self.kind, self.alone, self.held = (
            file,
            kind,
            shard == WHOLE,
            ExitStack(),
        )
        self.way = f".{apart}" if apart else ""
        self.own = "" if self.alone else f".shard-{shard[0]}-of-{shard[1]}"
        self.folder = file.with_suffix(f"{self.way}{self.own}.parts")

    def __enter__(self) -> Self:
        others = [
            folder.name[len(self.file.stem + self.way) : -len(".parts")]
            for folder in self._shards()
        ]
        with ExitStack() as held:
            for shard in (self.own, *others):
                try:
                    held.enter_context(FileLock(f"{self.file}{shard}.lock", timeout=0))
                except Timeout:
                    raise DataError(
                        f"{paths.display_path(self.file)} is being written by another"
                        " process; wait for it or use another store"
                    ) from None
            self.held = held.pop_all()
        if not self.alone:
            self.folder.mkdir(
                exist_ok=True
            )  # by which a run that puts all together knows of this one
        own = self.file.parent.glob(f".{self.file.name}.*.tmp") if self.alone else ()
        for leftover in [*own, *self.folder.glob(".part-*.tmp")]:
            leftover.unlink()
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def _shards(self) -> list[Path]:
        """Return the folders of the shards whose parts are this run's too."""
        return (
            sorted(self.file.parent.glob(f"{self.file.stem}{self.way}.shard-*.parts"))
            if self.alone
            else []
        )

    def files(self) -> list[Path]:
        """Return the parts in the order in which they were added."""
        return [
            part
            for folder in [self.folder, *self._shards()]
            for part in sorted(folder.glob("part-*.parquet"))
        ]

    def read(self, *before: Path) -> list[pd.DataFrame]:
        """Read files that may be there, then the parts.

        What cannot be read is set aside as `*.corrupt`.
        """
        frames = []
        for file in [*(file for file in before if file.is_file()), *self.files()]:
            try:
                frames.append(read_file(file, self.kind))
            except DataError as error:
                os.replace(file, file.with_name(f"{file.name}.corrupt"))
                print(
                    f"{error}; it was set aside, and what it held is made again",
                    file=sys.stderr,
                )
        return frames

    def add(self, rows: pd.DataFrame) -> None:
        """Write one more part; a number that was set aside is not given again."""
        taken = [
            int(file.name.partition(".")[0].removeprefix("part-"))
            for file in self.folder.glob("part-*")
        ]
        part = self.folder / f"part-{max(taken, default=-1) + 1:06d}.parquet"
        write_atomically(
            part, lambda file: rows.to_parquet(file, index=False, compression="zstd")
        )

    def clear(self) -> None:
        """Remove the parts, and their folders unless something was set aside there."""
        for part in self.files():
            part.unlink()
        for folder in [self.folder, *self._shards()]:
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text as `write_atomically` does, in UTF-8, line ends as they are."""
    write_atomically(
        path, lambda part: part.write_text(text, encoding="utf-8", newline="\n")
    )


def frame_hash(frame: pd.DataFrame) -> str:
    """Return 16 hex digits over a frame's content, for meta files."""
    return hashlib.sha256(
        frame.to_csv(index=False, float_format="%.5g").encode()
    ).hexdigest()[:16]
