"""A route with its description, and the OpenAPI description of all routes."""

from evenkeel.named_tuples import NamedTuple
from evenkeel.server.http import JSON, Route
from evenkeel.server.schema_types import TEXT, Schema


class Parameter(NamedTuple):
    name: str
    description: str
    schema: Schema = TEXT


class Entry(NamedTuple):
    """A word of `path` in braces stands for any word. `answers` names a schema; without it, the answer is text."""

    method: str
    path: tuple[str, ...]
    route: Route
    summary: str
    answers: str = ""
    parameters: tuple[Parameter, ...] = ()
    content: tuple[str, ...] = (JSON,)
    status: int = 200
    refusals: tuple[int, ...] = ()
    takes: str = ""  # the schema of a body that is no manifest

    def matches(self, path: tuple[str, ...]) -> bool:
        return len(self.path) == len(path) and all(
            word.startswith("{") or word == given for word, given in zip(self.path, path, strict=True)
        )


def description(entries: tuple[Entry, ...], version: str) -> Schema:
    from evenkeel.server.schemas import SCHEMAS  # only a client that asks for the description needs them

    paths: dict[str, dict[str, Schema]] = {}
    for entry in entries:
        path = "/" + "/".join(entry.path)
        paths.setdefault(path, {})[entry.method.lower()] = _operation(entry)
    return {
        "openapi": "3.0.3",
        "info": {
            "title": "evenkeel",
            "description": "The HTTP interface of the node agent.",
            "version": version,
            "license": {"name": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        # Over TCP every client needs the token. At the Unix socket the kernel says which user asks.
        "security": [{"token": []}, {}],
    }


def _operation(entry: Entry) -> Schema:
    parameters: list[Schema] = [
        {"name": word[1:-1], "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for word in entry.path
        if word.startswith("{")
    ]
    parameters += [
        {"name": one.name, "in": "query", "description": one.description, "schema": one.schema}
        for one in entry.parameters
    ]
    schema: Schema = {"$ref": f"#/components/schemas/{entry.answers}"} if entry.answers else TEXT
    answers: dict[str, Schema] = {
        str(entry.status): {
            "description": entry.summary,
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
        "summary": entry.summary,
        "parameters": parameters,
        "responses": answers,
    }
    if entry.takes:
        body: Schema = {"$ref": f"#/components/schemas/{entry.takes}"}
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    elif entry.route.takes_body:
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
