"""A policy's folder behind an address: in this process until interrupted, or on a thread beside other work."""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from tuneloop.errors import UserError
from tuneloop.policies.card import PolicyCard
from tuneloop.policies.policy import Policy
from tuneloop.policies.presets import Recommended, preset_of
from tuneloop.rollout.contract import Engine
from tuneloop.serving.app import Served, make_app
from tuneloop.serving.chat import Defaults
from tuneloop.serving.scheduler import Scheduler

CAPACITY = 1024
"""Requests that may wait."""
MAX_TOKENS = 256
"""Tokens of a reply whose request names no limit."""
BACKLOG = 2048
"""Connections that may wait to be taken."""
STARTS_WITHIN = 20.0
"""Seconds."""


def require_key(host: str, key: str | None) -> None:
    """Raises UserError for an address that other machines reach, without a key."""
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if not local and not key:
        raise UserError(f"--host {host}: other machines reach this address; give --key, or serve on 127.0.0.1")


def defaults_of(card: PolicyCard, max_tokens: int = MAX_TOKENS) -> Defaults:
    """The sampling settings that the makers of the policy's preset recommend; without one the whole distribution."""
    preset = preset_of(card.source)
    return Defaults(preset.sampling if preset else Recommended(temperature=1.0, top_p=1.0, top_k=0), max_tokens)


@contextmanager
def served(
    policy: Policy,
    engine: Engine,
    *,
    name: str | None = None,
    key: str | None = None,
    capacity: int = CAPACITY,
    max_tokens: int = MAX_TOKENS,
) -> Iterator[Starlette]:
    """The application over a scheduler that is closed at the end. `name`: the model's id (None: the card's source)."""
    scheduler = Scheduler(engine, capacity)
    what = Served(policy, scheduler, name or policy.card.source, defaults_of(policy.card, max_tokens), key)
    try:
        yield make_app(what)
    finally:
        scheduler.close()


def run(app: Starlette, host: str, port: int) -> None:
    """Serve until Ctrl-C or SIGTERM. Raises UserError where the address is taken."""
    server, listening = _server(app, host, port)
    print(f"tuneloop: serving on http://{_address(listening)}/v1 (Ctrl-C ends)", flush=True)
    with listening:
        server.run(sockets=[listening])


@contextmanager
def running(app: Starlette, host: str = "127.0.0.1", port: int = 0) -> Iterator[str]:
    """Serve on a thread of this process; gives the base URL. Port 0: any that is free."""
    server, listening = _server(app, host, port)
    with listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, name="server", daemon=True)
        thread.start()
        until = time.monotonic() + STARTS_WITHIN
        while not server.started:
            if not thread.is_alive() or time.monotonic() > until:
                raise RuntimeError("the server did not start")
            time.sleep(0.01)
        try:
            yield f"http://{_address(listening)}/v1"
        finally:
            server.should_exit = True
            thread.join()


def _server(app: Starlette, host: str, port: int) -> tuple[uvicorn.Server, socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        # From here on clients wait instead of being refused, though nobody answers yet.
        listening.listen(BACKLOG)
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(f"--host {host} --port {port}: cannot be listened on ({error})") from None
    settings = uvicorn.Config(
        app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=5, backlog=BACKLOG
    )
    return uvicorn.Server(settings), listening


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def policy_folder(folder: str) -> Path:
    """Raises UserError where there is no such folder."""
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"--policy {folder}: there is no such folder; data/train/policy is the trained policy")
    return path
