"""kubeconfig files: what is read from them, and what is said about a wrong one."""

import asyncio
import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from evenkeel.errors import EvenkeelError, InvalidInput
from evenkeel.kube.api_credentials import Credentials
from evenkeel.kube.kubeconfig import Kubeconfig, read_kubeconfig
from tests.certificates import make_certificate, private
from tests.models.api_server import kubeconfig

SECRET = "kept-from-everybody"


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("keys"))


def written(directory: Path, pair: tuple[str, str], user: dict[str, object]) -> Kubeconfig:
    return read_kubeconfig(str(kubeconfig(directory, 6443, pair[0], user)))


def changed(directory: Path, pair: tuple[str, str], change) -> Path:
    path = kubeconfig(directory, 6443, pair[0], {"token": SECRET})
    value = yaml.safe_load(path.read_text())
    change(value)
    path.write_text(yaml.safe_dump(value))
    return path


def test_the_current_context_names_server_and_user(tmp_path, pair):
    found = written(tmp_path, pair, {"token": SECRET})
    assert (found.host, found.port, found.token) == ("127.0.0.1", 6443, SECRET)
    assert found.server == "https://127.0.0.1:6443"


def test_json_is_read_as_yaml_is_and_needs_no_library(tmp_path, pair):
    path = changed(tmp_path, pair, lambda _: None)
    of_yaml = read_kubeconfig(str(path))
    path.write_text(json.dumps(yaml.safe_load(path.read_text())))
    assert read_kubeconfig(str(path)) == of_yaml
    code = (
        "import sys; from evenkeel.kube.kubeconfig import read_kubeconfig;"
        f"read_kubeconfig({str(path)!r}); print('yaml' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("text", ['{"clusters": [],\n "clusters": []}', '{"clusters": []}\n[', "[" * 5000])
def test_json_that_yaml_would_refuse_is_refused_with_its_line(tmp_path, text):
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=r"kubeconfig:[12]:"):
        read_kubeconfig(str(path))


def test_no_credential_is_in_the_text_of_a_kubeconfig(tmp_path, pair):
    assert SECRET not in repr(written(tmp_path, pair, {"token": SECRET}))


@pytest.mark.parametrize(
    "change, said",
    [
        (lambda it: it.pop("current-context"), "current-context is missing"),
        (lambda it: it.update({"current-context": "other"}), 'contexts there is none with the name "other"'),
        (lambda it: it["clusters"][0]["cluster"].update({"server": "http://x"}), "must be https://"),
        (lambda it: it["clusters"][0]["cluster"].pop("certificate-authority-data"), "certificate-authority is missing"),
        (lambda it: it["clusters"][0]["cluster"].update({"insecure-skip-tls-verify": True}), "tls-verify is not"),
        (lambda it: it["clusters"][0]["cluster"].update({"proxy-url": "http://x"}), "proxy-url"),
        (lambda it: it["users"][0]["user"].update({"username": "me"}), "username is not honoured"),
        (lambda it: it["users"][0]["user"].update({"client-key-data": "eA=="}), "needs client-key"),
        (lambda it: it["users"][0]["user"].update({"client-key-data": "§"}), "client-key-data is not base64"),
        (lambda it: it["users"][0]["user"].update({"exec": {"args": []}}), "exec.command is missing"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_field_and_without_the_token(tmp_path, pair, change, said):
    path = changed(tmp_path, pair, change)
    with pytest.raises(EvenkeelError) as caught:
        read_kubeconfig(str(path))
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_client_certificate_is_taken_from_files_beside_the_kubeconfig(tmp_path, pair):
    for name, path in zip(("c.pem", "k.pem"), pair, strict=True):
        private(tmp_path / name, Path(path).read_text())
    found = written(tmp_path, pair, {"client-certificate": "c.pem", "client-key": "k.pem"})
    identity = asyncio.run(Credentials(found).identity())
    assert not identity.token


def test_a_certificate_that_was_rotated_is_used_from_then_on(tmp_path, pair):
    for name, path in zip(("c.pem", "k.pem"), pair, strict=True):
        private(tmp_path / name, Path(path).read_text())
    credentials = Credentials(written(tmp_path, pair, {"client-certificate": "c.pem", "client-key": "k.pem"}))
    before = asyncio.run(credentials.identity()).context
    assert asyncio.run(credentials.identity()).context is before
    (tmp_path / "new").mkdir()
    for name, path in zip(("c.pem", "k.pem"), make_certificate(tmp_path / "new"), strict=True):
        Path(path).replace(tmp_path / name)
    assert asyncio.run(credentials.identity()).context is not before


def test_a_key_that_does_not_fit_is_refused_without_being_shown(tmp_path, pair):
    (tmp_path / "other").mkdir()
    key = Path(make_certificate(tmp_path / "other")[1]).read_text()
    private(tmp_path / "k.pem", key)
    config = written(tmp_path, pair, {"client-certificate": pair[0], "client-key": "k.pem"})
    with pytest.raises(EvenkeelError, match="cannot be used") as caught:
        Credentials(config)
    assert key.splitlines()[1] not in str(caught.value)


def test_a_token_file_is_read_again_after_a_refusal(tmp_path, pair):
    file = tmp_path / "token"
    private(file, "first\n")
    credentials = Credentials(written(tmp_path, pair, {"tokenFile": "token"}))
    assert asyncio.run(credentials.identity()).token == "first"
    private(file, "second\n")
    assert asyncio.run(credentials.identity()).token == "first"
    credentials.refused()
    assert asyncio.run(credentials.identity()).token == "second"


def plugin(directory: Path, text: str) -> dict[str, object]:
    program = directory / "plugin"
    program.write_text(f"#!/bin/sh\necho run >> {directory}/runs\n{text}\n")
    program.chmod(stat.S_IRWXU)
    version = "client.authentication.k8s.io/v1"
    return {
        "exec": {"command": "./plugin", "apiVersion": version, "env": [{"name": "TOKEN", "value": SECRET}]}
    }


def credential(**status: object) -> str:
    value = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return json.dumps(value)


def test_a_plugin_is_asked_once_until_its_token_expires(tmp_path, pair):
    now = [1_000_000.0]
    printed = credential(token="$TOKEN", expirationTimestamp="1970-01-12T13:51:40Z").replace(
        '"', '\\"'
    )  # + 300 s
    config = written(tmp_path, pair, plugin(tmp_path, f'echo "{printed}"'))
    credentials = Credentials(config, lambda: now[0])

    async def twice() -> list[str]:
        return [(await credentials.identity()).token for _ in range(2)]

    async def once() -> None:
        await credentials.identity()

    assert asyncio.run(twice()) == [SECRET, SECRET]
    assert (tmp_path / "runs").read_text() == "run\n"
    now[0] += 280  # the plugin prints the same again, but it was asked
    asyncio.run(once())
    assert (tmp_path / "runs").read_text() == "run\nrun\n"


def test_a_plugin_may_print_piece_by_piece(tmp_path, pair):
    printed = json.dumps(json.loads(credential(token="abc")), indent=1).splitlines()
    steps = "; sleep 0.02; ".join(f"echo '{line}'" for line in printed)
    credentials = Credentials(written(tmp_path, pair, plugin(tmp_path, steps)))
    assert asyncio.run(credentials.identity()).token == "abc"


@pytest.mark.parametrize(
    "text, said",
    [
        ("exit 3", "it ended with code 3"),
        ("echo $TOKEN", "no ExecCredential"),
        (f"echo '{credential()}'", "neither a token nor a certificate"),
    ],
)
def test_a_plugin_that_fails_is_named_and_not_quoted(tmp_path, pair, text, said):
    credentials = Credentials(written(tmp_path, pair, plugin(tmp_path, text)))
    with pytest.raises(EvenkeelError) as caught:
        asyncio.run(credentials.identity())
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)
