"""Ask a model by files in the form of OpenAI's batch service, where a request's key is
its `custom_id`.
"""

import contextlib
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from paraguard_tools.servers import served, stops
from paraguard_utils import paths, unsafe
from paraguard_utils.errors import DataError
from paraguard_utils.models.prompting import Decoding, PromptContext
from paraguard_utils.schemas import Corpus, Traces
from paraguard_utils.stores import WHOLE, Shard, write_text

# Of files of requests; every other `.jsonl` file of the folder holds results
REQUESTS_SUFFIX = ".requests.jsonl"
BATCH_CAPABILITIES = served.Capabilities(
    "answer tokens", 20, "max_completion_tokens"
)  # nobody can ask what it returns


@dataclass(frozen=True)
class BatchFiles(served.ServedModel):
    """A model asked by a folder of requests and results.

    `argument` is the parameter `model` that named it.
    """

    folder: Path
    argument: str = ""

    def context(self, system_prompt_text: str, decoding: Decoding) -> PromptContext:
        """Return what decides an answer beside the user's words.

        The system prompt is a system turn.
        """
        return self.served_context(
            served.PromptLayout(system_prompt_text or None, ""),
            BATCH_CAPABILITIES,
            decoding,
        )

    def facts(self, traces: Traces) -> Mapping[str, object]:
        """Return what the meta file of traces records beside the context."""
        told = traces.loc[traces["response"].fillna("") != "", "next_ids"].map(len) > 0
        level, top = (
            (BATCH_CAPABILITIES.level, BATCH_CAPABILITIES.top)
            if len(told) and told.all()
            else ("text", 0)
        )
        return {"level": level, "top_tokens": top, "served_as": self.served_as}

    def answers(
        self,
        corpus: Corpus,
        context: PromptContext,
        system: str,
        known: set[str],
        batch: int,
        shard: Shard = WHOLE,
    ) -> Iterator[Traces]:
        """Yield the trace rows of results in the folder.

        Write requests for prompts without, and for those that failed.

        A file of results that is none raises `DataError`, and so do prompts whose
        answers must not lie in a file.
        """
        unsafe.refuse_unsafe(corpus, "asking by files")
        corpus = corpus.iloc[shard[0] - 1 :: shard[1]]
        results, framing = (
            self._results(),
            served.PromptLayout(**json.loads(context.prefix)),
        )
        rows: list[dict[str, Any]] = []
        missing: list[dict[str, Any]] = []
        for prompt in corpus[~corpus["prompt_id"].isin(known)].itertuples(index=False):
            key = context.key(prompt.text)
            if key in results:
                rows.append(
                    {"prompt_id": prompt.prompt_id, "key": key}
                    | _row(results[key], framing)
                )
            if key not in results or rows[-1]["finish_reason"] == "error":
                body = {
                    "model": self.served_as,
                    "messages": framing.messages(prompt.text),
                }
                body |= BATCH_CAPABILITIES.options(context.decoding)
                missing.append(
                    {
                        "custom_id": key,
                        "method": "POST",
                        "url": "/v1/chat/completions",
                        "body": body,
                    }
                )
        if missing:
            file = (
                self.folder / f"{system}-{missing[0]['custom_id'][:8]}{REQUESTS_SUFFIX}"
            )
            write_text(file, "".join(f"{json.dumps(request)}\n" for request in missing))
            told = (
                f"{len(missing)} requests are written to {paths.display_path(file)}:"
                " have them answered, and put the"
            )
            then = (
                f"results into {paths.display_path(self.folder)} as a .jsonl file; then"
                " run the same command again"
            )
            print(told, then, file=sys.stderr)
        if rows:
            yield pd.DataFrame(rows)

    def _results(self) -> dict[str, Mapping[str, Any]]:
        """Read all results in the folder, by key.

        A result that succeeded replaces one that failed.
        """
        found: dict[str, Mapping[str, Any]] = {}
        for file in sorted(
            {*self.folder.glob("*.jsonl")} - {*self.folder.glob(f"*{REQUESTS_SUFFIX}")}
        ):
            for number, line in enumerate(
                file.read_bytes().split(b"\n"), 1
            ):  # a text may hold other line ends
                if not line.strip():
                    continue
                try:
                    result = json.loads(line)
                    key, _ = result["custom_id"], _status(result)
                except (ValueError, LookupError, TypeError, AttributeError):
                    raise DataError(
                        f"{paths.display_path(file)}: line {number} is no result of a"
                        " batch; keep other files elsewhere"
                    ) from None
                if key not in found or _status(found[key]) != 200:
                    found[key] = result
        return found


def _status(result: Mapping[str, Any]) -> int:
    return int((result.get("response") or {}).get("status_code") or 0)


def _row(result: Mapping[str, Any], framing: served.PromptLayout) -> dict[str, Any]:
    """Return the columns of a trace for one result, whatever it is."""
    body, ended = (result.get("response") or {}).get("body"), _status(result) == 200
    if ended and body:
        with contextlib.suppress(
            LookupError, TypeError, AttributeError
        ):  # no choice in it
            return served.parse_completion(body, framing, BATCH_CAPABILITIES)
    stop = (
        stops.find_stop(body)
        if ended
        else stops.find_stop_in_error(body) or stops.find_stop_in_error(result)
    )
    return served.blocked_row(stop) if stop else dict(served.EMPTY_TRACE)
