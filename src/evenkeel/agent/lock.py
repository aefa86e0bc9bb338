"""One agent a state directory: a lock that the kernel lets go when its holder ends, however it ends."""


class StateLock:
    @classmethod
    def acquire(cls, directory: str) -> "StateLock":
        """Locks `directory`/lock; an EvenkeelError that names the holder if another has it."""
        raise NotImplementedError

    def release(self) -> None:
        raise NotImplementedError
