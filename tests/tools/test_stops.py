"""A provider's stop is a refusal: every row of the list, through a server, a batch file
and the labeller.
"""

import json

import pandas as pd
import pytest
from test_batch_files import ask as ask_by_file
from test_batch_files import put, requests
from test_served import ask, prompts, server  # noqa: F401
from werkzeug import Response

from paraguard_tools.servers import stops
from paraguard_utils import paths
from paraguard_utils.labels import refusals

ROWS = pd.read_csv(stops.STOPS_FILE, keep_default_na=False)
IN_WORDS = [stops.TEXT_FIELD, stops.MESSAGE_FIELD, stops.LINE_FIELD]
BODIES = ROWS[~ROWS["field"].isin(IN_WORDS)].to_dict("records")
MESSAGES = ROWS[ROWS["field"] == stops.MESSAGE_FIELD].to_dict("records")
WORDS = ROWS[ROWS["field"] == stops.TEXT_FIELD].to_dict("records")
LISTS = {
    "choices",
    "candidates",
    "output",
    "content",
    "safetyRatings",
    "safety_ratings",
    "results",
    "generations",
}


def body_of(row):
    """Make a body of the row's shape, with a category if the provider has one."""
    said = row["value"].replace(stops.ANY_VALUE, "SAFETY")
    body = built(row["field"].split("."), said)
    if row["category"]:
        about = (
            "violence" if row["category"].endswith(("category", "reasons")) else None
        )
        if "atings" in row["category"]:
            about = [
                {"category": "HARM_CATEGORY_VIOLENCE", "blocked": True},
                {"category": "HARM_CATEGORY_HATE_SPEECH"},
            ]
        about = about or {
            "violence": {"filtered": True, "severity": "medium"},
            "hate": {"filtered": False},
        }
        merge(body, built(row["category"].split("."), about))
    return body


def built(path, value):
    for name in reversed(path):
        value = {name: [value] if name in LISTS and isinstance(value, dict) else value}
    return value


def merge(one, other):
    for name, value in other.items():
        if name in one and isinstance(one[name], list):
            merge(one[name][0], value[0])
        elif name in one and isinstance(one[name], dict):
            merge(one[name], value)
        else:
            one[name] = value


def expected(row):
    return ("blocked", "violence" if row["category"] else "")


@pytest.mark.parametrize(
    "row", BODIES, ids=lambda row: f"{row['provider']} {row['field']} {row['value']}"
)
def test_every_stop_is_found_in_a_body_of_its_shape(row):
    found = stops.find_stop(body_of(row))
    assert found.provider == row["provider"] or row["provider"] == "gateway"
    assert found.category == ("violence" if row["category"] else "")
    again = stops.find_stop_in_reason(found.reason)
    assert (again.value, again.category) == (
        found.value,
        found.category,
    ), "the reason of a trace tells it too"
    assert refusals.label_by_cues(["Sure, here it is"], [found.reason]).loc[
        0, ["label", "kind"]
    ].tolist() == list(expected(row))


@pytest.mark.slow
def test_every_stop_through_the_served_client(server):  # noqa: F811
    script = {}
    for number, row in enumerate(BODIES):
        status = 400 if row["field"].startswith("error") else 200
        text = json.dumps(body_of(row))
        script[f"prompt {number}"] = [
            lambda s=status, t=text: Response(
                t, status=s, content_type="application/json"
            )
        ]
    _, model = server(script)
    traces = ask(model, prompts(*script))
    labels = refusals.label_by_cues(traces["response"], traces["finish_reason"])
    assert list(zip(labels["label"], labels["kind"], strict=True)) == [
        expected(row) for row in BODIES
    ]
    assert model.faults == {"content filter": len(BODIES)}
    asked_again = ask(model, prompts(*script))
    assert len(asked_again) == len(BODIES) and not model.faults, (
        "a stop is an answer: nobody is asked again"
    )


def test_every_stop_through_a_batch_file(results, tmp_path):
    words = [f"prompt {number}" for number in range(len(BODIES))]
    ask_by_file(tmp_path, prompts(*words))
    rows = []
    for request, row in zip(requests(tmp_path), BODIES, strict=True):
        response = {
            "status_code": 400 if row["field"].startswith("error") else 200,
            "body": body_of(row),
        }
        rows.append(
            {"id": "x", "custom_id": request["custom_id"], "response": response}
        )
    put(tmp_path, "a.jsonl", rows)
    traces = ask_by_file(tmp_path, prompts(*words))
    labels = refusals.label_by_cues(traces["response"], traces["finish_reason"])
    assert list(zip(labels["label"], labels["kind"], strict=True)) == [
        expected(row) for row in BODIES
    ]


