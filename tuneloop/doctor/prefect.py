"""Prefect: installed, with a place for its state and a free port. `make run` needs none of it."""

from __future__ import annotations

import os
import socket
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from tuneloop.doctor.finding import Finding, fail, ok, warn
from tuneloop.doctor.pipeline import writable
from tuneloop.doctor.processes import listener, named
from tuneloop.doctor.versions import installed

PORT = 4200
HOST = "127.0.0.1"


def check_prefect(folder: Path, port: int = PORT) -> list[Finding]:
    """The version, the database's folder and the port of `make ui`; one FAIL where Prefect is not installed."""
    version = installed("prefect")
    if version is None:
        return [fail("prefect", "is not installed", "make venv")]
    return [ok("prefect", version), check_home(folder), check_port(port)]


def check_home(folder: Path) -> Finding:
    """Where `make ui` keeps its database: PREFECT_HOME, or .state/prefect."""
    home = folder / os.environ.get("PREFECT_HOME", ".state/prefect")
    if not writable(home):
        return fail(
            "prefect home", f"{home} cannot be written", "change its owner, or set PREFECT_HOME to another folder"
        )
    return ok("prefect home", str(home))


def check_port(port: int) -> Finding:
    """Port of the UI; the next one serves pictures and reports."""
    name = "prefect port"
    taken = [wanted for wanted in (port, port + 1) if not _free(wanted)]
    if not taken:
        return ok(name, f"{port} and {port + 1} are free")
    pid = listener(taken[0])
    who = "a process of another user" if pid is None else named(pid)
    if taken[0] == port and _is_prefect(port):
        return ok(name, f"a Prefect server answers on {port}: {who}")
    return warn(name, f"{taken[0]} belongs to {who}", f"make ui PORT={port + 100}")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _is_prefect(port: int) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        suppress(urllib.error.URLError, OSError, ValueError),
        direct.open(f"http://{HOST}:{port}/api/health", timeout=1) as page,
    ):
        return page.read(16).strip() == b"true"
    return False
