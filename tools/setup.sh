#!/bin/sh
# Makes the virtual environment $VENV with $PYTHON and installs this project with its development tools.
# On Debian the venv module is a package of its own; as root we install it, otherwise we say how.
set -eu

fail() {
    printf 'setup: %s\n' "$1" >&2
    exit 1
}

command -v "$PYTHON" >/dev/null || fail "$PYTHON not found: install Python 3.11 or newer, or name it with PYTHON=…"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$PYTHON is $("$PYTHON" -V 2>&1), 3.11 or newer is needed: name another one with PYTHON=…"

if ! "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null; then
    [ "$(id -u)" = 0 ] || fail "$PYTHON has no venv module: run 'sudo apt-get install python3-venv' and try again"
    command -v apt-get >/dev/null || fail "$PYTHON has no venv module: install it with your package manager and try again"
    # On a new machine the system's own update may hold the lists, for which apt does not wait.
    tries=300
    until said=$(LC_ALL=C.UTF-8 apt-get -qq update 2>&1); do
        case $said in *"Unable to lock directory"*) ;; *) fail "apt-get update: $said" ;; esac
        [ $((tries -= 1)) -gt 0 ] || fail "apt-get update: $said"
        sleep 1
    done
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install -y --no-install-recommends python3-venv >/dev/null
fi

"$PYTHON" -m venv --clear "$VENV"
PIP_CONSTRAINT=constraints.txt PIP_DISABLE_PIP_VERSION_CHECK=1 \
    "$VENV/bin/python" -m pip install --quiet --editable '.[dev]'
