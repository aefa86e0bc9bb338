"""The kernel's "no" in words."""

import errno

CGROUP_REMOVED = "the cgroup was removed"

_WORDS = {
    errno.ENOENT: "the cgroup is not there, or its kernel has no such file",
    errno.ENODEV: CGROUP_REMOVED,
    errno.ENOSPC: "there are too many watches: raise them with sysctl -w fs.inotify.max_user_watches=65536",
    errno.EMFILE: "there are too many open files or inotify instances: raise them with ulimit -n and"
    " sysctl -w fs.inotify.max_user_instances=512",
    errno.EOPNOTSUPP: "the kernel was started without it: add psi=1 to its command line",
}


def reason(error: OSError) -> str:
    """Why it did not work, and what would help where that is known."""
    known = _WORDS.get(error.errno or 0)
    return known or (error.strerror or str(error)).lower()
