"""The OpenAPI description: every address is in it, and whatever it allows is answered without a failure of ours."""

import json
import warnings

import pytest

from evenkeel.api.data_objects import CONFIG_MAP, SECRET, DataObject
from evenkeel.api.pod import ObjectMeta
from evenkeel.api.services import Service
from evenkeel.api.stored_objects import key_of_object
from evenkeel.api.workloads import key_of
from tests.fake_front import FakeFront, running, served
from tests.models.agents import pods_of
from tests.models.http_client import Http, ask
from tests.models.manifests import PODS, a_claim
from tests.models.workload_world import workload

_ENDLESS = ("/watch", "/view/watch", "/events")  # streams


@pytest.fixture
def agent(tmp_path):
    front = FakeFront()
    with served(front, tmp_path) as agent:
        for pod in pods_of(PODS):
            agent.call(front.put, running(pod))
        for kind in (CONFIG_MAP, SECRET):
            one = DataObject(kind, ObjectMeta("web", namespace="default"), {"key": b"value"}, type="Opaque")
            front.data[one.key] = one
        for other in (Service(ObjectMeta("web", namespace="default")), a_claim("web")):
            front.data[key_of_object(other)] = other
        for kind in ("Deployment", "ReplicationController"):
            more = {"selector": {"app": "a"}} if kind == "ReplicationController" else {}
            made = workload(kind, {"replicas": 2, **more}, "web")
            front.made[key_of(made)] = made
        agent.call(front.tell, "Evicted", "it used too much", pod="default/web")
        yield agent


def described(agent):
    status, description = ask(agent, "GET", "/openapi.json")
    assert status == 200
    return description


def test_every_address_is_described_and_answers(agent):
    paths = described(agent)["paths"]
    assert {
        "/pods",
        "/stats/summary",
        "/metrics",
        "/view/watch",
        "/explain/{namespace}/{name}",
    } <= paths.keys()
    for path in paths:
        target = path.replace("{namespace}", "default").replace("{name}", "web").replace("{file}", "main.js")
        target = target.replace("{group}", "apps").replace("{workloads}", "deployments")
        if "101" in paths[path].get("get", {}).get("responses", ()):
            assert ask(agent, "GET", target)[0] == 400, target  # it takes a WebSocket
        elif "get" in paths[path] and path not in _ENDLESS and not path.startswith("/why"):
            assert ask(agent, "GET", target)[0] == 200, target


def test_schemas_that_are_named_are_there(agent):
    description = described(agent)
    named = set()

    def walk(value):
        if isinstance(value, dict):
            if "$ref" in value:
                named.add(value["$ref"])
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(description)
    there = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert named <= there


def test_what_the_description_allows_is_answered_as_it_says(agent):
    """schemathesis makes requests up from the description, and holds the answers against it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import schemathesis
        from hypothesis import HealthCheck, Phase, given, settings
        from schemathesis.core.transport import Response

    description = described(agent)
    schema = schemathesis.openapi.from_dict(description)
    operations = [one.ok() for one in schema.get_all_operations()]
    assert len(operations) == sum(len(methods) for methods in description["paths"].values())
    for operation in operations:
        if operation.path in _ENDLESS:
            continue

        @settings(
            max_examples=15,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy())
        def holds(case):
            status, headers, body = raw(agent, case)
            if status is not None:
                assert status < 500 or status == 503, (case.method, case.formatted_path, status, body)
                declared = case.operation.definition.raw["responses"]
                assert str(status) in declared, (case.method, case.formatted_path, status, body)
                if status == 200 and headers["content-type"] == "application/json":
                    case.operation.validate_response(answer(case, status, headers, body))

        def answer(case, status, headers, body):
            from requests import Request

            request = Request("GET", "http://x/").prepare()
            return Response(
                status_code=status,
                headers={name: [value] for name, value in headers.items()},
                content=body,
                request=request,
                elapsed=0.1,
                verify=False,
            )

        holds()


def raw(agent, case):
    from requests import Request

    keywords = case.as_transport_kwargs(base_url="http://x")
    keywords.pop("cookies", None)
    known = ("method", "url", "headers", "data", "json", "params", "files", "auth")
    request = Request(**{name: value for name, value in keywords.items() if name in known}).prepare()
    body = request.body or b""
    body = body.encode() if isinstance(body, str) else body
    assert isinstance(body, bytes)
    lines = [f"{request.method} {request.path_url} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}"]
    with Http(agent) as http:
        http.send("\r\n".join([*lines, "", ""]).encode() + body)
        status, headers = http.head()
        if status is None:
            return None, {}, b""
        if "content-length" not in headers:
            return status, headers, b""
        return status, headers, http.file.read(int(headers["content-length"]))


def test_a_description_is_json_that_others_can_read(agent):
    description = described(agent)
    assert description["openapi"].startswith("3.0")
    assert json.dumps(description)
    operations = [one for methods in description["paths"].values() for one in methods.values()]
    names = [one["operationId"] for one in operations]
    assert len(set(names)) == len(names)
