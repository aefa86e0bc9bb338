"""A fuzzer that failed names its seed, whatever it failed of."""

from collections.abc import Generator

import pytest

from tests.fuzz.mutation import given


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and call.when == "call" and given:
        again = f"EVENKEEL_SEED={given[0]} EVENKEEL_FUZZ_SECONDS=0 repeats it"
        report.sections.append(("the fuzzer's input", f"seed {given[0]}; {again}"))
    return report
