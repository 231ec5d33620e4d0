"""Prefect's folder and port."""

from __future__ import annotations

import http.server
import os
import socket
import threading

import pytest

from tuneloop.doctor import prefect
from tuneloop.doctor.processes import listener, named


@pytest.fixture
def port():
    """A free port whose successor is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind((prefect.HOST, 0))
            number = first.getsockname()[1]
            try:
                second.bind((prefect.HOST, number + 1))
            except OSError:
                continue
        return number


class Health(http.server.BaseHTTPRequestHandler):
    """Answers as a Prefect server does: `true` under /api/health."""

    def do_GET(self):
        self.send_response(200 if self.path == "/api/health" else 404)
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, format, *args):
        pass


def test_a_free_port_is_well(port):
    finding = prefect.check_port(port)
    assert (finding.level, finding.found) == ("OK", f"{port} and {port + 1} are free")
    assert listener(port) is None


@pytest.mark.parametrize("offset", [0, 1])
def test_a_taken_port_is_a_warning_that_names_whose_it_is(port, offset):
    with socket.socket() as other:
        other.bind((prefect.HOST, port + offset))
        other.listen()
        finding = prefect.check_port(port)
    assert finding.level == "WARN"
    assert f"{port + offset} belongs to {named(os.getpid())}" == finding.found
    assert f"make ui PORT={port + 100}" in finding.next_step


def test_a_prefect_server_on_the_port_is_well(port):
    with http.server.HTTPServer((prefect.HOST, port), Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        finding = prefect.check_port(port)
        server.shutdown()
    assert finding.level == "OK"
    assert "a Prefect server answers" in finding.found


def test_prefects_folder_is_the_projects_or_the_one_asked_for_and_must_be_writable(tmp_path, monkeypatch):
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    assert prefect.check_home(tmp_path).found == str(tmp_path / ".state" / "prefect")
    (tmp_path / "file").touch()
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "file" / "home"))
    finding = prefect.check_home(tmp_path)
    assert finding.level == "FAIL"
    assert "PREFECT_HOME" in finding.next_step
