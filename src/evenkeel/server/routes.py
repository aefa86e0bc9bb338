"""The routes of the HTTP interface: each with its handler and its OpenAPI description.

The same table finds the handler of a request and describes the interface, so the description is always true.
"""

import asyncio
from collections.abc import Iterator

from evenkeel import __version__
from evenkeel.api.data_objects import DATA_KINDS, SECRET
from evenkeel.api.stored_objects import OBJECT_KINDS
from evenkeel.server.channels import PROTOCOLS
from evenkeel.server.handlers import FOLLOW, MOST_EVENTS, PLAIN_TEXT, SOURCES, Handlers
from evenkeel.server.http import EVENT_STREAM, LINES, Answer, Refused, Request, Route, to_json
from evenkeel.server.object_handlers import ObjectHandlers, WorkloadHandlers
from evenkeel.server.openapi import Entry, Parameter, description
from evenkeel.server.schema_types import Schema
from evenkeel.server.session_handlers import FLAGS, SessionHandlers

_SECONDS: Schema = {"type": "number", "minimum": 0, "maximum": 2**31}
_FLAG: Schema = {"type": "string", "enum": list(FLAGS)}
_COUNT: Schema = {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS}


class RouteTable:
    def __init__(
        self,
        handlers: Handlers,
        sessions: SessionHandlers,
        workloads: WorkloadHandlers,
        objects: ObjectHandlers,
    ) -> None:
        own = Entry("GET", ("openapi.json",), Route(self._openapi), "This description.", "Description")
        kept = (*workload_entries(workloads), *object_entries(objects))
        self._entries = (*_entries(handlers), *kept, *_session_entries(sessions), own)

    async def find(self, request: Request) -> Route:
        here = [entry for entry in self._entries if entry.matches(request.path)]
        if not here:
            known = ", ".join(sorted({"/" + entry.path[0] for entry in self._entries}))
            raise Refused(
                404, f"there is nothing at /{'/'.join(request.path)[:200]}", hint=f"there are {known}"
            )
        for entry in here:
            if entry.method == request.method:
                _check_parameters(request, entry)
                return entry.route
        allow = ", ".join(entry.method for entry in here)
        raise Refused(405, f"{request.method} is not allowed here", hint=f"there is {allow}", allow=allow)

    async def _openapi(self, request: Request) -> Answer:  # noqa: ARG002
        # A thread makes it, because that takes some 20 ms.
        return Answer(await asyncio.to_thread(lambda: to_json(description(self._entries, __version__))))


def _check_parameters(request: Request, entry: Entry) -> None:
    known = [one.name for one in entry.parameters]
    for name in request.parameters:
        if name not in known:
            allowed = ", ".join(known) or "none"
            raise Refused(400, f'there is no parameter "{name[:40]}" here', hint=f"there are: {allowed}")


def workload_entries(here: WorkloadHandlers) -> Iterator[Entry]:
    """Kubernetes' addresses of the kinds that make pods."""
    grace = Parameter("gracePeriodSeconds", "seconds until the processes of its pods are killed", _SECONDS)
    for root, word in ((("apis", "{group}", "v1"), "{workloads}"), (("api", "v1"), "replicationcontrollers")):
        every, some = (*root, word), (*root, "namespaces", "{namespace}", word)
        one = (*some, "{name}")
        yield Entry(
            "GET", every, Route(here.listed), "All workloads of a kind.", "WorkloadList", refusals=(404,)
        )
        yield Entry("GET", some, Route(here.listed), "Those of a namespace.", "WorkloadList", refusals=(404,))
        yield Entry("GET", one, Route(here.one), "A workload.", "Workload", refusals=(404,))
        yield Entry(
            "DELETE",
            one,
            Route(here.delete),
            "Deletes a workload and its pods.",
            "DeletedObject",
            (grace,),
            status=202,
            refusals=(404, 409),
        )
        scale = (*one, "scale")
        yield Entry("GET", scale, Route(here.scale), "Its number of replicas.", "Scale", refusals=(404, 409))
        yield Entry(
            "PUT",
            scale,
            Route(here.set_scale, takes_body=True),
            "Changes its number of replicas.",
            "Scale",
            refusals=(404, 409, 413, 422),
            takes="Scale",
        )


