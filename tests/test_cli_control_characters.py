"""Text of a container reaches the user's terminal without its control characters."""

import io
import json
import logging
import tarfile
from pathlib import Path

import pytest
import yaml

from evenkeel.cli import interactive, main
from evenkeel.cli.output import Paint, print_structured, printable_lines
from evenkeel.cli.tar_streams import read_tree
from evenkeel.cli.up import PlainFormatter
from evenkeel.cli.up_view import line_of
from evenkeel.errors import EvenkeelError
from evenkeel.journal.records import WARNING, Event
from evenkeel.runtime.sessions import SessionEnd

HOSTILE = "\x1b]0;title\x07\x1b[2J\rfine\u202e"


def is_harmless(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_an_error_that_quotes_a_container(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fails(_: object) -> int:
        raise EvenkeelError(f"tar failed: {HOSTILE}\nsecond line", hint=HOSTILE)

    monkeypatch.setattr("evenkeel.cli.cp.run", fails)
    assert main.main(["cp", "web:/x", "."]) == 1
    said = capsys.readouterr().err
    assert is_harmless(said)
    assert "second line" in said


def test_the_end_of_a_command(capsys: pytest.CaptureFixture[str]):
    interactive.exit_code(SessionEnd(126, f"command {HOSTILE} cannot be executed", HOSTILE))
    assert is_harmless(capsys.readouterr().err)


def test_names_in_the_tar_stream_of_a_container(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        link = tarfile.TarInfo(f"./x/{HOSTILE}")
        link.type, link.linkname = tarfile.SYMTYPE, "/"
        tar.addfile(link)
    stream.seek(0)
    read_tree(stream, "x", str(tmp_path / "x"))
    assert is_harmless(capsys.readouterr().err)


def test_events_and_log_lines_of_the_agent():
    event = Event(0.0, WARNING, "Unhealthy", f"said {HOSTILE}\n00:00:00 Started another", "default/web")
    line = line_of(event, Paint(enabled=False))
    assert is_harmless(line)
    assert "\n" not in line
    record = logging.LogRecord("x", logging.WARNING, "x", 1, "%s", (HOSTILE,), None)
    assert is_harmless(PlainFormatter("%(levelname)s %(message)s").format(record))


def test_lines_stay_lines():
    assert printable_lines(f"a\n{HOSTILE[0]}b") == "a\n\\x1bb"


@pytest.mark.parametrize("form", ["json", "yaml"])
def test_json_and_yaml_are_the_same_values_without_control_characters(
    capsys: pytest.CaptureFixture[str], form: str
):
    value = {"message": f"{HOSTILE}\x9b2J\u2028\U000e0001", "plain": "grün \N{SNOWMAN}\nsecond"}
    print_structured(value, form)
    said = capsys.readouterr().out
    assert is_harmless(said)
    assert (json.loads if form == "json" else yaml.safe_load)(said) == value
    print_structured({"plain": value["plain"]}, form)
    assert "grün" in capsys.readouterr().out
