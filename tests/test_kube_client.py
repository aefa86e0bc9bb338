"""Requests and watches when the API server answers late, wrongly or not at all."""

import asyncio
import sys
from collections.abc import Awaitable, Callable

import pytest

from evenkeel.errors import EvenkeelError
from evenkeel.kube.api_client import ApiError, Backoff, Client, error_of, path_of
from evenkeel.kube.api_connection import Unreachable
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.kubeconfig import read_kubeconfig
from evenkeel.kube.watch import Watch
from tests.certificates import make_certificate
from tests.models.agents import until
from tests.models.api_server import ApiServer, Asked, api_server, kubeconfig

GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}


def story(directory, answer, scenario: Callable[[ApiServer, Client], Awaitable[None]]) -> None:
    async def main() -> None:
        async with api_server(directory, answer) as (server, client):
            await scenario(server, client)

    asyncio.run(main())


def bookmark(version: str, *, ends_list: bool = False) -> dict[str, object]:
    annotations = {"k8s.io/initial-events-end": "true"} if ends_list else {}
    return {
        "type": "BOOKMARK",
        "object": {"metadata": {"resourceVersion": version, "annotations": annotations}},
    }


def event(type_: str, name: str, version: str = "1") -> dict[str, object]:
    metadata = {"name": name, "uid": name, "resourceVersion": version, "managedFields": [{"manager": "x"}]}
    return {"type": type_, "object": {"metadata": metadata}}


class Heard:
    """A handler that notes what it hears."""

    def __init__(self) -> None:
        self.received: list[object] = []

    def listed(self, objects) -> None:
        self.received.append(sorted(one["metadata"]["name"] for one in objects))

    def changed(self, type_, one) -> None:
        assert "managedFields" not in one["metadata"]
        self.received.append((type_, one["metadata"]["name"]))


def test_words_of_a_path_are_quoted():
    assert path_of("api", "v1", "pods", "../../nodes") == "/api/v1/pods/..%2F..%2Fnodes"


def test_an_error_has_the_code_and_the_words_of_kubernetes(tmp_path):
    async def refuse(asked: Asked) -> None:
        await asked.answer(403, {"kind": "Status", "reason": "Forbidden", "message": "pods is forbidden"})

    async def scenario(server: ApiServer, client: Client) -> None:
        with pytest.raises(ApiError, match="pods is forbidden") as caught:
            await client.get("/api/v1/pods")
        assert (caught.value.code, caught.value.reason) == (403, "Forbidden")
        assert server.asked[0].headers["authorization"] == "Bearer from-the-test"

    story(tmp_path, refuse, scenario)


def test_one_connection_serves_many_requests(tmp_path):
    async def answer(asked: Asked) -> None:
        await asked.answer(200, {})

    async def scenario(server: ApiServer, client: Client) -> None:
        for _ in range(5):
            await client.get("/version")
        assert server.connections == 1

    story(tmp_path, answer, scenario)


def test_a_request_is_repeated_after_the_time_that_the_server_asks_for(tmp_path):
    async def answer(asked: Asked) -> None:
        times.append(1)
        if len(times) == 1:
            await asked.answer(429, {"kind": "Status", "reason": "TooManyRequests"}, "Retry-After: 1")
        else:
            await asked.answer(200, {"ok": True})

    times: list[int] = []

    async def scenario(server: ApiServer, client: Client) -> None:
        assert await client.get("/version") == {"ok": True}
        assert len(server.asked) == 2

    story(tmp_path, answer, scenario)


def test_an_idle_connection_that_the_server_has_closed_is_replaced(tmp_path):
    async def answer(asked: Asked) -> None:
        if len(server_of) and len(server_of[0].asked) == 2:
            asked.hang_up()
        else:
            await asked.answer(200, {"ok": True})

    server_of: list[ApiServer] = []

    async def scenario(server: ApiServer, client: Client) -> None:
        server_of.append(server)
        await client.get("/a")
        assert await client.get("/b") == {"ok": True}
        assert [one.target for one in server.asked] == ["/a", "/b", "/b"]

    story(tmp_path, answer, scenario)


@pytest.mark.parametrize("content", [b"no json", b"[]", b"[" * 100_000])
def test_an_answer_that_is_no_object_is_an_error(tmp_path, content):
    async def answer(asked: Asked) -> None:
        await asked.answer(200, content)

    async def scenario(server: ApiServer, client: Client) -> None:
        with pytest.raises(Unreachable):
            await client.get("/version")

    story(tmp_path, answer, scenario)


