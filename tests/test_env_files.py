"""Variables from files of emptyDir volumes: kubelet's format, what is missing, and what hostile containers write."""

import os
from pathlib import Path

import pytest

from evenkeel.api.container import Container, EnvVar, EnvVarSource, FileKeySelector, SecretKeySelector
from evenkeel.api.data_objects import ENV_FILE, EnvFile
from evenkeel.api.pod import ObjectMeta, Pod, PodSpec
from evenkeel.api.volume_types import EmptyDirVolumeSource, Volume
from evenkeel.runtime.env_file_reader import read_env_file, with_env_files
from evenkeel.runtime.environment import declared, missing_data, problems
from evenkeel.runtime.interface import Attempt, Launch
from evenkeel.runtime.paths import state_paths
from evenkeel.runtime.start_errors import DataMissing, WrongConfig


def selector(key: str = "A", *, optional: bool | None = None) -> FileKeySelector:
    return FileKeySelector("made", "app.env", key, optional)


def container(*selectors: FileKeySelector) -> Container:
    sources = (EnvVarSource(file_key_ref=one) for one in selectors or (selector(),))
    return Container(
        "app", env=tuple(EnvVar(f"V{number}", value_from=one) for number, one in enumerate(sources))
    )


def pod(one: Container) -> Pod:
    return Pod(
        ObjectMeta("web", uid="u-1"),
        PodSpec(containers=(one,), volumes=(Volume("made", empty_dir=EmptyDirVolumeSource()),)),
    )


def values(text: str | None, *selectors: FileKeySelector, problem: str = "") -> dict[str, str]:
    one = container(*selectors)
    return declared(pod(one), one, {(ENV_FILE, "made/app.env"): EnvFile(text, problem)})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("A='x'", "x"),
        ("  \t A='x'\n", "x"),
        ("# A='no'\n\n   \n  # more\nB='y'\nA='x'\n", "x"),
        ("A='first'\nA='second'\n", "first"),
        ("A=' x y '   # a comment\n", " x y "),
        ("A='$HOME ${B} `x` \\n \"q\" #'\n", '$HOME ${B} `x` \\n "q" #'),
        ("A='one\n\n  two\n#three'\n", "one\n\n  two\n#three"),
        ("A='one\r\ntwo'\r\n", "one\ntwo"),
        ("B= 'nothing'\nA='x'\n", "x"),
        ("A='x'\nwhat follows is not looked at", "x"),
        ("A='Grüße 🌍'", "Grüße 🌍"),
        ("a b='y'\nA='x=1'\n", "x=1"),
    ],
)
def test_a_value_is_in_single_quotes_and_taken_literally(text, value):
    assert values(text) == {"V0": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("A=x\n", "line 1 must have the value of A in single quotes"),
        ("B=\"y\"\nA='x'\n", "line 1 must have the value of B in single quotes"),
        ("A ='x'\n", "line 1 must have no blank before the ="),
        ("\nexport\n", "line 2 must be NAME='value'"),
        ("='x'\n", "line 1 must be NAME='value'"),
        ("A='x'y\n", "line 1 must have nothing but a comment after the closing quote"),
        ("A='x''y'\n", "line 1 must have nothing but a comment after the closing quote"),
        ("A='x\n\ny\n", "line 1 has a single quote that no other one closes"),
        ("B='x\nA='y'\n", "line 2 must have nothing but a comment after the closing quote"),
    ],
)
@pytest.mark.parametrize("optional", [None, True])
def test_a_file_that_cannot_be_understood_is_named_with_its_line_even_if_it_is_optional(
    text, words, optional
):
    with pytest.raises(DataMissing) as refused:
        values(text, selector(optional=optional))
    assert f'file app.env of volume "made" cannot be understood: its {words}' in refused.value.message


@pytest.mark.parametrize("text", [None, "", "B='y'\n", "A=''\n", "A= 'x'\n"])
def test_a_missing_value_is_waited_for_unless_it_is_optional(text):
    with pytest.raises(DataMissing, match=r"set optional: true"):
        values(text)
    assert values(text, selector(optional=True)) == {}


def test_a_file_that_cannot_be_read_is_never_optional():
    with pytest.raises(DataMissing, match=r'file app.env of volume "made" is not text'):
        values(None, selector(optional=True), problem="is not text")


def test_the_agent_does_not_miss_what_only_the_runtime_reads():
    one = container()
    assert not [*problems(pod(one), one)]
    password = EnvVar("P", value_from=EnvVarSource(secret_key_ref=SecretKeySelector("db", "password")))
    both = one._replace(env=(*one.env, password))
    assert 'Secret "db" is not there' in missing_data(pod(both), both, {})


def test_only_plain_files_of_the_volume_are_read(tmp_path):
    volume = tmp_path / "volume"
    (volume / "dir").mkdir(parents=True)
    (tmp_path / "secret.env").write_text("A='of the host'\n")
    (volume / "dir" / "real.env").write_text("A='x'\n")
    (volume / "link.env").symlink_to("dir/real.env")
    (volume / "out.env").symlink_to("../secret.env")
    (volume / "root.env").symlink_to(tmp_path / "secret.env")
    (volume / "binary.env").write_bytes(b"A='\xff'\n")
    (volume / "nul.env").write_bytes(b"A='\0'\n")
    (volume / "large.env").write_bytes(b"#" * ((1 << 20) + 1))
    os.mkfifo(volume / "pipe.env")
    found = {
        name: read_env_file(str(volume), name)
        for name in (*(file.name for file in volume.iterdir()), "none.env", "none/x")
    }
    assert found == {
        "dir": EnvFile(problem="is not a plain file"),
        "link.env": EnvFile("A='x'\n"),
        "out.env": EnvFile(problem="leads out of the volume"),
        "root.env": EnvFile(problem="leads out of the volume"),
        "binary.env": EnvFile(problem="is not text"),
        "nul.env": EnvFile(problem="is not text"),
        "large.env": EnvFile(problem="has more than 1 MiB"),
        "pipe.env": EnvFile(problem="is not a plain file"),
        "none.env": EnvFile(),
        "none/x": EnvFile(),
    }


def test_a_start_has_the_files_as_they_are_then_and_waits_for_what_is_missing(tmp_path):
    one = container(selector(), selector("B", optional=True))
    paths = state_paths(str(tmp_path))
    launch = Launch(Attempt("u-1", "app", 1), pod(one), one, "/c", None)
    directory = Path(paths.volume("u-1", "made"))
    directory.mkdir(parents=True)
    with pytest.raises(WrongConfig) as waits:
        with_env_files(launch, paths)
    assert waits.value.reason == "CreateContainerConfigError"
    assert "is not there: let an init container write it" in waits.value.message
    (directory / "app.env").write_text("A='x'\n")
    data = with_env_files(launch, paths).data
    assert declared(launch.pod, one, data) == {"V0": "x"}
