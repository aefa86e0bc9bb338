"""The streams of a session on one WebSocket, as Kubernetes has them: `v5.channel.k8s.io`. Pure.

The first byte of a message is its channel. Version 5 adds a message that closes a channel, which ends a command's
standard input; version 4 cannot do that. The last message is the end of the session, a Kubernetes `Status`.
"""

import json

from evenkeel.runtime.sessions import SessionEnd

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PROTOCOLS = (V5, V4)
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
# The channels of port-forward: bytes in both directions, and errors. The first message of each has the port.
DATA, DATA_ERROR = 0, 1

_NON_ZERO = "NonZeroExitCode"
_EXIT_CODE = "ExitCode"
_MOST_SIZE = 0xFFFF


def status_of(end: SessionEnd) -> bytes:
    if not end.exit_code and not end.problem:
        return json.dumps({"metadata": {}, "status": "Success"}).encode()
    message = end.problem or f"command terminated with exit code {end.exit_code}"
    causes = [{"reason": _EXIT_CODE, "message": str(end.exit_code or 1)}]
    return json.dumps(
        {
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": "InternalError" if end.problem and end.exit_code <= 1 else _NON_ZERO,
            "details": {"causes": causes, **({"hint": end.hint} if end.hint else {})},
        }
    ).encode()


def end_of(status: bytes) -> SessionEnd:
    """Reads the result of `status_of`, or that of another server."""
    try:
        value = json.loads(status)
        if value.get("status") == "Success":
            return SessionEnd()
        details = value.get("details") or {}
        codes = [
            cause["message"] for cause in details.get("causes") or () if cause.get("reason") == _EXIT_CODE
        ]
        return SessionEnd(
            int(codes[0]) if codes else 1, str(value.get("message", "")), str(details.get("hint", ""))
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return SessionEnd(1, "the agent's last message cannot be read")


def size_message(columns: int, rows: int) -> bytes:
    return json.dumps({"Width": columns, "Height": rows}).encode()


def size_of(data: bytes) -> tuple[int, int] | None:
    """The columns and rows of a terminal; None if it is no size."""
    try:
        value = json.loads(data)
        columns, rows = value["Width"], value["Height"]
    except (ValueError, TypeError, KeyError):
        return None
    is_size = all(type(number) is int and 0 < number <= _MOST_SIZE for number in (columns, rows))
    return (columns, rows) if is_size else None
