"""Query a model by files in the form of OpenAI's batch service.

A request's key is its `custom_id`. We write the requests and read the results; the user
has them answered in between.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_lab.parameters import FILE_SCHEME
from paraguard_tools.servers import stops
from paraguard_tools.servers.completions import (
    EMPTY_TRACE,
    Capabilities,
    PromptLayout,
    blocked_row,
    parse_completion,
)
from paraguard_tools.servers.served import ServedModel, select_shard
from paraguard_utils import paths, unsafe
from paraguard_utils.errors import DataError
from paraguard_utils.models.backends import BackendSource
from paraguard_utils.models.prompting import Decoding, PromptContext, Workload
from paraguard_utils.schemas import Traces
from paraguard_utils.settings import SERVED_PREFIX, QueryOptions
from paraguard_utils.stores import write_text

# Of files of requests; every other `.jsonl` file of the folder holds results
REQUESTS_SUFFIX = ".requests.jsonl"
# Nobody can ask what the service returns
BATCH_CAPABILITIES = Capabilities("answer tokens", 20, "max_completion_tokens")


def takes(options: QueryOptions) -> bool:
    """Return whether the parameters name a folder of requests and results."""
    return options.base_url.startswith(FILE_SCHEME)


def resolve(options: QueryOptions) -> list[BackendSource]:
    """Return the model whose requests and results are in the folder."""
    folder = Path(options.base_url.removeprefix(f"{FILE_SCHEME}//")).expanduser()
    name = options.model.removeprefix(SERVED_PREFIX)
    return [BatchFiles(name, folder, options.model)]


@dataclass(frozen=True)
class BatchFiles(ServedModel):
    """A model behind a folder of requests and results.

    `argument` is the parameter `model` that named it.
    """

    folder: Path
    argument: str = ""

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words.

        The system prompt is a system turn.
        """
        layout = PromptLayout(system_prompt_text or None, "")
        return self.make_context(layout, BATCH_CAPABILITIES, decoding)

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""
        answered = traces[traces["response"].fillna("") != ""]
        tells = len(answered) and answered["next_ids"].map(len).gt(0).all()
        return {
            "level": BATCH_CAPABILITIES.level if tells else "text",
            "top_tokens": BATCH_CAPABILITIES.top if tells else 0,
            "served_as": self.served_as,
        }

    def answers(self, workload: Workload, context: PromptContext) -> Iterator[Traces]:
        """Yield the trace rows of results in the folder.

        Write requests for prompts without, and for those that failed. A file of results
        that is none raises `DataError`, and so do prompts whose answers must not be in
        a file.
        """
        unsafe.refuse_unsafe(workload.prompts, "asking by files")
        prompts = select_shard(workload)
        unknown = prompts[~prompts["prompt_id"].isin(workload.known)]
        results = self._read_results()
        layout = PromptLayout(**json.loads(context.prefix))
        rows = []
        requests = []
        for prompt in unknown.itertuples(index=False):
            key = context.key(prompt.text)
            row = {"prompt_id": prompt.prompt_id, "key": key} | EMPTY_TRACE
            if key in results:
                row |= _read_result(results[key], layout)
                rows.append(row)
            if row["finish_reason"] == "error":
                body = {
                    "model": self.served_as,
                    "messages": layout.messages(prompt.text),
                    **BATCH_CAPABILITIES.options(context.decoding),
                }
                requests.append(
                    {
                        "custom_id": key,
                        "method": "POST",
                        "url": "/v1/chat/completions",
                        "body": body,
                    }
                )
        if requests:
            self._write_requests(requests, workload.title)
        if rows:
            yield pd.DataFrame(rows)

    def _write_requests(self, requests: list[dict[str, Any]], system: str) -> None:
        name = f"{system}-{requests[0]['custom_id'][:8]}{REQUESTS_SUFFIX}"
        file = self.folder / name
        write_text(file, "".join(f"{json.dumps(request)}\n" for request in requests))
        print(
            f"{len(requests)} requests are written to {paths.display_path(file)}: have"
            f" them answered, and put the results into"
            f" {paths.display_path(self.folder)} as a .jsonl file; then run the same"
            " command again",
            file=sys.stderr,
        )

    def _read_results(self) -> dict[str, Mapping[str, Any]]:
        """Read all results in the folder, by key.

        A result that succeeded replaces one that failed.
        """
        results: dict[str, Mapping[str, Any]] = {}
        for file in sorted(self.folder.glob("*.jsonl")):
            if file.name.endswith(REQUESTS_SUFFIX):
                continue
            # A text may hold other line ends
            for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
                if not line.strip():
                    continue
                try:
                    result = _parse_result(line)
                except _NO_RESULT:
                    raise DataError(
                        f"{paths.display_path(file)}: line {number} is no result of a"
                        " batch; keep other files elsewhere"
                    ) from None
                key = result["custom_id"]
                if key not in results or _status(results[key]) != 200:
                    results[key] = result
        return results


_NO_RESULT = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(RecursionError, OverflowError),  # too deep; a status that is infinite
)
"""What comes of reading a line that is no result."""


def _parse_result(line: bytes) -> dict[str, Any]:
    """Return the result in a line; anything else raises one of `_NO_RESULT`."""
    result: dict[str, Any] = json.loads(line)
    if not isinstance(result["custom_id"], str):
        raise TypeError("a key is a text")
    _status(result)
    return result


def _status(result: Mapping[str, Any]) -> int:
    response = result.get("response") or {}
    return int(response.get("status_code") or 0)


def _read_result(result: Mapping[str, Any], layout: PromptLayout) -> dict[str, Any]:
    """Return the columns of a trace for one result, whatever it is."""
    body: Any = (result.get("response") or {}).get("body")
    if _status(result) == 200:
        # There may be no choice in it
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            return parse_completion(body, layout, BATCH_CAPABILITIES)
        stop = stops.find_stop(body)
    else:
        stop = stops.find_stop_in_error(body) or stops.find_stop_in_error(result)
    return blocked_row(stop) if stop else dict(EMPTY_TRACE)
