"""Guards that are queried elsewhere: at a server, by a service or by any-guardrail."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from paraguard_tools.guards.formats import (
    DeployedEntry,
    ServiceCall,
    fill_template,
    read_choice,
    read_service_score,
    render_turns,
)
from paraguard_tools.guards.notes import GuardNotes
from paraguard_tools.servers.client import Client
from paraguard_tools.servers.served import ServerBackend
from paraguard_utils.errors import DataError, ModelError
from paraguard_utils.guards.contract import GuardOptions, GuardScorer
from paraguard_utils.models import loading

SERVICE_RETRIES = 2  # of a call to a moderation service


def make_served_scorer(
    name: str, entry: DeployedEntry, backend: ServerBackend, notes: GuardNotes
) -> GuardScorer:
    """Return the scorer of a guard behind a server.

    The server uses its own chat template, and generates the answer.
    """
    if entry.template or entry.tokens is None:
        raise ModelError(
            f"the guard {name} cannot be asked at a server: it needs a prompt of ours,"
            " or a classifier"
        )

    def judge(text: str) -> float:
        probabilities = []
        turns = render_turns(entry, text)
        for run in entry.runs:
            arguments = {**entry.arguments, **run}
            arguments.pop("add_generation_prompt", None)
            more = {"chat_template_kwargs": arguments} if arguments else {}
            choice = backend.ask_turns(turns, entry.max_new_tokens, more)
            probability, mass = read_choice(entry, choice)
            notes.note_mass(text, mass)
            probabilities.append(probability)
        return float(np.max(probabilities))

    def score(texts: Sequence[str]) -> list[float]:
        with ThreadPoolExecutor(backend.concurrency) as pool:
            return list(pool.map(judge, texts))

    return score


def make_any_guardrail_scorer(name: str, entry: DeployedEntry) -> GuardScorer:
    """Return the scorer of a guard of the package any-guardrail.

    It is the guard's own score if that is a probability, else 1 or 0.
    """
    model = _model_of(name)
    try:
        from any_guardrail import AnyGuardrail, GuardrailName

        kind = GuardrailName(fill_template(entry.guardrail, model=model))
        options = fill_template(entry.options, model=model)
        guard = AnyGuardrail.create(kind, **options)
    # The package, or an extra of it, is missing, or the guard fails in its own way
    except Exception as error:
        raise ModelError(
            f"the guard {name}: any-guardrail cannot make it"
            f" ({loading.first_error_line(error)}); it is installed by: python -m pip"
            " install 'paraguard-utils[any-guardrail]'"
        ) from error

    def judge(text: str) -> float:
        result = guard.validate(text)
        if (result.extra or {}).get("parse_failure"):
            return np.nan
        if result.score is not None and 0 <= result.score <= 1:
            return result.score
        return float(not result.valid)

    return lambda texts: [judge(text) for text in texts]


def make_service_scorer(
    name: str, call: ServiceCall, options: GuardOptions
) -> GuardScorer:
    """Return a moderation service's scorer; NaN for a text that the service rejects.

    The address is that of the options, of the environment or of the entry. No message
    holds the key. Raise ModelError if address or key are not known.
    """
    address = options.base_url or os.environ.get(call.variable) or call.base
    key = os.environ.get(call.key, "").strip()
    if not address:
        raise ModelError(
            f"the guard {name}: its service has no address; set {call.variable}"
        )
    if not key:
        raise ModelError(f"the guard {name}: its service has no key; set {call.key}")
    client = Client(address, name)
    library = client.library
    import openai

    headers = fill_template(call.headers, key=key)
    request_options: Any = {
        "headers": {"Authorization": openai.Omit(), **headers},
        "max_retries": SERVICE_RETRIES,
    }
    model = _model_of(name)

    def ask(texts: list[str]) -> list[float]:
        body = fill_template(call.body, model=model, texts=texts, text=texts[0])
        results: Any = None
        try:
            reply: Any = client.wait(
                library.post(
                    call.path, cast_to=object, body=body, options=request_options
                )
            )
            results = reply[call.results] if call.results else [reply]
        except (openai.BadRequestError, openai.UnprocessableEntityError):
            # One of the texts may be why.
            if len(texts) == 1:
                return [np.nan]
            return ask_in_steps(texts, 1)
        except (openai.OpenAIError, TimeoutError) as error:
            raise ModelError(
                f"the guard {name}: the service {address} cannot be asked"
                f" ({type(error).__name__}); see {call.variable} and {call.key}"
            ) from None
        except (ValueError, KeyError, TypeError):
            pass  # a reply of another form
        if not isinstance(results, list) or len(results) != len(texts):
            raise DataError(
                f"the guard {name}: the service {address} was given {len(texts)} texts"
                " and returned no list of as many results"
            )
        return [read_service_score(call, result) for result in results]

    def ask_in_steps(texts: Sequence[str], size: int) -> list[float]:
        scores = []
        for start in range(0, len(texts), size):
            scores += ask(list(texts[start : start + size]))
        return scores

    return lambda texts: ask_in_steps(texts, options.batch if call.results else 1)


def _model_of(name: str) -> str:
    """Return the last part of a service's name, without the interpretation."""
    return name.partition(":")[0].rpartition("/")[2]
