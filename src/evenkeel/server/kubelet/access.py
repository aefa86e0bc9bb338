"""Authentication and authorization of clients of the node's server. The cluster decides both.

A client shows a certificate of the cluster's client authority (its common name is the user, its organizations are the
groups), or a bearer token, which the API server checks (TokenReview). The API server also decides what a user may do
(SubjectAccessReview). Answers are kept for a while. No token is kept or logged."""

import asyncio
import hashlib
import secrets
import ssl
import time
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import Client, Json, path_of
from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import Refused, Request, Route, Routes

Answer = TypeVar("Answer")
Names = tuple[tuple[Any, ...], ...]

_TOKEN_REVIEWS = path_of("apis", "authentication.k8s.io", "v1", "tokenreviews")
_ACCESS_REVIEWS = path_of("apis", "authorization.k8s.io", "v1", "subjectaccessreviews")
_EVERY_USER = "system:authenticated"
# kubelet's times, but for tokens that are not valid: one that was just made may be valid a moment later.
_USER_SECONDS, _NO_USER_SECONDS = 120.0, 10.0
_ALLOWED_SECONDS, _DENIED_SECONDS = 300.0, 30.0
_REVIEW_SECONDS = 10.0
_MOST_REVIEWS = 8  # at a time, so that a crowd with tokens of its own making does not flood the API server
_MOST_KEPT = 1024
_LONGEST_TOKEN = 16 << 10
_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
# The first word of a path, and the node's subresources for it (kubelet's fine-grained ones first). The right to one of
# them is enough.
_SUBRESOURCES: Mapping[str, tuple[str, ...]] = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "statusz": ("statusz",),
    "flagz": ("configz",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
}
_REACHES_IN = ("exec", "attach", "portForward")


