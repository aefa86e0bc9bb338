"""The command line as a whole: exit codes, sentences, and never a traceback."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from evenkeel import __version__
from evenkeel.cli import kubectl_words
from evenkeel.cli.main import COMMANDS, main

ROOT = Path(__file__).parent.parent
WEB = str(ROOT / "examples" / "web.yaml")


def run(*arguments):
    """Runs `main`. Returns its exit code, and its output on both streams."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str | None
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse's own
            code = end.code
    return code, out.getvalue(), err.getvalue()


def test_without_a_command_it_lists_them_all():
    code, out, _ = run()
    assert code == 2
    for name, line in COMMANDS.items():
        assert name in out
        assert line[:30] in out


def test_help_and_version():
    assert run("--version") == (0, f"evenkeel {__version__}\n", "")
    assert run("--help")[0] == 0


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_help_with_examples(command):
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"usage: evenkeel {command} ")
    assert "examples:" in out


def test_the_help_of_a_command_lists_the_flags_of_the_configuration():
    assert "--kube-reserved" in run("explain", "--help")[1]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["explian"], 'there is no command "explian"; did you mean explain?'),
        (["xyzzy"], "explain, validate"),
        (["explain"], "the following arguments are required: -f/--filename"),
        (["explain", "-f"], "expected at least one argument"),
        (
            ["explain", "-f", WEB, "--bogus"],
            "evenkeel explain: error: unrecognized arguments: --bogus; evenkeel explain --help lists what it takes",
        ),
        (["explain", "-f", WEB, "--cgroup", "v3"], "invalid choice"),
        (["explain", "-f", WEB, "-o", "xml"], "invalid choice"),
        (["explain", "-f", WEB, "--nod", "32Gi"], "unrecognized arguments"),
        (["completion", "fish"], "invalid choice"),
        (["patch", "pod", "x"], 'there is no command "patch": change the file and apply it again'),
        (["version"], 'there is no command "version": evenkeel --version prints it'),
        (["apply", "-k", "."], "apply has no -k: kustomize build DIRECTORY | evenkeel apply -f -"),
        (["apply", "-f", WEB, "--dry-run=client"], "apply has no --dry-run: validate -f FILE checks it"),
        (["rollout", "undo", "deploy/web"], "rollout undo: there are no old revisions here"),
        (["rollout", "status", "deploy/web", "-w=false"], "rollout has no -w"),
        (["explain", "pod.spec"], "explain shows what a node makes of manifests: give -f FILE"),
        (["exec", "--bogus", "web", "--", "x", "-f"], "unrecognized arguments: --bogus"),
        (["wait", "--for=soon", "pod/web"], '"soon" is not condition=NAME'),
        (["logs", "web", "--since-time", "noon"], '"noon" is not a time such as'),
        (["logs", "web", "--limit-bytes", "0"], '"0" is not a number of bytes, 1 or more'),
    ],
)
def test_wrong_usage_is_reported_with_exit_code_2(arguments, words):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert words in err


def test_what_kubectl_has_and_this_has_not_is_answered_and_never_hides_a_command():
    assert not kubectl_words.COMMANDS.keys() & COMMANDS.keys()
    assert kubectl_words.FLAGS.keys() <= COMMANDS.keys()
    for command, flags in kubectl_words.FLAGS.items():
        told = run(command, "--help")[1].partition("options:")[2].partition("examples:")[0]
        starts = [line.split("  ")[1] for line in told.splitlines() if line.startswith("  -")]
        taken = {word.rstrip(",") for start in starts for word in start.split()}
        assert not flags.keys() & taken, command


@pytest.fixture
def odd_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "binary").write_bytes(b"\x7fELF\xff\x00")
    (tmp_path / "empty").mkdir()
    (tmp_path / "nul").write_bytes(b"a\0b")
    (tmp_path / "list").write_text("- 1\n")
    return tmp_path


@pytest.mark.parametrize(
    "name, words",
    [
        ("nope", "no such file or directory"),
        ("pipe", "it is not a file"),
        ("binary", "is not text in UTF-8"),
        ("empty", "holds no manifest"),
        ("nul", "is not YAML"),
        ("list", "must be an object with apiVersion and kind, not a list"),
    ],
)
@pytest.mark.parametrize("command", ["explain", "validate"])
def test_files_that_are_no_manifests_end_in_a_sentence(odd_files, command, name, words):
    code, _, err = run(command, "-f", str(odd_files / name))
    assert code == 1
    assert words in err
    assert err.count("\n") == 1


def test_every_mistake_of_the_configuration_is_reported_at_once():
    code, _, err = run(
        "explain", "-f", WEB, "--max-pods=x", "--cpu-cfs-quota=maybe", "--cpu-cfs-quota-period=5"
    )
    assert code == 1
    assert [line.partition(":")[0] for line in err.splitlines()] == [
        "--max-pods",
        "--cpu-cfs-quota",
        "--cpu-cfs-quota-period",
    ]


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion_knows_commands_and_flags(shell):
    code, out, _ = run("completion", shell)
    assert code == 0
    assert "explain" in out
    assert "kube-reserved" in out


