"""Query a model behind an OpenAI-compatible server (`docs/method.md`, Asking).

We find the server's level (`completions`) by requests before the first prompt.
"""

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice, product
from typing import Any, ClassVar, NamedTuple, Self

import pandas as pd
from tqdm import tqdm

from paraguard_lab.labels.unread import ROOMY_LIMIT
from paraguard_lab.report.costs import describe_cost
from paraguard_lab.served import SERVED_DTYPE, SERVED_SUFFIX
from paraguard_tools.servers import stops
from paraguard_tools.servers.client import (
    FILTER_FAULT,
    PROMPT_TIMEOUT,
    Client,
    Pace,
    UnusableAnswer,
)
from paraguard_tools.servers.completions import (
    EMPTY_TRACE,
    PARTLY_RETURNED,
    Capabilities,
    PromptLayout,
    blocked_row,
    find_level,
    has_reasoning,
    is_complete,
    is_same_model,
    parse_completion,
    returns_all,
)
from paraguard_utils.errors import ModelError
from paraguard_utils.models.backends import BackendSource
from paraguard_utils.models.loading import slugify_model
from paraguard_utils.models.prompting import (
    Decoding,
    PromptContext,
    Workload,
    count_shared,
)
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.settings import SERVED_PREFIX, QueryOptions
from paraguard_utils.text import replace_control

# The decoding of a model that accepts no temperature
OWN_TEMPERATURE = "the server's own temperature"
MAX_FAILURES = 8  # prompts that may fail one after another before we stop
DECLINED_STATUSES = (400, 422)  # by which a server declines a field of a request
# By which a server refuses one prompt, and would again, and does not itself fail
REFUSED_STATUSES = (400, 413, 422)
_NAMES_KEPT = 5  # names of models that a server answers by
_NAME_CHARS = 80  # of such a name

PROBES = (
    ("full", 64),
    ("full", 20),
    ("answer tokens", 20),
    ("answer tokens", 5),
    ("text", 0),
)
"""Level and number of top tokens, in the order in which we ask a server for them."""

# Servers' names for the maximum length of an answer
_LIMIT_FIELDS = ("max_tokens", "max_completion_tokens")
# They begin and end differently: their prompts share the template alone
PROBE_TEXTS = ("Hello there", "What now")


def takes(options: QueryOptions) -> bool:
    """Return whether the parameters name a server."""
    return options.base_url.startswith("http")


def resolve(options: QueryOptions) -> list[BackendSource]:
    """Return the model that the parameters name; nothing is sent to its server yet."""
    backend = ServerBackend(
        options.model.removeprefix(SERVED_PREFIX),
        options.base_url,
        options.concurrency,
        options.per_minute,
        options.model,
    )
    return [backend]


def select_shard(workload: Workload) -> Corpus:
    """Return the prompts of a shard (i, n): every n-th from the i-th on."""
    number, shards = workload.shard
    return workload.prompts.iloc[number - 1 :: shards]


@dataclass(frozen=True)
class ServedModel:
    """A model by a service's name for it.

    After an `@` comes a revision that the user states. Only the server knows the
    control tokens.
    """

    tokenizer: ClassVar[None] = None
    dtype: ClassVar[str] = SERVED_DTYPE
    model: str

    @property
    def name(self) -> str:
        """The model's part of system names."""
        return slugify_model(self.model) + SERVED_SUFFIX

    @property
    def weights_id(self) -> str:
        """What identifies weights that we cannot see.

        It is the name with the stated revision, on whatever server.
        """
        return f"served {self.model}"

    @property
    def served_as(self) -> str:
        """The server's name for the model, without a revision.

        A leading `@` is part of the name.
        """
        return self.model.rpartition("@")[0] or self.model

    def open(self, options: QueryOptions) -> Self:
        """Return the model itself, which is queried at the first prompt."""
        return self

    def make_context(
        self, layout: PromptLayout, capabilities: Capabilities, decoding: Decoding
    ) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        layout = layout._replace(told=f"{capabilities.level} {capabilities.top}")
        prefix = json.dumps(layout._asdict(), sort_keys=True)
        return PromptContext(self.weights_id, self.dtype, prefix, "", decoding)


