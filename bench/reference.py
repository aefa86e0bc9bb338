"""The C programs that figures stand beside: they make the system calls and nothing else."""

import subprocess
from pathlib import Path


def compiled(name: str, directory: str | Path, *flags: str) -> Path:
    """The program made of bench/`name`.c, in `directory`."""
    program = Path(directory) / name
    source = Path(__file__).with_name(f"{name}.c")
    subprocess.run(["cc", "-O2", *flags, "-o", program, source], check=True)
    return program
