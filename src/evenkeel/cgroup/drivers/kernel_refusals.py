"""Refusals of the kernel: from an errno to a sentence, with the fix where one is known."""

import errno

from evenkeel.cgroup.driver import CgroupError
from evenkeel.errors import reason as reason_of

# The kernel version in which a file first appeared, for files that many machines still lack.
_SINCE = {
    "cpu.max.burst": "5.14",
    "cpu.cfs_burst_us": "5.14",
    "cgroup.kill": "5.14",
    "cpu.idle": "5.15",
    "memory.oom.group": "4.19",
    "memory.min": "4.18",
    "cgroup.freeze": "5.2",
    "memory.reclaim": "5.19",
}
_ACCOUNTING = "swap is not accounted: boot with swapaccount=1, on a kernel built with it"
_WHY_ABSENT = {
    "memory.swap.max": _ACCOUNTING,
    "memory.memsw.limit_in_bytes": _ACCOUNTING,
}

_MEANINGS = {
    errno.EACCES: ("permission denied", "run as root, or give this user the cgroup"),
    errno.EPERM: ("not permitted", "run as root; a container needs the cgroup filesystem writable"),
    errno.EROFS: ("the cgroup filesystem is mounted read-only", "mount it again with -o remount,rw"),
    errno.ENODEV: ("the cgroup vanished", "it is made again on the next pass"),
    errno.ENOENT: ("the cgroup vanished", "it is made again on the next pass"),
    errno.EINVAL: ("the kernel does not take this value", ""),
    errno.ERANGE: ("the value is out of the kernel's range", ""),
    errno.ENOSPC: ("the kernel has no room for it", ""),
    errno.ENOMEM: (
        "the kernel has no memory for it",
        "a limit on memory above it may be too small to hold it",
    ),
    errno.EAGAIN: (
        "a limit on the number of cgroups is reached",
        "see cgroup.max.descendants and cgroup.max.depth above it",
    ),
    errno.EOPNOTSUPP: ("the kernel does not do this here", ""),
    errno.ESRCH: ("the process has ended", ""),
    errno.EBUSY: ("it is in use", ""),
    errno.EMFILE: ("too many open files", "raise the limit: ulimit -n 20000, or LimitNOFILE= in a unit"),
    errno.ENFILE: ("the system has too many open files", "raise fs.file-max"),
    errno.ELOOP: ("it is a symbolic link", "a cgroup filesystem has none: is this one?"),
    errno.ENOTDIR: ("it is no directory", "a cgroup filesystem has no other: is this one?"),
}
# The meaning of an errno for one file, where it says more than in general.
_OF_FILE = {
    ("cgroup.procs", errno.EBUSY): (
        "it has cgroups below it",
        "on cgroup v2 processes live in the cgroups at the ends of the tree",
    ),
    ("cgroup.procs", errno.EOPNOTSUPP): ("it is threaded", "processes live in cgroups of type domain"),
    ("cgroup.procs", errno.ENOSPC): (
        "its cpuset has no CPUs or no memory nodes",
        "write cpuset.cpus and cpuset.mems",
    ),
    ("cgroup.subtree_control", errno.EBUSY): (
        "processes run in it, and cgroup v2 has none in a cgroup that hands controllers on",
        "move them to a cgroup of their own below it",
    ),
    ("cgroup.subtree_control", errno.EOPNOTSUPP): ("it is threaded", ""),
    ("memory.limit_in_bytes", errno.EBUSY): (
        "more than that is in use and cannot be reclaimed",
        "the limit stays as it was; stop something in the cgroup, or let it be evicted",
    ),
    ("memory.memsw.limit_in_bytes", errno.EBUSY): (
        "more memory and swap than that are in use",
        "the limit stays as it was; stop something in the cgroup, or let it be evicted",
    ),
    ("memory.limit_in_bytes", errno.EINVAL): (
        "the kernel does not take this value",
        "it must not be above memory.memsw.limit_in_bytes",
    ),
    ("memory.memsw.limit_in_bytes", errno.EINVAL): (
        "the kernel does not take this value",
        "it must not be below memory.limit_in_bytes",
    ),
    ("cpuset.cpus", errno.EBUSY): ("a cgroup below it has CPUs that would be taken away", ""),
    ("cpuset.cpus", errno.EACCES): ("the cgroup above it does not have these CPUs", ""),
    ("cpuset.cpus", errno.EINVAL): ("the machine or the cgroup above it does not have these CPUs", ""),
    ("cpuset.cpus", errno.ERANGE): ("the machine does not have these CPUs", ""),
    ("cpuset.cpus", errno.ENOSPC): ("processes run in it, and would be left without a CPU", ""),
    ("cpu.cfs_quota_us", errno.EINVAL): (
        "the kernel does not take this value",
        "on cgroup v1 it must not be above the quota of the cgroup above it, nor below 1000",
    ),
    ("cpu.max.burst", errno.EINVAL): ("the burst is more than the quota", ""),
    ("cpu.cfs_burst_us", errno.EINVAL): ("the burst is more than the quota", ""),
}


class NotAvailable(CgroupError):
    """The cgroup exists, and the kernel has no such file."""


class MissingController(CgroupError):
    """The file belongs to a controller that the cgroup does not have and cannot get. `where` is the cgroup that does
    not enable it; "/" if the whole hierarchy lacks it."""

    def __init__(
        self, message: str, *, path: str, file: str, controller: str, where: str = "/", hint: str = ""
    ) -> None:
        super().__init__(message, path=path, file=file, reason="ENOENT", hint=hint)
        self.controller = controller
        self.where = where


# Kubelet does without these too: they limit something rare, and nothing depends on them.
_OPTIONAL_CONTROLLERS = ("hugetlb",)


def without_controller(path: str, file: str, why: str, *, where: str = "/", hint: str = "") -> CgroupError:
    """The error for a file whose controller is missing at `where`. A missing optional one is only not available."""
    controller = file.partition(".")[0]
    message = f"cgroup {path} has no {file}: {why}"
    if controller in _OPTIONAL_CONTROLLERS:
        return NotAvailable(message, path=path, file=file, reason="ENOENT", hint=why)
    return MissingController(message, path=path, file=file, controller=controller, where=where, hint=hint)


def refusal(error: OSError, doing: str, path: str, file: str = "", value: str = "") -> CgroupError:
    """The error for `doing` ("write", "make", …) that the kernel refused."""
    number = error.errno or 0
    fallback = (reason_of(error), "")
    meaning, hint = _OF_FILE.get((file, number)) or _MEANINGS.get(number) or fallback
    reason = errno.errorcode.get(number, "")
    what = f"{file} of cgroup {path}" if file else f"cgroup {path}"
    of_value = f" {value[:80]} to" if value else ""
    kind = (
        NotAvailable
        if number == errno.EOPNOTSUPP and file and not file.startswith("cgroup.")
        else CgroupError
    )
    return kind(
        f"cannot {doing}{of_value} {what}: {meaning} ({reason or 'refused'})",
        path=path,
        file=file,
        reason=reason,
        hint=hint,
    )


def not_available(path: str, file: str) -> NotAvailable:
    version = "5.7" if ".rsvd." in file else _SINCE.get(file)
    since = f"it came with Linux {version}" if version else _WHY_ABSENT.get(file, "")
    return NotAvailable(
        f"{file} of cgroup {path} is not available on this kernel",
        path=path,
        file=file,
        reason="ENOENT",
        hint=since,
    )
