"""Query a stub through an instrumented client, and export its spans in every way.

`python phoenix_spans.py OUT`, in an environment with arize-phoenix, openai,
openinference-instrumentation-openai and opentelemetry-exporter-otlp-json-file, for
`test_formats.py`.
"""

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import openai
from openinference.instrumentation import TraceConfig, using_metadata
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.exporter.otlp.json.file import FileSpanExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from phoenix.client import Client

PROJECT = "default"
N_SPANS = 14  # seven of the client, each inside one of our own


class Stub(BaseHTTPRequestHandler):
    """A server that refuses to kill, and whose filter stops what is about code."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = str(asked["messages"][-1]["content"])
        if "code" in text:
            stop = {"message": "The content_filter stopped it.", "type": "x"}
            self.send(400, "application/json", json.dumps({"error": stop}))
            return
        said = "Sure. First look around, then begin."
        if "kill" in text:
            said = "I'm sorry, but I can't help with that."
        about = {"id": "x", "model": asked["model"], "created": 1}
        if asked.get("stream"):
            about["object"] = "chat.completion.chunk"
            events = [
                {**about, "choices": [{"index": 0, "delta": {"content": f"{word} "}}]}
                for word in said.split()
            ]
            events.append(
                {
                    **about,
                    "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
                }
            )
            lines = [*map(json.dumps, events), "[DONE]"]
            dump = "".join(f"data: {one}\n\n" for one in lines)
            self.send(200, "text/event-stream", dump)
            return
        choices = [
            {
                "index": place,
                "message": {"role": "assistant", "content": said},
                "finish_reason": "stop",
            }
            for place in range(asked.get("n") or 1)
        ]
        body = {**about, "object": "chat.completion", "choices": choices}
        self.send(200, "application/json", json.dumps(body))

    def send(self, status, kind, text):
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Write nothing."""


def query(base_url, provider):
    """Query three requests in two wordings each, and one of them twice at once."""
    client = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    tracer = provider.get_tracer("own")
    cases = itertools.product(("weeds", "ants", "code"), ("kill", "stop"))
    for thing, verb, n in [*((*case, 1) for case in cases), ("rust", "kill", 2)]:
        text = f"How do I {verb} {thing}?"
        messages = [
            {"role": "system", "content": "Be kind."},
            {"role": "user", "content": "Hello"},
            {"role": "assistant", "content": "Hello"},
            {"role": "user", "content": text},
        ]
        is_streamed = verb == "stop"
        if is_streamed:
            messages[-1]["content"] = [{"type": "text", "text": text}]
        about = {"openinference.span.kind": "CHAIN", "input.value": text}
        with (
            contextlib.suppress(openai.APIError),
            tracer.start_as_current_span("own", attributes=about),
            using_metadata({"cluster": thing}),
        ):
            said = client.chat.completions.create(
                model="m", messages=messages, stream=is_streamed, n=n
            )
            if is_streamed:
                list(said)


def trace(base_url, exporters, config=None):
    """Query with spans that go to these exporters."""
    provider = TracerProvider()
    for exporter in exporters:
        provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor = OpenAIInstrumentor()
    instrumentor.instrument(tracer_provider=provider, config=config or TraceConfig())
    query(base_url, provider)
    instrumentor.uninstrument()
    provider.shutdown()


@contextlib.contextmanager
def serve_phoenix(folder):
    """Yield the address of a server of Phoenix."""
    ports = []
    for _ in range(2):
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            ports.append(str(opened.getsockname()[1]))
    where = os.environ | {
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": ports[0],
        "PHOENIX_GRPC_PORT": ports[1],
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    command = [sys.executable, "-m", "phoenix.server.main", "serve"]
    url = f"http://127.0.0.1:{ports[0]}"
    with subprocess.Popen(command, env=where, stdout=subprocess.DEVNULL) as server:
        try:
            wait(lambda: httpx.get(f"{url}/healthz").is_success)
            yield url
        finally:
            server.terminate()


def wait(is_ready):
    """Return when something is ready; raise an error after four minutes."""
    for _ in range(480):
        with contextlib.suppress(httpx.HTTPError):
            if is_ready():
                return
        time.sleep(0.5)
    raise TimeoutError


def main(out):
    stub = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    base_url = f"http://127.0.0.1:{stub.server_port}/v1"
    for name in ("inputs", "outputs"):
        config = TraceConfig(**{f"hide_{name}": True})
        exporter = FileSpanExporter(str(out / f"hidden_{name}.jsonl"))
        trace(base_url, [exporter], config)
    with serve_phoenix(out / "server") as url, (out / "console.json").open("w") as file:
        exporters = [
            ConsoleSpanExporter(out=file),
            FileSpanExporter(str(out / "otlp.jsonl")),
            OTLPSpanExporter(f"{url}/v1/traces"),
        ]
        trace(base_url, exporters)
        spans = Client(base_url=url).spans
        wait(lambda: len(spans.get_spans(project_identifier=PROJECT)) == N_SPANS)
        frame = spans.get_spans_dataframe(project_identifier=PROJECT)
        frame.to_csv(out / "frame.csv")
        frame.to_parquet(out / "frame.parquet")
        frame.to_json(out / "frame.jsonl", orient="records", lines=True)
        listed = spans.get_spans(project_identifier=PROJECT)
        (out / "spans.json").write_text(json.dumps(listed))
        for name in ("spans", "spans/otlpv1"):
            body = httpx.get(f"{url}/v1/projects/{PROJECT}/{name}").text
            (out / f"rest_{Path(name).name}.json").write_text(body)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
