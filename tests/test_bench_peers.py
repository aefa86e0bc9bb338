"""How `bench peers` evaluates storms. The storms themselves need a disposable machine."""

from bench.bench_peers import (
    AGENT,
    EARLYOOM,
    KERNEL,
    KINDS,
    NOBODY,
    OOMD,
    Storm,
    available_mib,
    beside,
    compared,
    oom_kills,
    storm_of,
)

FAST = KINDS[0]


def storm(guard: str, seconds: float | None, by: str = "") -> Storm:
    return Storm(guard, FAST.name, by or guard, seconds, 100)


def test_a_storm_counts_for_its_guard_unless_the_kernel_stopped_it_or_it_was_not_stopped():
    said = "crossed 1000000000\nstopped 1250000000\nleast 102400\n"
    assert storm_of(EARLYOOM, FAST, said, is_kernels=False) == Storm(EARLYOOM, FAST.name, EARLYOOM, 0.25, 100)
    assert storm_of(EARLYOOM, FAST, said, is_kernels=True).by == KERNEL
    endless = storm_of(OOMD, FAST, "crossed 5\nleast 1024\n", is_kernels=False)
    assert (endless.by, endless.seconds, endless.least_mib) == (NOBODY, None, 1)


def test_only_storms_that_the_guard_stopped_have_a_time():
    ours = [storm(AGENT, 0.1), storm(AGENT, 0.2), storm(AGENT, 9.0, KERNEL), storm(AGENT, 0.3)]
    figure = beside("", ours, [storm(EARLYOOM, 0.4), storm(EARLYOOM, None, NOBODY)])
    assert (figure.value, figure.reference, figure.ratio, figure.met) == (200, 400, 0.5, True)
    alone = beside("", ours, [storm(OOMD, 1.0, KERNEL)])
    assert (alone.value, alone.reference, alone.met) == (200, None, None)
    assert not beside("", [storm(AGENT, 1.0, KERNEL)], [storm(EARLYOOM, 0.4)]).met


def test_a_storm_that_the_agent_left_to_the_kernel_is_a_target_missed():
    figures = list(compared([storm(AGENT, 0.1), storm(AGENT, 0.2, KERNEL), storm(EARLYOOM, 0.4)]))
    (left,) = [one for one in figures if one.name.startswith(f"storms {FAST.name} not stopped by {AGENT}")]
    assert (left.value, left.unit, left.met) == (1, "of 2", False)
    assert "1 by evenkeel, 1 by the kernel; 100 MiB left" in left.name


def test_the_kernel_s_own_figures_are_found_among_the_others():
    assert oom_kills("oom_kill_disable 7\noom_kill 3\nnuma_hit 5\n") == 3
    assert available_mib("MemTotal:  997376 kB\nMemAvailable:   817152 kB\nHugePages_Total:       0\n") == 798
