"""Draws docs/explain.svg and, as root, docs/demo.svg: what the commands show on a terminal."""

import contextlib
import fcntl
import io
import os
import pty
import re
import struct
import sys
import termios
from html import escape
from pathlib import Path

from evenkeel.cli.main import main

ROOT = Path(__file__).parent.parent
EXPLAIN = [
    "explain",
    "-f",
    "examples/web.yaml",
    "--node",
    "32Gi,8cpu",
    "--system-reserved",
    "memory=1Gi,cpu=500m",
]
DEMO = ["demo", "guaranteed"]
COLUMNS = 118
COLOURS = {"1": "#ffffff", "2": "#8b949e", "31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff"}
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 18, 7.83, 16


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(command: list[str], shown: str) -> str:
    text = "\x1b[1m$ evenkeel " + " ".join(command) + "\x1b[0m\n" + shown
    lines = text.splitlines()
    width = round(max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines) * CHARACTER_WIDTH) + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    rows = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (index + 0.75):.0f}" xml:space="preserve">{spans(line)}</text>'
        for index, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>{escape('evenkeel ' + ' '.join(command))}</title>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
        '<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="13" fill="#c9d1d9">\n'
        f"{rows}\n</g></svg>\n"
    )


def spans(line: str) -> str:
    """The line with its colours, each run placed by its column so that no font can shift it."""
    parts, column, colour = [], 0, ""
    for piece in re.split(r"(\x1b\[\d+m)", line):
        if code := re.fullmatch(r"\x1b\[(\d+)m", piece):
            colour = COLOURS.get(code[1], "")
        elif piece:
            fill = f' fill="{colour}"' if colour else ""
            x = MARGIN + column * CHARACTER_WIDTH
            length = len(piece) * CHARACTER_WIDTH
            parts.append(f'<tspan x="{x:.1f}" textLength="{length:.1f}"{fill}>{escape(piece)}</tspan>')
            column += len(piece)
    return "".join(parts)


def explained() -> str:
    screen = Terminal()
    with contextlib.redirect_stdout(screen), contextlib.chdir(ROOT):
        main(EXPLAIN)
    return screen.getvalue()


def demonstrated() -> str:
    """The last screen of the demonstration on a terminal."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "evenkeel", *DEMO])
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    written = b""
    with contextlib.suppress(OSError):  # which is how a terminal ends
        while part := os.read(terminal, 65536):
            written += part
    os.waitpid(pid, 0)
    return seen(written.decode())


def seen(written: str) -> str:
    """The text that is on the screen at the end: the table is drawn over itself, with cursor movements."""
    lines, row = [""], 0
    for token in re.findall(r"\x1b\[\d*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b") and token.endswith("A"):
            row -= int(token[2:-1])
        elif token == "\x1b[2K":
            lines[row] = ""
        elif token == "\x1b[J":
            del lines[row:]
            lines.append("")
        elif token != "\r":
            lines[row] += token
    return "\n".join(lines).strip("\n")


if __name__ == "__main__":
    (ROOT / "docs/explain.svg").write_text(draw(EXPLAIN, explained()))
    if os.geteuid() == 0:
        (ROOT / "docs/demo.svg").write_text(draw(DEMO, demonstrated()))