@pytest.mark.parametrize("row", WORDS, ids=lambda row: row["value"][:30])
def test_words_in_place_of_an_answer(row):
    shown = (
        f"\u23fa  {row['value'].replace(' ', chr(10), 1)} (https://example.org). Please"
        " try again."
    )
    assert stops.find_stop_in_text(shown).provider == row["provider"]
    found = refusals.label_by_cues(
        [shown.replace("'", "\u2019"), f"Sure. {'x ' * 400}{row['value']}"],
        ["stop", "stop"],
    )
    assert found["label"].tolist() == [
        "blocked",
        "accept",
    ], "far behind in an answer they are quoted"


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        "refusal",
        {
            "choices": [
                {
                    "finish_reason": "stop",
                    "message": {"refusal": None, "content": "refusal"},
                }
            ]
        },
        {"stop_reason": "end_turn", "stop_details": None},
        {
            "candidates": [
                {
                    "finishReason": "STOP",
                    "safetyRatings": [{"category": "X", "blocked": False}],
                }
            ]
        },
        {"promptFeedback": {"blockReason": ""}},
        {"error": {"code": 429, "innererror": None}},
    ],
)
def test_what_is_no_stop(body):
    assert stops.find_stop(body) is None


def test_other_reasons_are_none():
    for reason in (
        "stop",
        "length",
        "error",
        "",
        None,
        float("nan"),
        "refuse",
        "a (b) (c)",
        "safety first",
    ):
        assert stops.find_stop_in_reason(reason) is None
    assert stops.find_stop_in_reason("Safety").provider == "gemini", (
        "gateways change the case"
    )


def test_an_error_that_names_its_filter_in_words_only():
    for body in (
        {"message": "blocked by content_filter"},
        {"error": {"message": "content_filter: no"}},
    ):
        assert stops.find_stop_in_error(body).value == "content_filter"
    assert stops.find_stop({"stop_reason": ["refusal", 3]}).value == "refusal", (
        "a list of reasons holds one"
    )
    assert stops.find_stop_in_error({"message": "maximum context length"}) is None


def test_no_recorded_answer_is_a_stop():
    for file in (paths.DATA / "labels").glob("paraguard_mini/*.csv"):
        answers = pd.read_csv(file)["response"]
        assert not any(map(stops.find_stop_in_text, answers)), file.name


def test_every_row_names_a_source():
    assert (
        ROWS["source"].str.startswith("https://").all()
        and not ROWS.duplicated(["field", "value"]).any()
    )


@pytest.mark.parametrize(
    "row", MESSAGES, ids=lambda row: f"{row['provider']} {row['value'][:30]}"
)
def test_words_of_an_errors_message(row):
    message = f"400: {row['value']} (request 7)"
    for body in ({"error": message}, {"error": {"message": message, "code": 400}}):
        found = stops.find_stop(body)
        assert found.value == row["reason"]
        assert stops.find_stop_in_reason(found.reason).value == found.value


@pytest.mark.parametrize(
    "error",
    [
        {"code": "rate_limit_exceeded", "message": "Rate limit reached"},
        {"code": "insufficient_quota", "message": "You exceeded your quota"},
        {"code": "invalid_api_key", "message": "Incorrect API key provided"},
        {"code": "Arrearage", "message": "Access denied, account is in arrears"},
        {"code": 1008, "message": "insufficient balance"},
        {"code": "1302", "message": "concurrency of this API is too high"},
        {"code": "permission-denied", "message": "Access to the endpoint is denied"},
        {"type": "overloaded_error", "message": "Overloaded"},
        {"code": "context_length_exceeded", "message": "maximum context length"},
        {"code": "429", "content_filter_results": {"hate": {"filtered": False}}},
        {"status": "RESOURCE_EXHAUSTED", "code": 429, "message": "Quota exceeded"},
    ],
)
def test_limits_and_accounts_are_no_stops(error):
    assert stops.find_stop({"error": error}) is None
    assert stops.find_stop_in_error(error, str(error)) is None


def test_a_fallback_is_the_first_models_refusal():
    text = {"type": "text", "text": "Use a rake."}
    trigger = {"type": "refusal", "category": None}
    fallback = {"type": "fallback", "trigger": trigger}
    assert stops.find_stop({"content": [fallback, text]}).value == "fallback"
    busy = {"type": "fallback", "trigger": {"type": "overloaded"}}
    assert stops.find_stop({"content": [busy, text]}) is None
