"""A port of loopback for a program that is told its number and listens there later, perhaps more than once."""

import socket


class ReservedPort:
    """It is bound and does not listen. So the kernel gives it to nobody who asks for any port, nor to a connection of
    somebody else; and who asks for just this one may listen there, if it sets SO_REUSEADDR, as servers do. A port that
    is only looked up and let go may be another's a moment later: tests of many parts run beside each other."""

    def __init__(self) -> None:
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.number: int = self._bound.getsockname()[1]

    def close(self) -> None:
        self._bound.close()