def _entries(here: Handlers) -> tuple[Entry, ...]:
    pod = ("{namespace}", "{name}")
    return (
        Entry("GET", ("healthz",), Route(here.healthz), "Whether the agent answers.", content=(PLAIN_TEXT,)),
        Entry(
            "GET",
            ("readyz",),
            Route(here.readyz),
            "Whether the agent does its work; otherwise the reason.",
            content=(PLAIN_TEXT,),
            refusals=(500,),
        ),
        Entry(
            "GET",
            ("pods",),
            Route(here.pods),
            "All pods, or those of a namespace.",
            "PodList",
            (Parameter("namespace", "only pods of this namespace"),),
        ),
        Entry(
            "POST",
            ("pods",),
            Route(here.apply, takes_body=True),
            "Takes pods and workloads to run, ConfigMaps, Secrets, Services and claims.",
            "Applied",
            (
                Parameter(
                    "source", "the command that hands them in", {"type": "string", "enum": list(SOURCES)}
                ),
            ),
            refusals=(409, 413, 422),
        ),
        Entry("GET", ("pods", *pod), Route(here.pod), "A pod.", "Pod", refusals=(404,)),
        Entry(
            "DELETE",
            ("pods", *pod),
            Route(here.delete),
            "Deletes a pod.",
            "Deleted",
            (Parameter("gracePeriodSeconds", "seconds until its processes are killed", _SECONDS),),
            status=202,
            refusals=(404, 409),
        ),
        Entry(
            "GET",
            ("watch",),
            Route(here.watch),
            "Changes of pods as they happen.",
            parameters=(
                Parameter("pod", "only this pod: namespace/name"),
                Parameter("namespace", "only pods of this namespace"),
            ),
            content=(LINES,),
        ),
        Entry(
            "GET",
            ("events",),
            Route(here.events),
            "Events; with follow also those to come.",
            parameters=(
                Parameter("pod", "only events of this pod: namespace/name"),
                Parameter("follow", "send events as they happen", {"type": "string", "enum": list(FOLLOW)}),
                Parameter("most", "at most this many, the latest", _COUNT),
            ),
            content=(LINES, EVENT_STREAM),
        ),
        Entry("GET", ("node",), Route(here.node), "The node.", "Node"),
        Entry("GET", ("usage",), Route(here.usage), "Counters of pods and containers.", "Usage"),
        Entry(
            "GET", ("images",), Route(here.images), "Images on this machine, and pulls under way.", "Images"
        ),
        Entry("GET", ("view",), Route(here.view), "Everything that the page shows of the node.", "View"),
        Entry(
            "GET",
            ("view", "watch"),
            Route(here.view_watch),
            "The view, and its changes as they happen.",
            content=(EVENT_STREAM,),
        ),
        Entry(
            "GET",
            ("explain", *pod),
            Route(here.explain),
            "Every kernel setting of a pod: asked for, applied, and why.",
            "Explanation",
            refusals=(404,),
        ),
        Entry(
            "GET",
            ("why", *pod),
            Route(here.why),
            "The history of a pod.",
            "Story",
            refusals=(404,),
        ),
        Entry(
            "GET",
            ("stats", "summary"),
            Route(here.summary),
            "Kubernetes' Summary API.",
            "Summary",
            (Parameter("only_cpu_and_memory", "leave everything else out", {"type": "boolean"}),),
        ),
        *(
            Entry(
                "GET",
                ("metrics", *which),
                Route(here.metrics),
                f"{what}, for Prometheus.",
                content=(PLAIN_TEXT,),
            )
            for which, what in (
                ((), "Metrics of the node and the agent"),
                (("resource",), "Metrics that metrics-server reads"),
                (("cadvisor",), "Metrics of each cgroup, with cAdvisor's names"),
            )
        ),
        Entry(
            "GET",
            ("advice",),
            Route(here.advice),
            "Requests and reservations that fit the use.",
            "Advice",
        ),
        Entry("GET", ("snapshot",), Route(here.snapshot), "The input of an eviction decision.", "Snapshot"),
        Entry("GET", ("configz",), Route(here.configz), "The configuration.", "Configuration"),
        Entry("GET", ("",), Route(here.page), "The dashboard page.", content=("text/html",)),
        Entry(
            "GET",
            ("page", "{file}"),
            Route(here.page),
            "A file of the page.",
            content=("text/css", "text/html", "text/javascript", "image/svg+xml"),
            refusals=(404,),
        ),
    )