@pytest.mark.parametrize("seconds", ["1" + "0" * 400, "31"])
def test_no_server_makes_the_node_wait_for_good(tmp_path, seconds):
    async def answer(asked: Asked) -> None:
        await asked.answer(500, {"kind": "Status"}, f"Retry-After: {seconds}")

    async def scenario(server: ApiServer, client: Client) -> None:
        with pytest.raises(ApiError) as caught:
            await client.get("/version")
        assert caught.value.retry_after_seconds == 30

    story(tmp_path, answer, scenario)


@pytest.mark.parametrize(
    "seconds, waited", [(float("nan"), 30), (float("inf"), 30), (-1, 0), (2, 2), ("5", 0)]
)
def test_the_time_that_a_status_asks_for_has_bounds(seconds, waited):
    assert error_of({"details": {"retryAfterSeconds": seconds}}).retry_after_seconds == waited


def test_a_server_with_a_foreign_certificate_is_not_talked_to(tmp_path):
    (tmp_path / "other").mkdir()
    foreign = make_certificate(tmp_path / "other")[0]

    async def answer(asked: Asked) -> None:
        await asked.answer(200, {})

    async def scenario(server: ApiServer, client: Client) -> None:
        path = kubeconfig(tmp_path / "other", server.port, foreign, {"token": "from-the-test"})
        with pytest.raises(Unreachable, match="certificate"):
            await Client(Credentials(read_kubeconfig(str(path)))).get("/version")
        assert not server.asked

    story(tmp_path, answer, scenario)


def test_a_server_with_another_name_is_not_talked_to(tmp_path):
    async def answer(asked: Asked) -> None:
        await asked.answer(200, {})

    async def scenario(server: ApiServer, client: Client) -> None:
        found = read_kubeconfig(str(tmp_path / "kubeconfig"))
        for name in ("127.0.0.2", "other.example", "größe.example"):
            with pytest.raises(Unreachable, match="certificate"):
                await Client(Credentials(found._replace(server_name=name))).get("/version")
        assert not server.asked

    story(tmp_path, answer, scenario)


def test_a_connection_by_address_loads_no_tables_of_idna(tmp_path):
    program = (
        "import asyncio, sys;"
        "from evenkeel.kube.api_client import Client;"
        "from evenkeel.kube.api_credentials import Credentials;"
        "from evenkeel.kube.kubeconfig import read_kubeconfig;"
        "asyncio.run(Client(Credentials(read_kubeconfig(sys.argv[1]))).get('/version'));"
        "print('encodings.idna' in sys.modules)"
    )

    async def answer(asked: Asked) -> None:
        await asked.answer(200, {})

    async def scenario(server: ApiServer, client: Client) -> None:
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(tmp_path / "kubeconfig"), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await running.communicate()
        assert said == b"False\n"
        assert server.asked

    story(tmp_path, answer, scenario)


def watched(
    directory,
    answers,
    told_at_the_end: list[object],
    *,
    asked: list[str] | None = None,
    heard: Heard | None = None,
) -> None:
    """Runs a watch over these answers, one for each request; the last one stays open."""
    left = list(answers)

    async def answer(request: Asked) -> None:
        if asked is not None:
            asked.append(request.target)
        if left:
            await left.pop(0)(request)
        else:
            await asyncio.Event().wait()

    async def scenario(server: ApiServer, client: Client) -> None:
        handler = heard or Heard()
        task = asyncio.create_task(Watch(client, "/api/v1/pods", handler, "pods").run())
        try:
            await until(lambda: handler.received == told_at_the_end and not left)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    story(directory, answer, scenario)


def test_a_list_is_complete_before_a_handler_gets_it(tmp_path):
    async def broken(asked: Asked) -> None:
        await asked.stream(event("ADDED", "a"), is_whole=False)

    async def whole(asked: Asked) -> None:
        await asked.stream(event("ADDED", "a"), event("ADDED", "b"), bookmark("7", ends_list=True))

    watched(tmp_path, [broken, whole], [["a", "b"]])


def test_a_watch_goes_on_from_the_last_version_it_has_seen(tmp_path):
    async def first(asked: Asked) -> None:
        await asked.stream(bookmark("7", ends_list=True), event("ADDED", "a", "9"), bookmark("12"))

    async def second(asked: Asked) -> None:
        await asked.stream(event("DELETED", "a", "13"))

    asked: list[str] = []
    watched(tmp_path, [first, second], [[], ("ADDED", "a"), ("DELETED", "a")], asked=asked)
    assert "sendInitialEvents=true" in asked[0]
    assert "resourceVersion=12" in asked[1]
    assert "sendInitialEvents" not in asked[1]


