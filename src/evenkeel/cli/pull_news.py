"""The pull of an image while `evenkeel run` waits for it: its events, and on a terminal the bytes received so far."""

import sys
import threading
from typing import Any

from evenkeel.cli.client import AgentRefused, Client, NoAgent
from evenkeel.cli.output import printable
from evenkeel.policy.amounts import bytes_text
from evenkeel.runtime.images.references import InvalidReference, parse

_SHOWN = ("Pulling", "Failed", "BackOff")
_LAST = ("Pulled", "Started")
_LOOK_SECONDS = 0.5
_CLEAR_LINE = "\r\x1b[K"
Json = dict[str, Any]


class PullNews:
    """Writes to standard error, in threads of its own, until the image is there or `stop` is called."""

    def __init__(self, client: Client, pod: Json, image: str) -> None:
        self._client = client
        self._pod = pod
        self._image = image
        self._is_over = threading.Event()
        self._has_line = False

    def start(self) -> None:
        threading.Thread(target=self._events, daemon=True).start()
        if sys.stderr.isatty():
            threading.Thread(target=self._bytes, daemon=True).start()

    def stop(self) -> None:
        self._is_over.set()

    def _events(self) -> None:
        metadata = self._pod["metadata"]
        key = f"{metadata.get('namespace', 'default')}/{metadata['name']}"
        try:
            for event in self._client.lines("/events", pod=key, follow="1"):
                if event.get("uid", metadata["uid"]) != metadata["uid"]:
                    continue  # of an earlier pod of that name
                if self._is_over.is_set() or event["reason"] in _LAST:
                    break
                if event["reason"] in _SHOWN:
                    self._print(printable(f"evenkeel: {event['message']}") + "\n")
        except (NoAgent, AgentRefused):
            pass
        self._is_over.set()
        self._print("")

    def _bytes(self) -> None:
        try:
            wanted = str(parse(self._image))
        except InvalidReference:
            return
        while not self._is_over.wait(_LOOK_SECONDS):
            try:
                pulls = self._client.get("/images")["pulls"]
            except (NoAgent, AgentRefused):
                return
            for pull in pulls:
                if pull["image"] == wanted and not self._is_over.is_set():
                    text = f"evenkeel: {bytes_text(pull['receivedBytes'])} in {pull['seconds']:.0f} s"
                    sys.stderr.write(f"{_CLEAR_LINE}{text}")
                    sys.stderr.flush()
                    self._has_line = True

    def _print(self, text: str) -> None:
        sys.stderr.write(f"{_CLEAR_LINE if self._has_line else ''}{text}")
        sys.stderr.flush()
        self._has_line = False
