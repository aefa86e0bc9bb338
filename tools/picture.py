"""Draws docs/explain.svg, the README's picture: what `evenkeel explain` prints on a terminal."""

import contextlib
import io
import re
from html import escape
from pathlib import Path

from evenkeel.cli.main import main

ROOT = Path(__file__).parent.parent
COMMAND = [
    "explain",
    "-f",
    "examples/web.yaml",
    "--node",
    "32Gi,8cpu",
    "--system-reserved",
    "memory=1Gi,cpu=500m",
]
COLOURS = {"1": "#ffffff", "2": "#8b949e", "31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff"}
LINE_HEIGHT, CHARACTER_WIDTH, MARGIN = 18, 7.83, 16


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def draw(text: str) -> str:
    lines = text.splitlines()
    width = round(max(len(re.sub(r"\x1b\[\d+m", "", line)) for line in lines) * CHARACTER_WIDTH) + 2 * MARGIN
    height = len(lines) * LINE_HEIGHT + 2 * MARGIN
    rows = "\n".join(
        f'<text x="{MARGIN}" y="{MARGIN + LINE_HEIGHT * (index + 0.75):.0f}" xml:space="preserve">{spans(line)}</text>'
        for index, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">\n'
        f"<title>{escape('evenkeel ' + ' '.join(COMMAND))}</title>\n"
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


if __name__ == "__main__":
    screen = Terminal()
    with contextlib.redirect_stdout(screen), contextlib.chdir(ROOT):
        main(COMMAND)
    prompt = "\x1b[1m$ evenkeel " + " ".join(COMMAND) + "\x1b[0m\n"
    (ROOT / "docs/explain.svg").write_text(draw(prompt + screen.getvalue()))
