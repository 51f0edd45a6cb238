"""A server for tests that ends when it is told to."""

import pytest_httpserver

POLL = 0.01
"""Seconds between two looks whether to end; the usual half a second is waited for in
every test.
"""


class HTTPServer(pytest_httpserver.HTTPServer):
    """The server of pytest_httpserver, which looks more often whether to end."""

    def thread_target(self) -> None:
        self.server.serve_forever(poll_interval=POLL)
