"""Every address, with what answers there and what is told of it."""

from typing import TYPE_CHECKING, NamedTuple

from evenkeel.server.http import EVENT_STREAM, JSON, LINES, Route
from evenkeel.server.schemas import SCHEMAS, Schema

TEXT: Schema = {"type": "string"}


class Parameter(NamedTuple):
    name: str
    what: str
    schema: Schema = TEXT


class Entry(NamedTuple):
    """`path` has names in braces for any word. `answers` names a schema; without it, the answer is text."""

    method: str
    path: tuple[str, ...]
    route: Route
    what: str
    answers: str = ""
    parameters: tuple[Parameter, ...] = ()
    content: tuple[str, ...] = (JSON,)
    status: int = 200
    refusals: tuple[int, ...] = ()

    def is_at(self, path: tuple[str, ...]) -> bool:
        return len(self.path) == len(path) and all(
            word.startswith("{") or word == given for word, given in zip(self.path, path, strict=True)
        )


def description(entries: tuple[Entry, ...], version: str) -> Schema:
    paths: dict[str, dict[str, Schema]] = {}
    for entry in entries:
        path = "/" + "/".join(entry.path)
        paths.setdefault(path, {})[entry.method.lower()] = _operation(entry)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "evenkeel",
            "description": "What the agent of a node answers.",
            "version": version,
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # Over TCP everybody needs the token; at the Unix socket the kernel says who asks.
        "security": [{"token": []}, {}],
    }


def _operation(entry: Entry) -> Schema:
    parameters: list[Schema] = [
        {"name": word[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for word in entry.path
        if word.startswith("{")
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.what, "schema": one.schema}
        for one in entry.parameters
    ]
    schema: Schema = {"$ref": f"#/components/schemas/{entry.answers}"} if entry.answers else TEXT
    answers: dict[str, Schema] = {
        str(entry.status): {
            "description": entry.what,
            "content": {one: {"schema": schema if one == JSON else TEXT} for one in entry.content},
        }
    }
    refusals = {400, 401, 405, 408, 503, *entry.refusals}
    for status in sorted(refusals):
        answers[str(status)] = {
            "description": "An error, and what would be right.",
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    operation: Schema = {
        "operationId": "_".join((entry.method.lower(), *(word.strip("{}") for word in entry.path))),
        "summary": entry.what,
        "parameters": parameters,
        "responses": answers,
    }
    if entry.route.takes_body:
        pod_list: Schema = {"$ref": "#/components/schemas/PodList"}
        operation["requestBody"] = {
            "required": True,
            "description": "Manifests: one pod, a list, or YAML documents.",
            "content": {
                JSON: {"schema": {"anyOf": [{"$ref": "#/components/schemas/Pod"}, pod_list]}},
                "application/yaml": {"schema": TEXT},
            },
        }
    return operation


if TYPE_CHECKING:
    from evenkeel.server.routes import FrontRoutes

SOURCES = ("api", "run")
FOLLOW = ("0", "1", "false", "true")
MOST_EVENTS = 10_000
PLAIN_TEXT = "text/plain"

_SECONDS: dict[str, object] = {"type": "number", "minimum": 0, "maximum": 2**31}
_COUNT: dict[str, object] = {"type": "integer", "minimum": 1, "maximum": MOST_EVENTS}


def addresses(here: "FrontRoutes") -> tuple[Entry, ...]:
    pod = ("{namespace}", "{name}")
    return (
        Entry("GET", ("healthz",), Route(here.healthz), "Whether the agent answers.", content=(PLAIN_TEXT,)),
        Entry(
            "GET",
            ("readyz",),
            Route(here.readyz),
            "Whether the agent does its work.",
            content=(PLAIN_TEXT,),
            refusals=(500,),
        ),
        Entry(
            "GET",
            ("pods",),
            Route(here.pods),
            "All pods, or those of a namespace.",
            "PodList",
            (Parameter("namespace", "of which"),),
        ),
        Entry(
            "POST",
            ("pods",),
            Route(here.apply, takes_body=True),
            "Takes pods that are to run.",
            "Applied",
            (Parameter("source", "who wants them", {"type": "string", "enum": list(SOURCES)}),),
            refusals=(409, 413, 422),
        ),
        Entry("GET", ("pods", *pod), Route(here.pod), "A pod.", "Pod", refusals=(404,)),
        Entry(
            "DELETE",
            ("pods", *pod),
            Route(here.delete),
            "Asks for a pod's end.",
            "Deleted",
            (Parameter("gracePeriodSeconds", "until it is killed", _SECONDS),),
            status=202,
            refusals=(404, 409),
        ),
        Entry(
            "GET",
            ("watch",),
            Route(here.watch),
            "Changes of pods, as they come.",
            parameters=(
                Parameter("pod", "only this one, namespace/name"),
                Parameter("namespace", "of which"),
            ),
            content=(LINES,),
        ),
        Entry(
            "GET",
            ("events",),
            Route(here.events),
            "What happened, and with follow what happens.",
            parameters=(
                Parameter("pod", "to whom, namespace/name"),
                Parameter("follow", "go on", {"type": "string", "enum": list(FOLLOW)}),
                Parameter("most", "the latest so many", _COUNT),
            ),
            content=(LINES, EVENT_STREAM),
        ),
        Entry("GET", ("node",), Route(here.node), "The node.", "Node"),
        Entry("GET", ("usage",), Route(here.usage), "Counters of pods and containers.", "Usage"),
        Entry("GET", ("view",), Route(here.view), "The whole picture of the node.", "View"),
        Entry(
            "GET",
            ("view", "watch"),
            Route(here.view_watch),
            "The picture, and what changes of it.",
            content=(EVENT_STREAM,),
        ),
        Entry(
            "GET",
            ("explain", *pod),
            Route(here.explain),
            "What a pod has in the kernel, beside what was asked for, and why.",
            "Explanation",
            refusals=(404,),
        ),
        Entry("GET", ("why", *pod), Route(here.why), "What became of a pod.", "Story", refusals=(404,)),
        Entry(
            "GET",
            ("stats", "summary"),
            Route(here.summary),
            "Kubernetes' Summary API.",
            "Summary",
            (Parameter("only_cpu_and_memory", "and nothing else", {"type": "boolean"}),),
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
                ((), "The node, the agent and what it did"),
                (("resource",), "What metrics-server reads"),
                (("cadvisor",), "Each cgroup, in cAdvisor's names"),
            )
        ),
        Entry("GET", ("advice",), Route(here.advice), "What requests and reservations should be.", "Advice"),
        Entry("GET", ("snapshot",), Route(here.snapshot), "What evictions are decided on.", "Snapshot"),
        Entry("GET", ("configz",), Route(here.configz), "The configuration.", "Configuration"),
        Entry("GET", ("openapi.json",), Route(here.openapi), "This description.", "Description"),
        Entry("GET", ("",), Route(here.page), "The live page.", content=("text/html",)),
        Entry(
            "GET",
            ("page", "{file}"),
            Route(here.page),
            "A file of the page.",
            content=("text/css", "text/html", "text/javascript", "image/svg+xml"),
            refusals=(404,),
        ),
    )
