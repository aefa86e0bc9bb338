"""A pod shares the host's network, so it reaches the port of the agent: it keeps no client with the token out."""

import http.client
import ssl
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.attacks.hostile import PATIENCE_SECONDS, await_ready, await_said, hostile
from tests.certificates import make_certificate, private
from tests.kernel.agents import MakeUp
from tests.reserved_port import ReservedPort

pytestmark = [pytest.mark.cgroup("v1", "v2"), pytest.mark.long]

TOKEN = "t" * 32
CONNECTIONS, PODS = 100, 3  # more than the agent has places for, from several sides
ASKED = 6  # each waits for a moment until the crowd has lost a place


@pytest.fixture
def port() -> Iterator[int]:
    """Where the agent is to listen."""
    with closing(ReservedPort()) as reserved:
        yield reserved.number


@pytest.mark.processes_only("the network is the host's with either")
def test_a_crowd_without_a_token_keeps_no_scraper_out(up: MakeUp, tmp_path: Path, port: int):
    cert, key = make_certificate(tmp_path)
    token = private(tmp_path / "token", f"{TOKEN}\n")
    agent = up(
        f"--listen=127.0.0.1:{port}",
        f"--tls-cert-file={cert}",
        f"--tls-private-key-file={key}",
        f"--token-file={token}",
    )
    agent.start()
    names = [f"crowd-{number}" for number in range(PODS)]
    for name in names:
        agent.apply(hostile(agent, name, "crowd", str(port), str(CONNECTIONS)))
    for name in names:
        await_said(agent, name, "crowded")
    context = ssl.create_default_context(cafile=cert)
    answered: list[int | str] = []
    for number in range(ASKED):
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=PATIENCE_SECONDS)
        try:
            target = ("/metrics", "/pods", "/healthz")[number % 3]
            connection.request("GET", target, headers={"Authorization": f"Bearer {TOKEN}"})
            answered.append(connection.getresponse().status)
        except OSError as error:
            answered.append(str(error))
        finally:
            connection.close()
    assert answered == [200] * ASKED
    for name in names:
        agent.await_phase(name, "Running")
    await_ready(agent)
