"""Which start of the machine this is: what is counted since then means nothing after the next."""

from evenkeel.errors import EvenkeelError
from evenkeel.host.files import read_text


def boot_id() -> str:
    """Empty where nobody can know."""
    try:
        return read_text("/proc/sys/kernel/random/boot_id").strip()
    except EvenkeelError:
        return ""