def test_a_version_that_is_too_old_leads_to_a_new_list(tmp_path):
    async def first(asked: Asked) -> None:
        await asked.stream(event("ADDED", "a"), bookmark("7", ends_list=True))

    async def expired(asked: Asked) -> None:
        await asked.stream({"type": "ERROR", "object": GONE})

    async def again(asked: Asked) -> None:
        await asked.stream(event("ADDED", "b"), bookmark("20", ends_list=True))

    asked: list[str] = []
    watched(tmp_path, [first, expired, again], [["a"], ["b"]], asked=asked)
    assert "sendInitialEvents=true" in asked[2]


@pytest.mark.parametrize(
    "one",
    [
        {},
        {"metadata": []},
        {"metadata": {"name": "a"}},
        {"metadata": {"name": "", "uid": "a"}},
        {"metadata": {"name": "a", "uid": "a"}, "spec": "none"},
    ],
)
def test_an_object_without_its_shape_ends_the_watch_and_is_never_heard_of(tmp_path, one):
    async def broken(asked: Asked) -> None:
        await asked.stream({"type": "ADDED", "object": one}, bookmark("7", ends_list=True))

    async def whole(asked: Asked) -> None:
        await asked.stream(event("ADDED", "b"), bookmark("8", ends_list=True))

    watched(tmp_path, [broken, whole], [["b"]])


class Failing(Heard):
    """A handler that cannot take what it hears, some times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def listed(self, objects) -> None:
        super().listed(objects)
        self._fail()

    def changed(self, type_, one) -> None:
        super().changed(type_, one)
        self._fail()

    def _fail(self) -> None:
        self.failures -= 1
        if self.failures == 0:
            raise EvenkeelError("the journal cannot be written")


@pytest.mark.parametrize("failing", [1, 2])
def test_what_a_handler_cannot_take_is_listed_again(tmp_path, monkeypatch, failing):
    monkeypatch.setattr(Backoff, "next_seconds", lambda _: 0.0)

    async def first(asked: Asked) -> None:
        await asked.stream(event("ADDED", "a"), bookmark("7", ends_list=True), event("ADDED", "b", "8"))

    async def again(asked: Asked) -> None:
        await asked.stream(event("ADDED", "a"), event("ADDED", "b"), bookmark("20", ends_list=True))

    asked: list[str] = []
    scenario: list[object] = [["a"], ["a", "b"]] if failing == 1 else [["a"], ("ADDED", "b"), ["a", "b"]]
    watched(tmp_path, [first, again], scenario, asked=asked, heard=Failing(failing))
    assert "sendInitialEvents=true" in asked[1]


def test_watches_that_end_at_once_without_an_event_follow_each_other_with_a_pause(tmp_path, monkeypatch):
    pauses: list[float] = []

    class Counted(Backoff):
        def next_seconds(self) -> float:
            pauses.append(super().next_seconds())
            return 0.0

    async def nothing(asked: Asked) -> None:
        await asked.stream()

    async def expired(asked: Asked) -> None:
        await asked.stream({"type": "ERROR", "object": GONE})

    async def whole(asked: Asked) -> None:
        await asked.stream(bookmark("7", ends_list=True))

    monkeypatch.setattr("evenkeel.kube.watch.Backoff", Counted)
    watched(tmp_path, [nothing, nothing, whole, expired, whole], [[], []])
    assert len(pauses) == 3


def test_a_server_without_streamed_lists_is_listed_in_pages(tmp_path):
    async def unknown(asked: Asked) -> None:
        await asked.answer(422, {"kind": "Status", "code": 422, "reason": "Invalid"})

    async def no_list(asked: Asked) -> None:
        await asked.answer(200, {"kind": "Status", "metadata": {}})

    async def page(asked: Asked) -> None:
        one = {"metadata": {"name": "a", "uid": "a"}}
        await asked.answer(200, {"metadata": {"continue": "more"}, "items": [one]})

    async def last(asked: Asked) -> None:
        one = {"metadata": {"name": "b", "uid": "b", "managedFields": []}}
        await asked.answer(200, {"metadata": {"resourceVersion": "5"}, "items": [one]})

    async def change(asked: Asked) -> None:
        await asked.stream(event("MODIFIED", "a", "6"))

    asked: list[str] = []
    watched(tmp_path, [unknown, no_list, page, last, change], [["a", "b"], ("MODIFIED", "a")], asked=asked)
    assert "continue=more" in asked[3]
    assert "resourceVersion=5" in asked[4]
