"""Holders of leases: the name by which a process holds them, and whether the process of such a name is gone."""

from __future__ import annotations

import os
import socket


def holder_name(token: str) -> str:
    """What leases say of who holds them: this machine, this process, and what tells its parts from each other."""
    return f"{socket.gethostname()}:{os.getpid()}:{token}"


def is_dead(holder: str) -> bool:
    """Whether a holder is a process of this machine that is no more."""
    host, _, rest = holder.partition(":")
    process, _, _ = rest.partition(":")
    if host != socket.gethostname() or not process.isdigit() or int(process) == os.getpid():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
