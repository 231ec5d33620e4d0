"""`make ui`: a Prefect server, a work pool, a worker and the deployments of prefect.yaml, with one command.

    python -m flows.ui --port 4200

Offline and on this machine alone. Everything is kept in .state/prefect; Ctrl-C, SIGTERM or closing the
terminal ends all of it, running flows included. The page with pictures and reports of earlier runs is
served beside it, on the next port.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from flows.pipeline import GUARD, GUARD_SECONDS
from flows.shown import REPORTS, REPORTS_URL
from tuneloop.errors import UserError

HOST = "127.0.0.1"
STATE = Path(".state/prefect")
POOL = "tuneloop"
START_SECONDS = 120.0
ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SHORT_LIFE_SECONDS = 30.0
"""A worker that ends by itself sooner than this will not do better the next time."""


class _Stop(BaseException):
    """A signal asked for the end."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make ui", description="Prefect server, worker and deployments of this project"
    )
    parser.add_argument("--port", type=int, default=4200, help="of the UI; pictures are served on the next one")
    port = parser.parse_args(arguments).port
    for number in ENDINGS:
        signal.signal(number, _stop)
    try:
        serve(Path.cwd(), port)
    except UserError as error:
        _say(f"error: {error}")
        return 2
    except _Stop:
        _say("stopped")
    return 0


def serve(workspace: Path, port: int) -> None:
    """Start everything, print the address, and stay until a signal comes or the server ends.

    Raises UserError for a port in use, and for a server, worker or deployment that does not come up.
    """
    for wanted in (port, port + 1):
        _check_free(wanted)
    (workspace / STATE).mkdir(parents=True, exist_ok=True)
    environment = variables(workspace, port)
    with _reports(workspace, port + 1), _guarded("server", _server(port), workspace, environment) as server:
        _say(f"starting the server (log: {STATE}/server.log)")
        _wait_until_healthy(server, port, workspace)
        _say("registering the deployments of prefect.yaml")
        _finish("deploy", "flows.deploy", workspace, environment)
        _keep_worker(server, workspace, environment, port)


def variables(workspace: Path, port: int) -> dict[str, str]:
    """The environment of server, worker and flows: this project's state, no telemetry, this machine only."""
    return dict(os.environ) | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PREFECT_HOME": str(workspace / STATE),
        "PREFECT_API_URL": f"http://{HOST}:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
        "DO_NOT_TRACK": "1",
        # One machine, one user: what is asked for in the UI happens within seconds.
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "7",
        "PREFECT_WORKER_QUERY_SECONDS": "2",
        "PREFECT_WORKER_CANCELLATION_POLL_SECONDS": "2",
        "PREFECT_WORKER_PREFETCH_SECONDS": "1",
        "PYTHONUNBUFFERED": "1",
        "TUNELOOP_WORKSPACE": str(workspace),
        REPORTS_URL: f"http://{HOST}:{port + 1}",
    }


def _keep_worker(server: subprocess.Popen[bytes], workspace: Path, environment: Mapping[str, str], port: int) -> None:
    """Keep one worker up; a worker that is ended from outside is replaced."""
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL, "--type", "process"]
    while True:
        started = time.monotonic()
        with _settled(workspace, environment), _guarded("worker", command, workspace, environment) as worker:
            _say(f"ready: http://{HOST}:{port}   (Ctrl-C stops everything)")
            while worker.poll() is None:
                if server.poll() is not None:
                    raise UserError(f"the server has ended; see {STATE}/server.log")
                time.sleep(0.2)
        if time.monotonic() - started < SHORT_LIFE_SECONDS:
            raise UserError(f"the worker has ended by itself; see {STATE}/worker.log")
        _say("the worker was ended; starting another")


@contextmanager
def _settled(workspace: Path, environment: Mapping[str, str]) -> Iterator[None]:
    """Once the worker is gone, so are its runs: the server is told."""
    try:
        yield
    finally:
        with _undisturbed():
            try:
                _finish("settle", "flows.settle", workspace, environment)
            except UserError as error:
                _say(f"the server was not told that its runs have ended; the next `make ui` tells it ({error})")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """A second signal does not cut the ending short; the guards would finish it, but out of sight."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in ENDINGS}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _server(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", HOST, "--port", str(port)]


@contextmanager
def _guarded(
    name: str, command: Sequence[str], workspace: Path, environment: Mapping[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """The command with its output in .state/prefect/NAME.log; it ends with the block, or with this process."""
    with open(workspace / STATE / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-I", str(GUARD), *command],
            cwd=workspace,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with _undisturbed():
            if process.stdin is not None:
                with suppress(BrokenPipeError):
                    process.stdin.close()
            process.wait(timeout=GUARD_SECONDS)


@contextmanager
def _reports(workspace: Path, port: int) -> Iterator[None]:
    """Serve the kept reports and pictures to this machine."""
    (workspace / REPORTS).mkdir(parents=True, exist_ok=True)
    handler = functools.partial(_Quiet, directory=str(workspace / REPORTS))
    with http.server.ThreadingHTTPServer((HOST, port), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def _finish(name: str, module: str, workspace: Path, environment: Mapping[str, str]) -> None:
    """Run a module of this package to its end. Raises UserError with the end of what it said if it fails."""
    with _guarded(name, [sys.executable, "-m", module], workspace, environment) as process:
        process.wait()
    if process.returncode:
        raise UserError(f"`python -m {module}` failed; {_end_of_log(workspace, name)}")


def _end_of_log(workspace: Path, name: str) -> str:
    path = STATE / f"{name}.log"
    lines = (workspace / path).read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
    return "\n".join([f"the end of {path}:", *lines])


def _wait_until_healthy(server: subprocess.Popen[bytes], port: int, workspace: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and server.poll() is None:
        with (
            suppress(urllib.error.URLError, OSError),
            urllib.request.urlopen(f"http://{HOST}:{port}/api/health", timeout=2),
        ):
            return
        time.sleep(0.1)
    raise UserError(f"the server did not come up; {_end_of_log(workspace, 'server')}")


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"port {port} cannot be used ({error}); another `make ui` may be running. Choose one: make ui PORT=4300"
            ) from None


def _stop(number: int, frame: object) -> None:
    raise _Stop


def _say(text: str) -> None:
    # After the terminal is gone nobody listens, and that is no error.
    with suppress(OSError):
        print(f"[ui] {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
