"""The process that holds a container's place in its scope until the first of the container's own is there."""

import subprocess

from evenkeel.cgroup.driver import CgroupError

PLACEHOLDER = "evenkeel.placeholder"  # the cgroup it is in, below the scope's

# The shell leaves at once, so that init is the parent and nobody has to wait for it.
_SLEEP = "sleep infinity </dev/null >/dev/null 2>&1 & echo $!"


def sleeping_process(path: str) -> int:
    try:
        done = subprocess.run(  # noqa: S603 no word of it comes from outside
            ["/bin/sh", "-c", _SLEEP],
            capture_output=True,
            check=True,
            cwd="/",
            env={"PATH": "/usr/bin:/bin"},
            start_new_session=True,
            text=True,
        )
        return int(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise CgroupError(
            f"cannot make cgroup {path}: a scope needs a process, and /bin/sh could not start sleep: {error}",
            path=path,
        ) from None
