"""Kernels in user mode: what is done where there is none, and what they are kept from."""

from pathlib import Path

import pytest

from tests.machines import Unavailable, user_mode
from tests.machines.parts import BY_NAME, Part
from tests.machines.run import Request, run_part
from tests.machines.user_mode import one_processor


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """What a part would have run; by root."""
    requests: list[Request] = []

    def note(request: Request, _arguments: list[str]) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr("tests.machines.run.run_kernel_tests", note)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    return requests


def part() -> Part:
    return BY_NAME["user-mode-agents"]


def test_a_part_runs_on_the_kernel_that_it_names(ran: list[Request], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(user_mode, "require_user_mode", lambda: None)
    assert run_part(part(), reports=False) == 0
    assert [(request.machine, request.name) for request in ran] == [("user-mode", "user-mode-agents")]


def test_where_no_kernel_in_user_mode_is_to_be_had_its_tests_are_emulated(
    ran: list[Request], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse() -> None:
        raise Unavailable("no such package")

    monkeypatch.setattr(user_mode, "require_user_mode", refuse)
    assert run_part(part(), reports=False) == 0
    assert [(request.machine, request.name) for request in ran] == [("v2", "user-mode-agents")]
    assert capsys.readouterr().err == "user-mode-agents: emulated, which takes longer: no such package\n"


def test_two_machines_are_bound_to_two_processors_and_a_third_to_none(tmp_path: Path):
    with one_processor([4, 7], cache=tmp_path) as first, one_processor([4, 7], cache=tmp_path) as second:
        assert (first[-1], second[-1]) == ("4", "7")
        with one_processor([4, 7], cache=tmp_path) as third:
            assert third == []
    with one_processor([4, 7], cache=tmp_path) as again:
        assert again[-1] == "4"


@pytest.mark.parametrize(
    ("scope", "is_refused"), [(None, False), ("0", False), ("1", False), ("2", True), ("3", True)]
)
def test_a_machine_that_lets_nobody_trace_without_a_capability_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scope: str | None, is_refused: bool
):
    file = tmp_path / "ptrace_scope"
    if scope is not None:
        file.write_text(f"{scope}\n")
    monkeypatch.setattr(user_mode, "PTRACE_SCOPE", file)
    monkeypatch.setattr(user_mode, "kernel_modules", lambda: tmp_path)
    if not is_refused:
        user_mode.require_user_mode()
        return
    with pytest.raises(Unavailable, match="0 or 1 would do"):
        user_mode.require_user_mode()
