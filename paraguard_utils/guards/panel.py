"""Guards asked about a corpus: found by name, scored, decided (`docs/method.md`,
Guards).

Stored scores are read without the guard's package. A guard that cannot be asked is
named, and the others go on.
"""

import hashlib
import importlib
import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from tqdm import tqdm

from paraguard_tools.guards import chat, formats
from paraguard_utils import paths, registry, stores
from paraguard_utils.errors import DataError, Missing, SettingsError, UserError
from paraguard_utils.guards import packaged
from paraguard_utils.guards.contract import (
    Guard,
    GuardNotes,
    GuardScorer,
    check_probabilities,
)
from paraguard_utils.schemas import Corpus, Labels
from paraguard_utils.settings import SERVED_PREFIX
from paraguard_utils.stores import Store, frame_hash, read_upstream_csv

MAX_FIRST_FAILURES = (
    20  # a guard that fails on its first texts is given up after as many
)
TEXTS_PER_STEP = 256  # texts that a guard which costs something is given at once
MAX_NAME = 100  # characters of a guard's name, which names files


def load_guard(name: str, corpus: Corpus | None = None, **options: Any) -> Guard:
    """Return a guard by name.

    Packages and packaged weights are looked for when the first text is scored.

    The name is the first of these that fits: a key of `panel` in `data/guards.yaml`; a
    CSV file of scores (prompt_id, score) for the prompts of `corpus` (prompt_id, text);
    `module:function`, a function from texts to probabilities; a YAML file with one
    entry; a hub id or folder that a pattern of `deployed` in `data/guards.yaml`
    matches, loaded with `options` (`deployed.load_deployed_guard`: device, dtype,
    batch, base_url). Raise SettingsError where there is no such guard, or its entry
    lacks something or has what no guard has, and DataError where a CSV file cannot be
    used.
    """
    known = registry.guard_entries("panel")
    if registry.is_refusal(name):
        raise SettingsError(
            f"the guard {name} is read from a model's recorded answers, in"
            " 05_guard_comparison only"
        )
    if name in known:
        return _from_entry(name, known[name], None)
    own, entry = Path(name).stem, {"scores": name}
    if re.fullmatch(registry.FUNCTION, name):
        own, entry = name, {"function": name}
    elif name.endswith((".yaml", ".yml")):
        try:
            entry = yaml.safe_load(
                paths.resolve_input(name).read_text(encoding="utf-8")
            )
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            reason = str(error).splitlines()[0]
            raise SettingsError(
                f"{name}: it cannot be read as YAML in UTF-8: {reason}; see"
                " docs/usage.md"
            ) from None
        if not isinstance(entry, dict):
            raise SettingsError(
                f"{name}: a guard's file is one entry, names and values; see"
                " docs/usage.md"
            )
    elif not name.endswith(".csv"):
        return _from_deployed(name, {}, options)
    kind = str(entry.get("kind", ""))
    if kind not in chat.GUARD_MAKERS and (
        "model" in entry or kind not in ("", "package")
    ):
        return _from_deployed(str(entry.get("model", own)), entry, options)
    own = formats.parse_guard_entry(own, entry).name or own
    return _from_entry(_own_name(own), entry, corpus)


def score_with_guard(
    store: Store, corpus_name: str, corpus: Corpus, guard: str | Guard
) -> pd.DataFrame:
    """Return a guard's probabilities for a corpus (prompt_id, text).

    A live store computes and keeps what it lacks.

    Returns prompt_id, key, score, in corpus order; a score that the guard did not give
    is NaN. Raise Missing where the recorded store lacks the guard, or has scores for
    other texts or another version, or the guard's package is missing; and UserError
    where the guard cannot be asked.
    """
    guard = load_guard(guard, corpus) if isinstance(guard, str) else guard
    name = guard.name
    keys = [
        hashlib.sha256(f"{name} {guard.version}\x1f{text}".encode()).hexdigest()[:32]
        for text in corpus["text"]
    ]
    frame = pd.DataFrame(
        {"prompt_id": corpus["prompt_id"].to_numpy(), "key": keys, "score": np.nan}
    )
    earlier = stores.read_meta(store.path("guards", corpus_name, name)).get("cut", [])
    if store.recorded or store.has("guards", corpus_name, name):
        there = store.read("guards", corpus_name, name)
        same = there[["prompt_id", "key"]].equals(frame[["prompt_id", "key"]])
        if same and (store.recorded or there["score"].notna().all()):
            return there
        if store.recorded:
            raise Missing(
                f"the recorded scores of {name} are for other prompts or another"
                f" version than {guard.version}; run 05_guard_comparison with a live"
                " store"
            )
        frame["score"] = frame["key"].map(
            there.drop_duplicates("key").set_index("key")["score"]
        )
    open_ = frame["score"].isna().to_numpy()
    if guard.asks and open_.any():
        print(
            f"the guard {name}: {open_.sum():,} prompts of {corpus_name} to ask,"
            f" {guard.asks}",
            file=sys.stderr,
        )
    started = time.monotonic()
    frame.loc[open_, "score"], failed = _asked(guard, corpus["text"][open_].tolist())
    unparsed = frame.loc[frame["score"].isna(), "prompt_id"].tolist()
    was_cut = corpus["text"].isin(guard.notes.cut).to_numpy() | (
        frame["prompt_id"].isin(earlier).to_numpy() & ~open_
    )
    masses = corpus["text"][open_].map(guard.notes.masses).dropna()
    meta = {
        "guard": name,
        "version": guard.version,
        "corpus": frame_hash(corpus[["prompt_id", "text"]]),
        "asked_now": int(open_.sum()),
        "seconds": round(time.monotonic() - started, 1),
        "unparsed": len(unparsed),
        "cut": (
            frame.loc[was_cut, "prompt_id"].tolist()
        ),  # of which the guard read the beginning only
        "median_label_mass": round(float(masses.median()), 4) if len(masses) else None,
        # A message may quote the text on which it failed.
        "failed": dict(
            Counter(reason.partition(":")[0] for reason in failed.elements())
        ),
    }
    if unparsed:
        reasons = (
            "; ".join(f"{count} times {reason}" for reason, count in failed.items())
            or "it gave no probability"
        )
        told = (
            f"{len(unparsed)} of {len(frame)} prompts are unparsed, {unparsed[0]} first"
            f" ({reasons})"
        )
        print(f"the guard {name}: {told}", file=sys.stderr)
    store.write("guards", corpus_name, name, frame=frame, meta=meta)
    return store.read("guards", corpus_name, name)