def evenkeel(redirection="", *arguments, **environment):
    """The installed command in a shell of its own, with `redirection` after it."""
    words = " ".join(f"'{argument}'" for argument in arguments)
    return subprocess.run(
        ["sh", "-c", f'"$0" -m evenkeel {words} {redirection}', sys.executable],
        capture_output=True,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


EXPLAIN = ("explain", "-f", WEB, "--node", "32Gi,8cpu")


def test_a_reader_that_leaves_early_is_no_error():
    done = evenkeel("-a | head -1", *EXPLAIN)
    assert done.stdout.startswith(b"node: cpu 8")
    assert done.stderr == b""
    assert evenkeel("| true", "explain", "--help").stderr == b""


def test_a_full_disk_is_reported():
    done = evenkeel("> /dev/full", *EXPLAIN)
    assert done.returncode == 1
    assert done.stderr == b"evenkeel: no space left on device\n"


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", "<&-"])
def test_closed_streams_are_no_error(closed):
    done = evenkeel(closed, *EXPLAIN)
    assert done.returncode == 0
    assert done.stderr == b""


def test_a_terminal_that_cannot_show_a_character_is_shown_another(tmp_path):
    done = evenkeel("", *EXPLAIN, PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert b"kubepods" in done.stdout
    file = os.fsencode(tmp_path) + b"/\xff.yaml"
    with open(file, "wb") as stream:  # noqa: PTH123
        stream.write(b"a: 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "evenkeel", "validate", "-o", "json", "-f", file],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        check=False,
    )
    assert done.returncode == 1
    assert b"Traceback" not in done.stderr
    assert b"is no Kubernetes object" in done.stdout


def test_an_interrupt_ends_it_quietly(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("evenkeel.cli.validate.run", interrupted)
    assert run("validate", "-f", WEB) == (130, "", "")


_FLAGS = st.sampled_from(
    [
        "-f",
        "-o",
        "--node",
        "--cgroup",
        "--init",
        "--all",
        "--pressure",
        "--config",
        "--profile",
        "--kube-reserved",
        "--system-reserved",
        "--enforce-node-allocatable",
        "--eviction-hard",
        "--cgroup-root",
        "--cgroups-per-qos",
        "--cpu-manager-policy",
        "--reserved-cpus",
        "--feature-gates",
        "--memory-throttling-factor",
        "--max-pods",
        "--",
    ]
)
_VALUES = st.sampled_from(
    [
        WEB,
        "json",
        "yaml",
        "32Gi,8cpu",
        "1,1",
        "v1",
        "systemd",
        "kubernetes",
        "documents",
        "memory=1Gi",
        "memory=1Ei",
        "cpu=-1",
        "pods,kube-reserved",
        "",
        "memory.available<100Mi",
        "memory.available<101%",
        "/a/../b",
        "//",
        "static",
        "0-3",
        "0-99999",
        "MemoryQoS=false",
        "true",
        "0",
        "nan",
        "1e999",
        "-1",
        "=",
    ]
)
_WORDS = _FLAGS | _VALUES | st.tuples(_FLAGS, _VALUES).map("=".join) | st.text(max_size=6)


@pytest.mark.req("A3")
@settings(max_examples=150)
@given(st.sampled_from(["explain", "validate"]), st.lists(_WORDS, max_size=6))
@example("explain", ["--node", "\ud800"])
@example("explain", ["--config", "\0"])
def test_no_words_on_the_command_line_end_in_a_traceback(command, words):
    code, _, err = run(command, "-f", WEB, *words)
    assert code in (0, 1, 2)
    assert code == 0 or err or "--pressure" in words or "--node" in " ".join(words)
    assert "Traceback" not in err


@settings(max_examples=50)
@given(st.lists(st.text(max_size=8) | st.sampled_from(sorted(COMMANDS)), max_size=2))
def test_no_word_for_a_command_ends_in_a_traceback(words):
    words = [word for word in words if word not in ("plan", "doctor", "up", "demo")]  # these use the machine
    with patch.dict(
        os.environ, EVENKEEL_STATE_DIR="/nonexistent"
    ):  # not the agent that may run on this machine
        assert run(*words)[0] in (0, 1, 2)


def test_a_node_that_is_said_to_be_larger_than_the_machine_is_reported():
    from evenkeel.cli.up import beyond_machine
    from evenkeel.policy.allocatable import NodeCapacity

    machine = NodeCapacity(millicpu=2000, memory_bytes=2**30)
    assert list(beyond_machine(machine, machine)) == []
    assert list(beyond_machine(NodeCapacity(8000, 2**40), machine)) == [
        "8 cpu are more than the 2 of this machine",
        "1Ti of memory is more than the 1Gi of this machine",
    ]
