"""List and watch: a complete list of objects, then each change, for as long as the agent runs.

The list comes as a stream where the API server can do that, so that it needs no more memory than its objects. A watch
that ends is opened again from the last version seen. If that version is too old, everything is listed again. A handler
gets whole lists and changes only, of objects with a name and a UID. An object is gone only if a complete list does not
have it, or a DELETED event says so.
"""

import asyncio
import logging
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import GONE, ApiError, Backoff, Client, Json, error_of, metadata_of

log = logging.getLogger(__name__)

ADDED, MODIFIED, DELETED, BOOKMARK, ERROR = "ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR"
_INITIAL_END = "k8s.io/initial-events-end"
_WATCH_SECONDS = (300, 600)
_SLACK_SECONDS = 60.0  # the server should end a watch before that; if not, we end it
_BACKOFF_SECONDS = (0.8, 30.0)
_QUIET_SECONDS = 120.0  # after that long without an error, the back-off begins anew
_PAGE = 500
_BAD_REQUEST, _INVALID = 400, 422


class WatchHandler(Protocol):
    def listed(self, objects: list[Json]) -> None:
        """All objects that there are."""
        ...

    def changed(self, type_: str, one: Json) -> None:
        """An object was added, modified or deleted."""
        ...


class Watch:
    """`selectors` are fieldSelector and labelSelector. `what` names the objects in messages. With the `version` of
    objects that the handler has already, only changes after it are asked for."""

    def __init__(
        self,
        client: Client,
        path: str,
        handler: WatchHandler,
        what: str,
        selectors: Mapping[str, str] | None = None,
        version: str = "",
    ) -> None:
        self._client = client
        self._path = path
        self._handler = handler
        self._what = what
        self._selectors = dict(selectors or {})
        self._version = version  # empty: everything must be listed
        self._streams_lists = True
        self._failure = ""
        self._has_heard = False  # since the watch was opened
        self.has_listed = asyncio.Event()

    async def run(self) -> None:
        """Runs until it is cancelled."""
        backoff = Backoff(*_BACKOFF_SECONDS)
        failed_at = time.monotonic()
        while True:
            self._has_heard = False
            failure: EvenkeelError | None = None
            try:
                await self._follow()
            except ApiError as error:
                if error.code == GONE and self._version:
                    self._version = ""
                else:
                    failure = error
            except EvenkeelError as error:
                failure = error
            if failure is None and self._has_heard:
                continue
            # A server that ends every watch at once, or calls every version too old, is not asked without a pause.
            now = time.monotonic()
            if now - failed_at > _QUIET_SECONDS:
                backoff.reset()
            failed_at = now
            if failure is not None:
                self._note(failure)
            asked = failure.retry_after_seconds if isinstance(failure, ApiError) else 0.0
            await asyncio.sleep(max(backoff.next_seconds(), asked))

    async def _follow(self) -> None:
        """One watch, with the list before it if one is needed."""
        if not self._version and not self._streams_lists:
            await self._list()
        parameters = {**self._selectors, "watch": "true", "allowWatchBookmarks": "true"}
        initial: dict[str, Json] | None = None
        if self._version:
            parameters["resourceVersion"] = self._version
        else:
            initial = {}
            parameters |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        seconds = random.randint(*_WATCH_SECONDS)  # noqa: S311 no secret depends on it
        parameters["timeoutSeconds"] = str(seconds)
        try:
            async for event in self._client.watch(self._path, parameters, seconds + _SLACK_SECONDS):
                initial = self._take(event, initial)
        except ApiError as error:
            if initial is not None and error.code in (_BAD_REQUEST, _INVALID):
                self._streams_lists = False  # an API server before 1.34, or with that feature off
                return
            raise

    def _take(self, event: Json, initial: dict[str, Json] | None) -> dict[str, Json] | None:
        """Takes an event. `initial` has the objects of a list that is not complete yet; None after that."""
        type_, one = event.get("type"), event.get("object")
        if not isinstance(one, dict):
            raise EvenkeelError(f"the watch of {self._what} sent an event without an object")
        if type_ == ERROR:
            raise error_of(one)
        metadata = metadata_of(one)
        if type_ != BOOKMARK:
            self._check(one)
        metadata.pop("managedFields", None)
        self._has_heard = True
        if initial is None:
            self._version = str(metadata.get("resourceVersion") or self._version)
            self._noted_well()
            if type_ in (ADDED, MODIFIED, DELETED):
                with self._listed_again():
                    self._handler.changed(str(type_), one)
            return None
        uid = str(metadata.get("uid"))
        if type_ in (ADDED, MODIFIED):
            initial[uid] = one
        elif type_ == DELETED:
            initial.pop(uid, None)
        elif type_ == BOOKMARK and (metadata.get("annotations") or {}).get(_INITIAL_END) == "true":
            self._version = str(metadata.get("resourceVersion") or "")
            self._complete(list(initial.values()))
            return None
        return initial

    async def _list(self) -> None:
        """A complete list, in pages. A page that comes too late begins the list anew: that is a 410."""
        objects: list[Json] = []
        parameters = {**self._selectors, "limit": str(_PAGE)}
        while True:
            page = await self._client.get(self._path, parameters)
            metadata = metadata_of(page)
            if "items" not in page:
                raise EvenkeelError(f"the API server's answer is no list of {self._what}")
            objects += page["items"] or []
            if not (token := metadata.get("continue")):
                break
            parameters["continue"] = str(token)
        for one in objects:
            self._check(one)
            one["metadata"].pop("managedFields", None)
        self._version = str(metadata.get("resourceVersion") or "")
        self._complete(objects)

    def _check(self, one: object) -> None:
        """Raises EvenkeelError if the object lacks fields that handlers rely on. It cannot be left out, because
        handlers would take it for deleted."""
        metadata = metadata_of(one) if isinstance(one, dict) else {}
        names = (metadata.get("name"), metadata.get("uid"))
        if not isinstance(one, dict) or not all(isinstance(name, str) and name for name in names):
            raise EvenkeelError(f"of {self._what}, the API server sent one without a name or a UID")
        if any(not isinstance(one.get(field) or {}, dict) for field in ("spec", "status")):
            raise EvenkeelError(f"of {self._what}, the API server sent one whose spec or status is no object")

    def _complete(self, objects: list[Json]) -> None:
        with self._listed_again():
            self._handler.listed(objects)
        self._noted_well()
        self.has_listed.set()

    @contextmanager
    def _listed_again(self) -> Iterator[None]:
        """Lists everything again if a handler could not take an object: no watch from a later version would report
        it."""
        try:
            yield
        except EvenkeelError:
            self._version = ""
            raise

    def _note(self, failure: EvenkeelError) -> None:
        """Logs each failure once."""
        if failure.message != self._failure:
            self._failure = failure.message
            log.warning("cluster: %s cannot be watched: %s", self._what, failure)

    def _noted_well(self) -> None:
        if self._failure:
            self._failure = ""
            log.info("cluster: %s are watched again", self._what)