@dataclass
class Seen:
    """What the answers of a run showed beside their texts.

    Attributes
    ----------
    models : Counter
        By which models the server says that it answered.
    answers : int
        Those that came; `reasoned` of them with reasoning, `spent` of these cut off
        before they said anything, and `partial` of all without log-probabilities that
        were asked for.
    """

    models: Counter[str] = field(default_factory=Counter)
    answers: int = 0
    reasoned: int = 0
    spent: int = 0
    partial: int = 0

    def note(self, answer: "Answer", capabilities: Capabilities) -> None:
        """Count one answer."""
        self.answers += 1
        if answer.model:
            self.models[answer.model] += 1
        self.reasoned += answer.has_reasoning
        self.spent += answer.has_reasoning and not answer.row["response"]
        self.partial += not is_complete(answer.row, capabilities)

    def summarize(self, asked: str, level: str) -> list[str]:
        """Return a sentence for whatever a user would not expect.

        `asked` is the model that was asked for, `level` what the server promised.
        """
        lines = []
        others = Counter(
            {
                name: n
                for name, n in self.models.items()
                if not is_same_model(asked, name)
            }
        )
        if others:
            names = [f"{name} ({n})" for name, n in others.most_common(_NAMES_KEPT)]
            lines.append(
                f"{sum(others.values())} of {self.answers} answers are by another model"
                f" than {asked}: {', '.join(names)}"
            )
        if self.spent:
            lines.append(
                f"it reasons first ({self.reasoned} of {self.answers} answers), and"
                f" {self.spent} ended before they said anything; give it more, as"
                f" -p max_new_tokens={ROOMY_LIMIT} or more"
            )
        if self.partial:
            lines.append(
                f"{self.partial} of {self.answers} answers lack log-probabilities that"
                f" the level {level!r} has"
            )
        return lines


class Answer(NamedTuple):
    """A prompt's trace row, and what else its answer showed.

    `failed` says that the server did not do its work; `model` is the name by which it
    answered, "" if it gave none.
    """

    row: dict[str, Any]
    failed: bool = False
    came: bool = False
    model: str = ""
    has_reasoning: bool = False


