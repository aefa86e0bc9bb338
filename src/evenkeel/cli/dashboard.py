"""`evenkeel dashboard`: the page of this machine's agent, for a browser on this machine."""

import argparse
import asyncio
import os
import signal
import sys

from evenkeel.cli.arguments import add_state_flag
from evenkeel.cli.client import client_from
from evenkeel.server.dashboard_proxy import serve_dashboard

USAGE = "[--port PORT] [--state-dir PATH]"
EXAMPLES = """examples:
  evenkeel dashboard               print an address for your browser; Ctrl-C ends it
  evenkeel dashboard --port 8001   at that port; to see it from another machine, forward the port:
                                   ssh -L 8001:127.0.0.1:8001 root@BOX evenkeel dashboard --port 8001

The address has a key that never leaves the browser. It serves the browser that opens it first. The page reads, and
changes nothing.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--port", type=_port, default=0, metavar="PORT", help="the port on 127.0.0.1 (default: a free one)"
    )
    add_state_flag(parser)


def run(args: argparse.Namespace) -> int:
    client_from(args).get("/healthz")  # reports that there is no agent
    return asyncio.run(_serve(os.path.abspath(args.state_dir), args.port))


async def _serve(state_dir: str, port: int) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    dashboard = await serve_dashboard(state_dir, port)
    try:
        print(dashboard.address, flush=True)
        print("open it in a browser on this machine; Ctrl-C ends it", file=sys.stderr)
        await stop.wait()
    finally:
        await dashboard.close()
    return 0


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f'"{text[:40]}" is not a port from 0 to 65535')
    return int(text)
