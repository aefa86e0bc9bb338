"""The page's own files, which are part of the package: read when asked for, so that nobody who does not look pays."""

import os

from evenkeel.server.http import Answer, Refused

_DIRECTORY = os.path.join(os.path.dirname(__file__), "page")
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# Nothing from elsewhere is loaded, nothing goes elsewhere, and no text can become script, whoever wrote it.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
)


def page_file(name: str) -> Answer:
    """One of those that are there; Refused for anything else, so that a name never becomes another path."""
    names = os.listdir(_DIRECTORY)
    content_type = _TYPES.get(os.path.splitext(name)[1])
    if name not in names or content_type is None:
        raise Refused(404, f'the page has no file "{name[:80]}"')
    with open(os.path.join(_DIRECTORY, name), "rb") as file:
        return Answer(file.read(), content_type=content_type, headers=_HEADERS)
