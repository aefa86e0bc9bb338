"""Credentials for registries: which entry is for which image, what a helper says, and that no secret is ever shown."""

import base64
import json
from pathlib import Path

import pytest

from evenkeel.api.data_objects import SECRET, DataObject
from evenkeel.api.pod import LocalObjectReference, ObjectMeta, Pod, PodSpec
from evenkeel.runtime.images.credentials import (
    FOR_ALL,
    Credential,
    Credentials,
    HostCredentials,
    Keyring,
    auth_file,
    first_access,
    keyring,
    matches,
    of_helper,
    pod_keyrings,
)
from evenkeel.runtime.images.references import parse


def pair(user: str, password: str) -> str:
    return base64.b64encode(f"{user}:{password}".encode()).decode()


@pytest.mark.parametrize(
    "key, image, is_meant",
    [
        ("registry.example", "registry.example/app", True),
        ("https://registry.example/v2/", "registry.example/team/app", True),
        ("registry.example/team", "registry.example/team/app", True),
        ("registry.example/team", "registry.example/teams/app", False),
        ("registry.example/team/app", "registry.example/team/app", True),
        ("registry.example", "registry.example:5000/app", False),
        ("registry.example:5000", "registry.example:5000/app", True),
        ("*.example", "registry.example/app", True),
        ("*.example", "a.registry.example/app", False),
        ("reg*.example", "registry.example/app", True),
        ("https://index.docker.io/v1/", "nginx", True),
        ("docker.io/team", "nginx", False),
        ("registry.example", "registry.example.evil/app", False),
    ],
)
def test_an_entry_is_for_the_images_that_kubelet_would_use_it_for(
    key: str, image: str, is_meant: bool
) -> None:
    assert matches(key, parse(image)) is is_meant


def test_the_entry_with_the_longest_path_comes_first() -> None:
    text = json.dumps(
        {
            "auths": {
                "registry.example": {"auth": pair("all", "1")},
                "registry.example/team": {"username": "team", "password": "2"},
                "other.example": {"auth": pair("other", "3")},
                "empty.example": {},
            }
        }
    )
    found = keyring(text).matching(parse("registry.example/team/app"))
    assert [one.username for one in found] == ["team", "all"]


def test_the_older_format_has_the_registries_at_its_top() -> None:
    ring = keyring(json.dumps({"https://registry.example": {"auth": pair("me", "a:b")}}))
    assert ring.matching(parse("registry.example/app")) == (Credential("me", "a:b"),)
    assert ring.helpers == ()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"auths": [1]}', "[" * 100_000])
def test_what_is_no_configuration_is_refused_and_never_shown(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        keyring(text)
    assert len(str(refused.value)) < 60


def test_no_secret_is_in_the_text_of_a_credential() -> None:
    credential = Credential("me", "hunter2", "token3")
    shown = f"{credential!r} {credential} {[credential]} {Keyring((('a', credential),))!r}"
    assert "hunter2" not in shown
    assert "token3" not in shown
    assert "hunter2" not in credential.fingerprint("salt")


def test_skopeo_is_given_one_credential_for_one_registry() -> None:
    image = parse("registry.example/app")
    assert json.loads(auth_file(image, None)) == {"auths": {}}
    given = json.loads(auth_file(image, Credential("me", "secret")))
    assert given == {"auths": {"registry.example": {"auth": pair("me", "secret")}}}
    token = json.loads(auth_file(image, Credential(identity_token="t")))
    assert token == {"auths": {"registry.example": {"identitytoken": "t"}}}


def helper(directory: Path, name: str, text: str) -> None:
    path = directory / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_credential_helper_is_asked_without_a_shell_and_without_our_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN_OF_OURS", "never")
    answer = '{"Username": "helped", "Secret": "\'"$1-$(cat)-$TOKEN_OF_OURS"\'"}'
    helper(tmp_path, "good", f"echo '{answer}'")
    config = tmp_path / "config.json"
    config.write_text(
        json.dumps({"credHelpers": {"registry.example": "good", "other.example": "../good; id"}})
    )
    host = HostCredentials(lambda: [str(config), str(tmp_path / "missing")], f"{tmp_path}:/usr/bin:/bin")
    assert host.matching(parse("registry.example/app")) == (Credential("helped", "get-registry.example-"),)
    assert host.matching(parse("other.example/app")) == ()
    assert host.matching(parse("third.example/app")) == ()


def test_a_store_is_asked_for_every_registry_and_may_know_nothing(tmp_path: Path) -> None:
    helper(tmp_path, "store", 'grep -q docker.io || exit 1; echo \'{"Username": "<token>", "Secret": "t"}\'')
    config = tmp_path / "config.json"
    config.write_text('{"credsStore": "store"}')
    host = HostCredentials(lambda: [str(config)], f"{tmp_path}:/usr/bin:/bin")
    assert host.matching(parse("nginx")) == (Credential(identity_token="t"),)
    assert host.matching(parse("registry.example/app")) == ()
    assert of_helper(b"credentials not found") is None


def test_what_a_pods_own_password_pulled_is_for_pods_with_an_accepted_password() -> None:
    mine, yours = Credential("a", "1"), Credential("b", "2")
    access = first_access(mine, Credentials((mine,)))
    assert access.allows((mine,))
    assert not access.allows(())
    assert not access.allows((yours,))
    both = access.with_accepted(yours, Credentials((yours,)))
    assert both.allows((mine,))
    assert both.allows((yours,))
    # Every pod may use an image that was pulled with the machine's credentials or without any.
    assert both.with_accepted(None, Credentials()) == FOR_ALL
    assert first_access(mine, Credentials((), (mine,))) == FOR_ALL
    assert FOR_ALL.with_accepted(mine, Credentials((mine,))).allows(())


def pull_secret(name: str, type_: str, key: str, text: str) -> tuple[tuple[str, str], DataObject]:
    return (SECRET, name), DataObject(SECRET, ObjectMeta(name=name), {key: text.encode()}, type=type_)


def test_secrets_of_both_types_are_read_and_others_are_passed_over() -> None:
    entry = {"registry.example": {"auth": pair("me", "1")}}
    data = dict(
        (
            pull_secret(
                "new",
                "kubernetes.io/dockerconfigjson",
                ".dockerconfigjson",
                json.dumps(
                    {"auths": entry, "credHelpers": {"registry.example": "evil"}, "credsStore": "evil"}
                ),
            ),
            pull_secret("old", "kubernetes.io/dockercfg", ".dockercfg", json.dumps(entry)),
            pull_secret("opaque", "Opaque", ".dockerconfigjson", json.dumps({"auths": entry})),
            pull_secret("damaged", "kubernetes.io/dockerconfigjson", ".dockerconfigjson", "{"),
        )
    )
    names = ("missing", "new", "old", "opaque", "damaged")
    pod = Pod(spec=PodSpec(image_pull_secrets=tuple(LocalObjectReference(name) for name in names)))
    rings = pod_keyrings(pod, data)
    image = parse("registry.example/app")
    assert [ring.matching(image) for ring in rings] == [(Credential("me", "1"),)] * 2
    assert all(ring.helper(image) == ("", "") for ring in rings)  # a Secret starts no program
