"""A port of loopback for a program that gets its number and listens there later, perhaps more than once."""

import socket


class ReservedPort:
    """The port is bound, and nothing listens there. So the kernel gives it neither to a program that asks for any free
    port nor to an outgoing connection. A server that asks for this port can listen there, if it sets SO_REUSEADDR, as
    servers do. A port that is only looked up and released may be taken by another test a moment later."""

    def __init__(self) -> None:
        self._bound = socket.socket()
        self._bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._bound.bind(("127.0.0.1", 0))
        self.number: int = self._bound.getsockname()[1]

    def close(self) -> None:
        self._bound.close()