class User(NamedTuple):
    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Access:
    """Asks the API server, through the node's own client."""

    def __init__(self, client: Client, node_name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._node_name = node_name
        self._users: _Kept[User | None] = _Kept(clock)
        self._decisions: _Kept[bool] = _Kept(clock)
        self._reviews = asyncio.Semaphore(_MOST_REVIEWS)
        self._salt = secrets.token_bytes(32)

    async def close(self) -> None:
        await self._client.close()

    async def user_of(self, token: str) -> User | None:
        """None if the token is not valid. Raises Refused if the API server cannot be asked."""
        key = hashlib.blake2b(token.encode(), key=self._salt).digest()
        known = self._users.get(key)
        if known is not None:
            return known[0]
        answer = await self._asked(_TOKEN_REVIEWS, "authentication.k8s.io", "TokenReview", {"token": token})
        user = _reviewed(answer)
        self._users.put(key, user, _NO_USER_SECONDS if user is None else _USER_SECONDS)
        return user

    async def allows(self, user: User, verb: str, subresource: str) -> bool:
        """Raises Refused if the API server cannot be asked."""
        key = (user, verb, subresource)
        known = self._decisions.get(key)
        if known is not None:
            return known[0]
        spec = {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {name: list(values) for name, values in user.extra},
            "resourceAttributes": {
                "verb": verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": subresource,
                "name": self._node_name,
            },
        }
        answer = await self._asked(_ACCESS_REVIEWS, "authorization.k8s.io", "SubjectAccessReview", spec)
        status = answer.get("status")
        is_allowed = (
            isinstance(status, dict) and status.get("allowed") is True and status.get("denied") is not True
        )
        self._decisions.put(key, is_allowed, _ALLOWED_SECONDS if is_allowed else _DENIED_SECONDS)
        return is_allowed

    async def _asked(self, path: str, group: str, kind: str, spec: Json) -> Json:
        body = {"apiVersion": f"{group}/v1", "kind": kind, "spec": spec}
        try:
            async with self._reviews:
                return await self._client.call("POST", path, body, timeout_seconds=_REVIEW_SECONDS)
        except EvenkeelError as error:
            # The message is the API server's or ours about it; the token is in neither.
            raise Refused(503, f"the API server cannot be asked who may do this: {error.message}") from None


class NodeCheck:
    """The routes as one connection sees them: open to clients that the cluster allows. `is_passed` is set when a
    request was allowed: a valid token alone keeps no place, as every pod has one."""

    def __init__(self, routes: Routes, access: Access, clock: Callable[[], float] = time.time) -> None:
        self.is_passed = False
        self._certificate: Mapping[str, Any] = {}
        self._routes = routes
        self._access = access
        self._clock = clock

    def shown(self, certificate: Mapping[str, Any]) -> None:
        """Takes the client's certificate, which the handshake has verified. It is empty if the client has none."""
        self._certificate = certificate

    async def find(self, request: Request) -> Route:
        user = self._certified() or await self._of_token(request)
        if user is None:
            raise Refused(
                401,
                "Unauthorized",
                headers=(("WWW-Authenticate", "Bearer"), ("Connection", "close")),
            )
        verb, subresources = asked_for(request)
        for subresource in subresources:
            if await self._access.allows(user, verb, subresource):
                break
        else:
            what = ", ".join(f"nodes/{one}" for one in subresources)
            raise Refused(403, f'Forbidden: user "{user.name[:253]}" may not {verb or "do this with"} {what}')
        self.is_passed = True
        return await self._routes.find(request)

    def _certified(self) -> User | None:
        """The handshake has verified the certificate; since then it may have expired."""
        if not self._certificate:
            return None
        ends_at = ssl.cert_time_to_seconds(str(self._certificate["notAfter"]))
        return user_of_subject(self._certificate.get("subject", ())) if self._clock() < ends_at else None

    async def _of_token(self, request: Request) -> User | None:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        token = given.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN or not token.isascii():
            return None
        return await self._access.user_of(token)


def asked_for(request: Request) -> tuple[str, tuple[str, ...]]:
    """The verb and the subresources of the node. A session in a pod needs the verb `create`, even if the request is a
    GET. Otherwise every client that may read through the node could run commands as root."""
    first = request.path[0] if request.path else ""
    verb = "create" if first in _REACHES_IN else _VERBS.get(request.method, "")
    return verb, _SUBRESOURCES.get(first, ("proxy",))


def user_of_subject(subject: Names) -> User | None:
    """None if the certificate names no user."""
    pairs = [pair for names in subject for pair in names]
    names = [value for kind, value in pairs if kind == "commonName" and value]
    groups = tuple(value for kind, value in pairs if kind == "organizationName")
    return User(names[-1], groups=_with_every(groups)) if names else None


def _reviewed(answer: Json) -> User | None:
    status = answer.get("status")
    if not isinstance(status, dict) or status.get("authenticated") is not True:
        return None
    user = status.get("user")
    if not isinstance(user, dict) or not user.get("username"):
        return None
    extra = user.get("extra") or {}
    return User(
        str(user["username"]),
        str(user.get("uid") or ""),
        _with_every(tuple(map(str, user.get("groups") or ()))),
        tuple(sorted((str(name), tuple(map(str, values))) for name, values in extra.items())),
    )


def _with_every(groups: tuple[str, ...]) -> tuple[str, ...]:
    return groups if _EVERY_USER in groups else (*groups, _EVERY_USER)


class _Kept(Generic[Answer]):
    """A cache of answers. Each is kept for its time. If there are too many, the oldest is dropped first."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._answers: dict[Hashable, tuple[float, Answer]] = {}

    def get(self, key: Hashable) -> tuple[Answer] | None:
        known = self._answers.get(key)
        if known is None or known[0] <= self._clock():
            return None
        return (known[1],)

    def put(self, key: Hashable, answer: Answer, seconds: float) -> None:
        self._answers.pop(key, None)
        if len(self._answers) >= _MOST_KEPT:
            del self._answers[next(iter(self._answers))]
        self._answers[key] = (self._clock() + seconds, answer)