@dataclass(frozen=True)
class ServerBackend(ServedModel):
    """A served model, as `trace_store.query_model` queries it.

    At most `concurrency` requests are under way at the same time, and `per_minute`
    begin in a minute (0: no limit). `argument` is the parameter `model` that named it.
    A prompt gets no answer if there is no whole one after `prompt_timeout` seconds.
    """

    base_url: str
    concurrency: int = 16
    per_minute: int = 0
    argument: str = ""
    prompt_timeout: float = PROMPT_TIMEOUT

    @cached_property
    def client(self) -> Client:
        """What sends requests to the server."""
        return Client(self.base_url, self.served_as, prompt_timeout=self.prompt_timeout)

    @cached_property
    def seen(self) -> "Seen":
        """What the answers of the last run showed."""
        return Seen()

    @property
    def faults(self) -> Counter[str]:
        """What went wrong in the last run, by kind."""
        return self.client.faults

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the server returns: the first of `PROBES` that it answers in full.

        If it answers none, `ModelError`.
        """
        probes = [
            Capabilities(level, top, limit)
            for limit, (level, top) in product(_LIMIT_FIELDS, PROBES)
        ]
        messages = PromptLayout(None, "").messages(PROBE_TEXTS[0])
        reason = ""
        while probes:
            probe = probes[0]
            try:
                reply = self.client.send(messages, probe.options(Decoding(1)))
                if returns_all(reply, probe):
                    return probe
            except UnusableAnswer as error:
                if error.status not in DECLINED_STATUSES:
                    raise self.client.explain(error) from None
                reason = str(error)
                if probe.temperature and "temperature" in reason.lower():
                    # The same probe again
                    probes = [each._replace(temperature=False) for each in probes]
                    continue
            del probes[0]
        raise ModelError(
            f"the server {self.base_url} takes no request for {self.model}: {reason}"
        )

    def find_layout(self, system_prompt_text: str) -> PromptLayout:
        """Return where the system prompt goes.

        That is the system turn, or the user's turn if the server drops the former.
        Without a system prompt it is the shorter rendering, as in
        `prompting.render_system_prompt`. A server that declines a request without a
        system turn raises `ModelError`.
        """
        plain = PromptLayout(None, "")
        with_system = PromptLayout(system_prompt_text, "")
        plain_size = self._count_prompt_tokens(plain) or 0
        system_size = self._count_prompt_tokens(with_system)
        if not system_prompt_text:
            is_shorter = system_size is not None and system_size < plain_size
            layout = with_system if is_shorter else plain
        elif system_size is None or (plain_size and system_size == plain_size):
            # A template that drops the system turn makes a prompt as long; one with a
            # default system text, a shorter one
            layout = PromptLayout(None, f"{system_prompt_text}\n\n")
        else:
            layout = with_system
        if self.capabilities.level == "full":
            return self._find_tokens_around(layout)
        return layout

    def _lower_level(self) -> None:
        """Ask for less from here on: not for the log-probabilities of the prompt."""
        lower = self.capabilities._replace(level="answer tokens")
        print(
            f"{self.model} at {self.base_url} returned the tokens of a prompt once, and"
            f" then not: it is asked at the level {lower.level!r}",
            file=sys.stderr,
        )
        # Where a cached property keeps its value
        self.__dict__["capabilities"] = lower

    def _count_prompt_tokens(self, layout: PromptLayout) -> int | None:
        """Return how many tokens the server reads; 0 if it does not say so.

        It is None if the server declines the system turn.
        """
        try:
            return int(
                self._send_probe(layout, PROBE_TEXTS[0])["usage"]["prompt_tokens"]
            )
        except UnusableAnswer as error:
            if layout.system is not None and error.status in DECLINED_STATUSES:
                return None
            raise self.client.explain(error) from None
        except PARTLY_RETURNED:
            return 0

    def _find_tokens_around(self, layout: PromptLayout) -> PromptLayout:
        """Return a layout with the tokens before and after the user's words.

        If the server returns them no more, lower the level and return the layout as it
        is.
        """
        try:
            first, second = (
                list(self._send_probe(layout, text)["prompt_token_ids"])
                for text in PROBE_TEXTS
            )
        except UnusableAnswer as error:
            raise self.client.explain(error) from None
        except PARTLY_RETURNED:
            self._lower_level()
            return layout
        shared = count_shared(first[::-1], second[::-1])
        return layout._replace(
            start=first[: count_shared(first, second)],
            end=first[len(first) - shared :],
        )

    def _send_probe(self, layout: PromptLayout, text: str) -> dict[str, Any]:
        options = self.capabilities.options(Decoding(1))
        return self.client.send(layout.messages(text), options)

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words."""
        layout = self.find_layout(system_prompt_text)
        if not self.capabilities.temperature:
            if decoding.method != Decoding.method:
                raise ModelError(
                    f"{self.model} takes no temperature, so that nothing can be drawn"
                    " at one"
                )
            decoding = replace(decoding, method=OWN_TEMPERATURE)
        return self.make_context(layout, self.capabilities, decoding)

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Query the prompts of a workload, `concurrency` at a time.

        Yield trace rows as answers come. Of a shard (i, n) these are those of every
        n-th prompt from the i-th on. A prompt that failed `client.MAX_ATTEMPTS` times
        has a null response and the finish reason `error`. A server that refuses every
        request (key, model), or fails on `MAX_FAILURES` prompts one after another,
        raises `ModelError`.
        """
        self.faults.clear()
        self.__dict__["seen"] = Seen()
        prompts = select_shard(workload)
        unknown = prompts[~prompts["prompt_id"].isin(workload.known)]
        if unknown.empty:
            return
        layout = PromptLayout(**json.loads(context.prefix))
        self._announce(unknown, layout, context.decoding)
        answer = partial(
            self._answer, layout=layout, context=context, pace=Pace(self.per_minute)
        )
        bar = tqdm(
            total=len(prompts),
            initial=len(prompts) - len(unknown),
            desc=workload.title,
            unit="prompt",
        )
        finished = _run_in_threads(
            answer, unknown.itertuples(index=False), self.concurrency
        )
        failures = 0
        try:
            with bar, contextlib.closing(finished):
                for calls in finished:
                    answered = [call.result() for call in calls if not call.exception()]
                    for each in answered:
                        failures = failures + 1 if each.failed else 0
                        if each.came:
                            self.seen.note(each, self.capabilities)
                    if answered:
                        yield pd.DataFrame([each.row for each in answered])
                        bar.update(len(answered))
                    for call in calls:
                        # Raises what would end every prompt, once the rest is kept
                        call.result()
                    if failures >= MAX_FAILURES:
                        raise ModelError(
                            f"the server {self.base_url} failed on {failures} prompts"
                            f" one after another ({self.client.summarize_faults()});"
                            " what it answered is kept: run the same command again when"
                            " it is well"
                        )
        finally:
            self._tell_end(workload.title)

    def _tell_end(self, title: str) -> None:
        """Say what went wrong in a run, and what its answers showed."""
        lines = self.seen.summarize(self.served_as, self.capabilities.level)
        if self.faults:
            lines.insert(0, self.client.summarize_faults())
        for line in lines:
            print(f"{title}: {line}", file=sys.stderr)

    def _announce(
        self, prompts: Corpus, layout: PromptLayout, decoding: Decoding
    ) -> None:
        around = sum(len(turn["content"]) for turn in layout.messages(""))
        cost = describe_cost(prompts["text"], decoding, around)
        line = (
            f"{self.model} at {self.base_url} tells: {self.capabilities.level}; {cost}"
        )
        if not self.capabilities.temperature:
            line += (
                "; it takes no temperature: it is asked at its own, and answers may"
                " differ from call to call"
            )
        if layout.before:
            line += (
                "; it has no system turn: the instruction stands before the user's"
                " words, in the user's turn"
            )
        print(line, file=sys.stderr)

    def ask_turns(
        self, turns: list[dict[str, Any]], most: int, fields: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        """Return the one choice of an answer to chat turns, of at most `most` tokens.

        It is None if the request is refused. `fields` of the request come beyond the
        usual ones. A server that cannot be used at all raises `ModelError`.
        """
        capabilities = self.capabilities._replace(level="answer tokens")
        options = capabilities.options(Decoding(most)) | {"extra_body": fields}
        try:
            return dict(self.client.send(turns, options)["choices"][0])
        except UnusableAnswer as error:
            if error.status in REFUSED_STATUSES:
                return None
            raise self.client.explain(error) from None

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what a meta file says beside the context."""
        level = find_level(traces, self.capabilities.level)
        return {
            "level": level,
            "top_tokens": 0 if level == "text" else self.capabilities.top,
            "served_as": self.served_as,
            "answered_as": dict(self.seen.models.most_common(_NAMES_KEPT)),
            "reasoned": self.seen.reasoned,
            "faults": dict(self.faults),
        }

    def _answer(
        self, prompt: Any, layout: PromptLayout, context: PromptContext, pace: Pace
    ) -> Answer:
        """Query one prompt; raise only what ends every prompt."""
        identity = {"prompt_id": prompt.prompt_id, "key": context.key(prompt.text)}
        options = self.capabilities.options(context.decoding)
        try:
            pace.take()
            reply = self.client.send(layout.messages(prompt.text), options)
        except UnusableAnswer as error:
            if error.ends_run:
                raise self.client.explain(error) from None
            if error.stop:
                return Answer(identity | blocked_row(error.stop))
            failed = error.status not in REFUSED_STATUSES
            return Answer(identity | EMPTY_TRACE, failed)
        row = identity | parse_completion(reply, layout, self.capabilities)
        if stops.find_stop_in_reason(row["finish_reason"]):
            self.faults[FILTER_FAULT] += 1
            return Answer(row)
        return Answer(
            row,
            came=True,
            model=replace_control(str(reply.get("model") or ""))[:_NAME_CHARS],
            has_reasoning=has_reasoning(reply),
        )


def _run_in_threads(
    work: Callable[[Any], Any], items: Iterable[Any], threads: int
) -> Generator[set[Future[Any]], None, None]:
    """Yield the finished calls of a function of items, some at a time.

    One item waits beside those under way, and no more: a stop leaves little to be done.
    """
    items = iter(items)
    pool = ThreadPoolExecutor(threads)
    pending: set[Future[Any]] = set()
    try:
        while True:
            for item in islice(items, threads + 1 - len(pending)):
                pending.add(pool.submit(work, item))
            if not pending:
                return
            finished, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield finished
    finally:
        # After a stop nobody takes the answers
        pool.shutdown(wait=not pending, cancel_futures=True)