def object_entries(here: ObjectHandlers) -> Iterator[Entry]:
    """Kubernetes' addresses of ConfigMaps, Secrets, Services and claims, and the shorter ones of the first two. Secrets
    are shown at the Unix socket only."""
    for kind, known in OBJECT_KINDS.items():
        root = ("api", "v1")
        yield from _object_entries(
            here, kind, (*root, known.plural), (*root, "namespaces", "{namespace}", known.plural)
        )
        if kind in DATA_KINDS:
            yield from _object_entries(here, kind, (known.plural,), (known.plural, "{namespace}"))


def _object_entries(
    here: ObjectHandlers, kind: str, every: tuple[str, ...], some: tuple[str, ...]
) -> Iterator[Entry]:
    one = (*some, "{name}")
    refused = (403,) if kind == SECRET else ()
    namespace = Parameter("namespace", f"only {kind}s of this namespace")
    yield Entry(
        "GET",
        every,
        Route(here.listed),
        f"All {kind}s, or those of a namespace.",
        f"{kind}List",
        (namespace,),
        refusals=refused,
    )
    if len(some) > 2:
        yield Entry(
            "GET", some, Route(here.listed), f"The {kind}s of a namespace.", f"{kind}List", refusals=refused
        )
    yield Entry("GET", one, Route(here.one), f"A {kind}.", kind, refusals=(404, *refused))
    yield Entry("DELETE", one, Route(here.delete), f"Deletes a {kind}.", "DeletedObject", refusals=(404, 409))


def _session_entries(here: SessionHandlers) -> tuple[Entry, ...]:
    """Routes of WebSockets, at the addresses of the Kubernetes API."""
    pod = ("api", "v1", "namespaces", "{namespace}", "pods", "{name}")
    container = Parameter("container", "the container (default: the first)")
    streams = (
        Parameter("stdin", "send standard input", _FLAG),
        Parameter("stdout", "receive standard output", _FLAG),
        Parameter("stderr", "receive standard error", _FLAG),
        Parameter("tty", "with a terminal", _FLAG),
    )
    return (
        Entry(
            "GET",
            (*pod, "exec"),
            Route(here.exec, protocols=PROTOCOLS),
            "Executes a command in a container, over a WebSocket.",
            parameters=(Parameter("command", "a word of the command; repeated"), container, *streams),
            content=(),
            status=101,
            refusals=(403, 404, 409),
        ),
        Entry(
            "GET",
            (*pod, "attach"),
            Route(here.attach, protocols=PROTOCOLS),
            "Attaches to the streams of a container itself, over a WebSocket.",
            parameters=(container, *streams),
            content=(),
            status=101,
            refusals=(403, 404, 409),
        ),
        Entry(
            "GET",
            (*pod, "portforward"),
            Route(here.port_forward, protocols=PROTOCOLS),
            "Connects to a port of a pod, over a WebSocket.",
            parameters=(Parameter("ports", "the port"),),
            content=(),
            status=101,
            refusals=(403, 404),
        ),
    )
