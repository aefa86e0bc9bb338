"""Whether anything was mounted or unmounted: the kernel tells those who poll."""

import os
import select


class MountWatch:
    def __init__(self) -> None:
        self._descriptor = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._poll = select.poll()
        self._poll.register(self._descriptor, select.POLLPRI)

    def have_changed(self) -> bool:
        """Since it was last asked."""
        return bool(self._poll.poll(0))

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