def ask_guards(
    store: Store,
    corpora: Mapping[str, Corpus],
    guards: Sequence[str | Guard],
    needed: str = "",
    **options: Any,
) -> dict[str, dict[str, tuple[Guard, pd.DataFrame]]]:
    """Return guards with their probabilities, by corpus and name.

    One that cannot be asked is named on stderr.

    Each is loaded once for all corpora, with the options of `load_guard`. An unknown
    name or a wrong entry raises SettingsError. Where no guard could be asked about the
    corpus `needed`, the first one's error is raised.
    """
    found: dict[str, dict[str, tuple[Guard, pd.DataFrame]]] = {
        name: {} for name in corpora
    }
    faults: list[UserError] = []
    for named in guards:
        guard = named if isinstance(named, Guard) else None
        for name, corpus in corpora.items():
            try:
                if isinstance(named, str) and (guard is None or guard.by_prompt):
                    guard = load_guard(named, corpus, **options)
                assert guard is not None
                found[name][guard.name] = (
                    guard,
                    score_with_guard(store, name, corpus, guard),
                )
            except SettingsError:  # a name that is wrong, not a guard that is missing
                raise
            except UserError as error:
                faults += [error] if name == needed else []
                print(f"left out: {error}", file=sys.stderr)
                if guard is None:
                    break
    if needed and not found[needed] and faults:
        raise faults[0]
    return found


def label_by_threshold(frame: pd.DataFrame, threshold: float) -> Labels:
    """Turn scores into the rows of a labels file: rejected from the threshold on,
    `unparsed` where the score is NaN.
    """
    rejects = (frame["score"] >= threshold).map({True: "reject", False: "accept"})
    label = rejects.mask(frame["score"].isna(), "unparsed")
    unknown = {
        "kind": None,
        "rule": None,
        "p_refusal": np.nan,
        "answer": None,
        "response": None,
    }
    return frame[["prompt_id"]].assign(
        labeller=f"threshold-{threshold:g}", label=label, **unknown
    )


def _asked(guard: Guard, texts: list[str]) -> tuple[np.ndarray, Counter[str]]:
    """Return probabilities, NaN where a guard fails on a text alone, and its failures.

    DataError if it always fails.
    """
    found = np.full(len(texts), np.nan)
    failed: Counter[str] = Counter()
    succeeded = False
    size = TEXTS_PER_STEP if guard.asks else max(len(texts), 1)
    pending = [
        (start, min(start + size, len(texts))) for start in range(0, len(texts), size)
    ][::-1]
    bar = tqdm(
        total=len(texts), desc=guard.name, unit="prompt", disable=len(pending) < 2
    )
    while pending:
        start, end = pending.pop()
        try:
            found[start:end] = check_probabilities(
                guard.name, guard.score(texts[start:end]), end - start
            )
            succeeded = True
            bar.update(end - start)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            if end - start > 1:  # find the text on which it fails
                middle = (start + end) // 2
                pending += [(middle, end), (start, middle)]
                continue
            failed[
                f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
            ] += 1
            if not succeeded and (failed.total() >= MAX_FIRST_FAILURES or not pending):
                raise DataError(
                    f"the guard {guard.name} fails on every text ({failed.total()}"
                    f" tried): {next(iter(failed))}"
                ) from error
    return found, failed


