"""The guards that people deploy: a hub id, a local folder or an endpoint.

Each is described by an entry in the section `deployed` of `data/guards.yaml`, or in a
user's file.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paraguard_lab.guards.entries import parse_guard_entry
from paraguard_lab.guards.makers import unknown_guard
from paraguard_lab.models import gguf, own_models
from paraguard_tools.guards import endpoints
from paraguard_tools.guards.formats import DeployedEntry
from paraguard_tools.guards.notes import GuardNotes
from paraguard_tools.guards.prompted import PromptedGuard
from paraguard_tools.guards.text_classifier import TextClassifier
from paraguard_tools.servers import served
from paraguard_utils import registry
from paraguard_utils.errors import ModelError
from paraguard_utils.guards.contract import (
    Guard,
    GuardOptions,
    GuardScorer,
)
from paraguard_utils.models import loading
from paraguard_utils.settings import SERVED_PREFIX

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def make_deployed_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions
) -> Guard:
    """Make a guard that people deploy, by the hub id or folder `model` of its entry.

    The entry's fields override those of the first entry of `data/guards.yaml` that its
    `match`, or else the model, fits. Raise SettingsError if the guard has no kind then.
    """
    model = str(fields.get("model") or name)
    like = str(fields.get("match", model))
    known = registry.guard_entries("deployed")
    published = match_guard_entry(like, known)
    if published and published["kind"] == "endpoint":
        # A service is at another address than the server of a model.
        options = replace(options, base_url="")
    elif options.base_url:
        published = match_guard_entry(like.removeprefix(SERVED_PREFIX), known)
    entry = {**(published or {}), **fields}
    if not entry.get("kind"):
        raise unknown_guard(model)
    return load_deployed_guard(model, entry, options)


def match_guard_entry(
    name: str, entries: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """Return the first entry with a pattern that a name matches.

    The name is a hub id or a local folder, of which the last part is compared unless it
    is a hub's snapshot. A suffix after a colon names another interpretation of the same
    weights.
    """
    where, _, interpretation = name.partition(":")
    folder = Path(where).expanduser()
    is_folder = folder.is_dir()
    hub_id = own_models.folder_model_id(folder) if is_folder else where
    for entry in entries.values():
        if is_folder and entry.get("kind") in ("endpoint", "any_guardrail"):
            continue  # no folder holds these
        for pattern in entry.get("match", ()):
            wanted, _, wanted_interpretation = pattern.lower().partition(":")
            if is_folder and "/" not in hub_id:
                wanted = wanted.rpartition("/")[2]
            if interpretation != wanted_interpretation:
                continue
            if fnmatchcase(hub_id.lower(), wanted):
                return entry
    return None


def load_deployed_guard(
    name: str, fields: Mapping[str, Any], options: GuardOptions | None = None
) -> Guard:
    """Load a guard that people deploy, from its complete entry.

    Parameters
    ----------
    name : str
        A hub id, a local folder, the model of a service, or `openai/` and the name of a
        model at the server `options.base_url`.
    fields : mapping
        The entry, as in the section `deployed` of `data/guards.yaml`.
    options : GuardOptions, optional
        Device, precision, batch and address. A classifier has the precision of its
        weights, whatever the options say; a service's address is that of the options,
        or of its entry.

    Raises
    ------
    SettingsError
        If the entry is not complete.
    ModelError
        If the model cannot be loaded or queried, or lacks a token or a label that the
        entry names.
    """
    options = options or GuardOptions()
    entry = parse_guard_entry(name, fields, DeployedEntry)
    if entry.kind == "refused":
        raise ModelError(f"the guard {name} cannot be asked: {entry.about}")
    where, _, interpretation = name.partition(":")
    notes = GuardNotes()
    own_name = where.rpartition("/")[2]
    weights_id = where
    if entry.call:
        asks = "by a service that may charge for it"
        score = endpoints.make_service_scorer(name, entry.call, options)
    elif entry.kind == "any_guardrail":
        asks = "by any-guardrail"
        score = endpoints.make_any_guardrail_scorer(name, entry)
    elif options.base_url and where.startswith(SERVED_PREFIX):
        model_name = where.removeprefix(SERVED_PREFIX)
        backend = served.ServerBackend(model_name, options.base_url)
        own_name = backend.name
        weights_id = backend.weights_id
        asks = f"{len(entry.runs)} times each, at {options.base_url}"
        score = endpoints.make_served_scorer(name, entry, backend, notes)
    else:
        loading.check_device(options.device)
        source = loading.resolve_model(where)
        own_name = source.name
        weights_id = source.weights_id[:16]
        asks = (
            f"{len(entry.runs)} times each, on {options.device} in {options.dtype},"
            f" {options.batch} at a time"
        )
        if entry.kind == "classifier":
            score = _make_classifier_scorer(name, entry, source, options, notes)
        else:
            model = loading.load_model(
                source,
                options.dtype,
                options.device,
                "plain" if entry.template else "error",
                read_config(source),
            )
            score = PromptedGuard(name, entry, model, options.batch, notes)

    if interpretation:
        own_name = f"{own_name}-{interpretation}"
    content = f"{entry.shape} {options.dtype}"
    shape = hashlib.sha256(content.encode()).hexdigest()[:8]
    return Guard(
        name=entry.name or own_name,
        version=entry.version or f"{weights_id} {shape}",
        score=score,
        asks=asks,
        notes=notes,
        **entry.described,
    )


def read_config(source: loading.ModelSource) -> "PretrainedConfig":
    """Read a model's configuration, with a chunk size of attention if it has none.

    Llama Guard 4 is published without, and transformers cannot run it like that.
    """
    from transformers import AutoConfig

    folder = gguf.convert_gguf(source)
    what = f"model {source.name}: its configuration"
    config: PretrainedConfig = loading.load_part(AutoConfig, folder, what)
    text_config = config.get_text_config()
    if getattr(text_config, "attention_chunk_size", 0) is None:
        usual = type(text_config)()
        text_config.attention_chunk_size = usual.attention_chunk_size
    return config


def _make_classifier_scorer(
    name: str,
    entry: DeployedEntry,
    source: loading.ModelSource,
    options: GuardOptions,
    notes: GuardNotes,
) -> GuardScorer:
    """Return the scorer of a text classifier.

    The score is the sum of its unsafe labels, or their greatest if they are
    independent. Raise ModelError if it is not known which labels are unsafe.
    """
    model = TextClassifier(
        source, options.batch, options.device, entry.independent, entry.respace
    )
    unsafe_labels = {label.casefold() for label in entry.labels}
    is_unsafe = np.array([label.casefold() in unsafe_labels for label in model.labels])
    # If all labels of a softmax are unsafe, their sum is always 1.
    is_constant = len(is_unsafe) > 1 and is_unsafe.all() and not model.independent
    if not is_unsafe.any() or is_constant:
        raise ModelError(
            f"the guard {name}: it is not known which of the labels"
            f" {', '.join(model.labels)} are the unsafe ones; say `independent: true`"
            " if each stands alone, or name them under `labels`, in an entry of your"
            " own"
        )

    def score(texts: Sequence[str]) -> np.ndarray:
        unsafe = model.classify(texts)[:, is_unsafe]
        notes.cut.update(model.cut)
        if model.independent:
            return unsafe.max(axis=1)
        return unsafe.sum(axis=1).clip(0, 1)

    return score
