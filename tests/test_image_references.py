"""References to images in registries, by Docker's grammar and defaults."""

import pytest

from evenkeel.runtime.images.references import InvalidReference, is_digest, parse

DIGEST = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    "text, whole",
    [
        ("nginx", "docker.io/library/nginx:latest"),
        ("nginx:1.27", "docker.io/library/nginx:1.27"),
        ("team/app", "docker.io/team/app:latest"),
        ("docker.io/nginx", "docker.io/library/nginx:latest"),
        ("index.docker.io/team/app:1", "docker.io/team/app:1"),
        ("localhost/app", "localhost/app:latest"),
        ("localhost:5000/app:1", "localhost:5000/app:1"),
        ("registry.example/a/b/c:v1.2-x_y", "registry.example/a/b/c:v1.2-x_y"),
        ("[::1]:5000/app", "[::1]:5000/app:latest"),
        ("Registry/app", "Registry/app:latest"),  # upper case makes it a host
        (f"app@{DIGEST}", f"docker.io/library/app@{DIGEST}"),
        (f"registry.example/app:1@{DIGEST}", f"registry.example/app:1@{DIGEST}"),
    ],
)
def test_missing_parts_of_a_reference_are_filled_in_as_docker_does(text: str, whole: str) -> None:
    assert str(parse(text)) == whole
    assert str(parse(whole)) == whole


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":1",
        "a:",
        "a//b",
        "/a",
        "a/",
        "team/App",
        "a:b:c",
        "a b",
        "a@sha256:12",
        "a@md5:d41d8cd98f00b204e9800998ecf8427e",
        f"a@{DIGEST}@{DIGEST}",
        "-registry.example/app",
        "registry.example:x/app",
        "a\0b",
        "a\n",
        "app:" + "t" * 129,
        "registry.example/" + "a" * 250,
        "0123456789abcdef" * 4,
        "../a",
        "$(reboot)",
        "--all",
        "a;b",
    ],
)
def test_what_is_no_reference_is_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(InvalidReference) as refused:
        parse(text)
    assert "is no reference to an image: " in str(refused.value)


def test_a_reference_is_pinned_to_a_digest() -> None:
    assert str(parse("registry.example/app:1").at(DIGEST)) == f"registry.example/app@{DIGEST}"
    assert is_digest(DIGEST)
    assert not is_digest(f"{DIGEST}/..")
    assert not is_digest(None)
