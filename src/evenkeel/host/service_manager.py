"""What systemd is told by a service of itself (`Type=notify`, `WatchdogSec=`): sd_notify(3), without its library.

Outside of systemd there is nobody to tell, and nothing is done.
"""

import asyncio
import os
import socket

_PATIENCE_SECONDS = 5.0  # with one that is slow to listen: the agent has other work

_SOCKET, _WATCHDOG_US, _WATCHDOG_PID = "NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"


def notify(state: str, *, patience_seconds: float = _PATIENCE_SECONDS) -> bool:
    """`READY=1`, `STOPPING=1` and the like; whether somebody was told. The kernel keeps only a few words for one who
    does not listen, and the next one waits no longer than that for its place."""
    address = os.environ.get(_SOCKET, "")
    if not address.startswith(("/", "@")):
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as speaker:
            speaker.settimeout(patience_seconds)
            speaker.connect(name)
            speaker.send(state.encode())
    except OSError:
        return False
    return True


def watchdog_seconds() -> float | None:
    """How soon systemd takes us for dead when it hears nothing; None if it does not listen."""
    asked_of = os.environ.get(_WATCHDOG_PID, "")
    text = os.environ.get(_WATCHDOG_US, "")
    if not text.isdecimal() or int(text) == 0 or (asked_of and asked_of != str(os.getpid())):
        return None
    return int(text) / 1e6


async def feed_watchdog() -> None:
    """Tells for as long as the loop that awaits it turns; until cancelled."""
    seconds = watchdog_seconds()
    while seconds is not None:
        notify("WATCHDOG=1", patience_seconds=0)  # where there is no place, others of the same wait there
        await asyncio.sleep(seconds / 3)
