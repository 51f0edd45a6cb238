"""What answers prompts: a loaded model, or one behind a server (`docs/method.md`, Asking)."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import pandas as pd
from tqdm import tqdm

from paraguard_utils import registry
from paraguard_utils.models import batch_files, loading, prompting, served
from paraguard_utils.models.prompting import OPEN_THOUGHT, Decoding, PromptContext
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import Settings
from paraguard_utils.stores import WHOLE

if TYPE_CHECKING:  # loading torch takes seconds
    from paraguard_utils.models.engine import Request

FILES = "file://"
"""How a `base_url` begins that is a folder of requests and results."""

Source = loading.Source | served.Server | batch_files.BatchFiles
"""What may become a respondent: all have the `name` that target names begin with, `weights_id` and `argument`."""


class Respondent(Protocol):
    """What answers prompts: a loaded model (`Local`), or one behind a server (`served.Server`).

    Attributes
    ----------
    name : str
        In target names.
    argument : str
        The parameter `model` that named it.
    """

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def argument(self) -> str: ...  # noqa: D102

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""

    def check(self, corpus: pd.DataFrame) -> None:
        """Raise an error where a prompt cannot be asked as it stands."""

    def answers(
        self,
        corpus: pd.DataFrame,
        context: PromptContext,
        target: str,
        known: set[str],
        batch: int,
        progress: bool,
        shard: tuple[int, int] = WHOLE,
    ) -> Iterator[Traces]:
        """Ask the prompts that are not known, or a shard's part of them; yield trace rows as they come."""

    def facts(self) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""


class Local:
    """A loaded model as a `Respondent`.

    Parameters
    ----------
    model : loading.Model
    """

    def __init__(self, model: loading.Model) -> None:
        self.model, self.name, self.argument = model, model.name, model.argument

    def context(self, wrapper_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        rendered = prompting.render_wrapper(self.model.tokenizer, wrapper_text)
        return PromptContext(self.model.weights_id, self.model.dtype, *rendered, decoding)

    def check(self, corpus: pd.DataFrame) -> None:
        """Raise an error where a prompt cannot be asked as it stands."""
        prompting.check_prompts(corpus, self.model.tokenizer)

    def facts(self) -> Mapping[str, object]:
        """Return what a meta file tells beside the context."""
        return {"device": str(self.model.network.device)}

    def answers(
        self,
        corpus: pd.DataFrame,
        context: PromptContext,
        target: str,
        known: set[str],
        batch: int,
        progress: bool,
        shard: tuple[int, int] = WHOLE,
    ) -> Iterator[Traces]:
        """Ask the prompts that are not known, batch by batch; of a shard, every n-th batch of all."""
        from paraguard_utils.models.engine import Engine, shared_prefix

        asked = prompting.requests(corpus, self.model.tokenizer, context)
        more = context.decoding.max_new_tokens
        groups, size = _groups(asked, known, batch, more, shard)
        if not groups:
            return
        temperature = getattr(context.decoding, "temperature", 0.0)
        engine = Engine(self.model, asked[0].token_ids[: shared_prefix(asked)], more, temperature)
        opened = OPEN_THOUGHT.search(context.suffix)
        left = sum(map(len, groups))
        with tqdm(total=size, initial=size - left, desc=target, unit="prompt", disable=not progress) as bar:
            for group in groups:
                rows = pd.DataFrame(engine.ask(group))
                if opened:
                    rows["response"] = f"{opened[1]}\n" + rows["response"]
                yield rows
                bar.update(len(rows))


def _groups(
    asked: "list[Request]", known: set[str], size: int, more: int, shard: tuple[int, int] = WHOLE
) -> "tuple[list[list[Request]], int]":
    """Return the batches still to be asked, and how many prompts there are in all.

    First those of an unbroken run of which nothing is known, then the rest: a batch decides the padding and with it
    the last bits of every number, so a resumed run keeps the batches, and so does a shard, which has every n-th.
    """
    from paraguard_utils.models.engine import batches

    number, shards = shard
    whole = batches(asked, size, more)[number - 1 :: shards]
    open_ = [[request for request in group if request.prompt_id not in known] for group in whole]
    kept = [group for group, left in zip(whole, open_, strict=True) if len(left) == len(group)]
    rest = [request for group, left in zip(whole, open_, strict=True) if len(left) < len(group) for request in left]
    return kept + batches(rest, size, more), sum(map(len, whole))


def sources(settings: Settings) -> list[Source]:
    """Find the user's model, or the default ones, without loading anything.

    Parameters
    ----------
    settings : settings.Settings
        model, base_url, concurrency and per_minute are used. With a base_url the model is a served one, with or without
        `openai/` before its name; `file://FOLDER` asks it by files.

    Raises
    ------
    ModelError
        There is no such model.
    """
    if settings.base_url:
        name = settings.model.removeprefix("openai/")
        if settings.base_url.startswith(FILES):
            folder = Path(settings.base_url.removeprefix(FILES)).expanduser()
            return [batch_files.BatchFiles(name, folder, settings.model)]
        given = (settings.base_url, settings.concurrency, settings.per_minute, settings.model)
        return [served.Server(name, *given)]
    return [loading.resolve(name) for name in ([settings.model] if settings.model else registry.default_models())]


def opened(source: Source, settings: Settings) -> Respondent:
    """Return what can be asked; local weights are loaded.

    Parameters
    ----------
    source : Source
    settings : settings.Settings
        dtype, device and without_template are used, for local weights.
    """
    if not isinstance(source, loading.Source):
        return source
    return Local(loading.load(source, settings.dtype, settings.device, settings.without_template))