def _from_entry(name: str, entry: Mapping[str, Any], corpus: Corpus | None) -> Guard:
    """Make a guard of its entry; only scores in a file need the corpus."""
    checked, notes = formats.parse_guard_entry(name, entry), GuardNotes()
    if checked.scores:
        found, score = _from_file(name, checked.scores, corpus)
    elif checked.function:
        found, score = _from_function(checked.function)
    elif checked.kind == "package":
        found, score = checked.version, packaged.make_package_scorer(name, entry)
    else:
        found, score = chat.GUARD_MAKERS[checked.kind](entry, notes)
    about = {
        "version": checked.version or found,
        "by_prompt": bool(checked.scores),
        **checked.described,
    }
    return Guard(name=name, score=score, notes=notes, **about)


def _own_name(name: str) -> str:
    """Return a name fit for files.

    Raise SettingsError where it cannot be, or a recorded system has it.
    """
    own = re.sub(r"[^\w.-]+", "-", name)
    if not own.strip("-.") or len(own) > MAX_NAME:
        raise SettingsError(
            f"the name {name[:40]!r}: a guard's has 1 to {MAX_NAME} characters, a"
            " letter or digit in it"
        )
    if (
        own in registry.guard_entries("panel")
        or own in registry.published_systems("chat").index
    ):
        raise SettingsError(
            f"the name {own} is taken by a system of the record; give your guard"
            " another"
        )
    return own


def _from_deployed(
    model: str, given: Mapping[str, Any], options: Mapping[str, Any]
) -> Guard:
    """Load a deployed guard by its hub id or folder.

    Fields that are `given` override those of the entry it matches.
    """
    from paraguard_tools.guards import deployed  # takes seconds, for torch

    entries = registry.guard_entries("deployed")
    like = str(
        given.get("match", model)
    )  # for a folder of another name than the hub id whose entry it has
    found = deployed.match_guard_entry(like, entries)
    if found and found["kind"] == "endpoint":
        options = {
            **options,
            "base_url": "",
        }  # a model's server is another's than a service
    elif options.get("base_url"):
        found = deployed.match_guard_entry(like.removeprefix(SERVED_PREFIX), entries)
    entry = {
        **(found or {}),
        **{field: value for field, value in given.items() if field != "match"},
    }
    if not entry.get("kind"):
        raise SettingsError(registry.unknown_guard(model))
    named = formats.parse_guard_entry(model, entry).name
    return deployed.load_deployed_guard(
        model, {**entry, "name": _own_name(named)} if named else entry, **options
    )


def _from_file(
    name: str, scores_file: str, corpus: Corpus | None
) -> tuple[str, GuardScorer]:
    """Return version and scorer of a CSV file of scores, which finds a text's prompt_id
    in the corpus.
    """
    path = paths.resolve_input(scores_file)
    where = paths.display_path(path)
    rows = read_upstream_csv(
        path, ("prompt_id", "score"), "a file of scores has prompt_id and score"
    )
    if len(twice := rows.loc[rows["prompt_id"].duplicated(), "prompt_id"]):
        raise DataError(f"{where}: {twice.iloc[0]} stands there twice")
    values = pd.to_numeric(rows["score"], errors="coerce").where(rows["score"] != "")
    if (wrong := values.isna() & ~rows["score"].isin(["", "nan", "NaN"])).any():
        raise DataError(
            f"{where}: row {wrong.argmax() + 2}: {rows['score'][wrong.argmax()]!r} is"
            " no number"
        )
    check_probabilities(name, values, len(rows))

    def score(texts: Sequence[str], answers: Sequence[str] | None = None) -> np.ndarray:
        if corpus is None:
            raise DataError(
                f"{where}: scores by prompt need the corpus whose prompts they are"
            )
        ids = pd.Series(corpus["prompt_id"].to_numpy(), index=corpus["text"].to_numpy())
        known = ids.map(pd.Series(values.to_numpy(), index=rows["prompt_id"]))
        if not ids.isin(rows["prompt_id"]).any():
            raise DataError(
                f"{where}: no prompt_id of it is in the corpus, which begins with"
                f" {ids.iloc[0]}"
            )
        return known.reindex(texts).to_numpy(float)

    return hashlib.sha256(path.read_bytes()).hexdigest()[:12], score


def _from_function(named: str) -> tuple[str, GuardScorer]:
    """Return version and scorer of a user's function.

    Its file's digest is the version: changed code is asked anew.
    """
    module_name, _, function_name = named.partition(":")
    for folder in (
        str(Path.cwd()),
        str(paths.ROOT),
    ):  # papermill's kernels run in one, the project's in the other
        if folder not in sys.path:
            sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, function_name)
    except (Exception, SystemExit) as error:  # a user's module may fail in any way
        raise SettingsError(
            f"the guard {named} cannot be imported: {type(error).__name__}: {error}"
        ) from None
    code = Path(module.__file__).read_bytes() if module.__file__ else named.encode()
    return hashlib.sha256(code).hexdigest()[:12], lambda texts, answers=None: function(
        list(texts)
    )
