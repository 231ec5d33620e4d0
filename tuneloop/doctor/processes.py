"""Who a process is, and whose a port is, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
_LISTENING = "0A"


def named(pid: int) -> str:
    """`process 12 (python -m …)`; without the command where the system does not tell it."""
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        words = ""
    return f"process {pid} ({words[:80]})" if words else f"process {pid}"


def listener(port: int) -> int | None:
    """The process that listens on a TCP port of this machine; None if there is none or it belongs to another user."""
    sockets = {f"socket:[{inode}]" for table in ("tcp", "tcp6") for inode in _inodes(PROC / "net" / table, port)}
    if not sockets:
        return None
    for process in PROC.iterdir():
        if process.name.isdigit() and sockets & _open_files(process):
            return int(process.name)
    return None


def _inodes(table: Path, port: int) -> list[str]:
    try:
        rows = [line.split() for line in table.read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return []
    # Columns as in proc(5): local address with the port in hex, state, and the socket's inode.
    return [row[9] for row in rows if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port]


def _open_files(process: Path) -> set[str]:
    found = set()
    try:
        for entry in (process / "fd").iterdir():
            try:
                found.add(os.readlink(entry))
            except OSError:
                continue
    except OSError:  # gone, or another user's
        pass
    return found
