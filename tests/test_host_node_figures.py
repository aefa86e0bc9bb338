"""The machine's own figures, from literal kernel text."""

from evenkeel.host.node_figures import machine_figures, parse_stat, parse_vmstat

STAT = """\
cpu  100 20 30 4000 50 6 7 8 0 0
cpu0 50 10 15 2000 25 3 3 4 0 0
intr 12345 0 0
ctxt 999
btime 1794000000
processes 4321
"""


def test_cpu_time_is_what_was_worked_not_what_was_idled_or_waited():
    assert parse_stat(STAT, 100) == ((100 + 20 + 30 + 6 + 7 + 8) * 10_000, 1_794_000_000.0)


def test_a_kernel_without_steal_time_is_read_too():
    assert parse_stat("cpu  1 2 3 4 5\nbtime 7\n", 100) == (60_000, 7.0)


def test_vmstat_is_read_line_by_line():
    assert parse_vmstat("pgfault 12\npgmajfault 3\nodd\n") == {"pgfault": 12, "pgmajfault": 3}


def test_memory_is_reported_as_kubelet_counts_it(tmp_path):
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "vmstat").write_text("pgfault 12\npgmajfault 3\n")
    (tmp_path / "meminfo").write_text(
        "MemTotal: 1000 kB\nMemFree: 300 kB\nMemAvailable: 600 kB\nInactive(file): 200 kB\nAnonPages: 100 kB\n"
        "SwapTotal: 50 kB\nSwapFree: 20 kB\n"
    )
    figures = machine_figures(str(tmp_path))
    assert figures.memory_working_set_bytes == 500 * 1024
    assert (figures.swap_total_bytes, figures.swap_used_bytes) == (50 * 1024, 30 * 1024)
    assert (figures.page_faults, figures.major_page_faults) == (12, 3)
    assert figures.pressures is None
