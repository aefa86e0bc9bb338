"""What commands are told to look at: `pods`, `pod web`, `po/web`, `node`."""

from collections.abc import Sequence

from evenkeel.errors import EvenkeelError

PODS, NODE, EVENTS = "pods", "node", "events"
_WORDS = {
    **dict.fromkeys(("pods", "pod", "po"), PODS),
    **dict.fromkeys(("node", "nodes", "no"), NODE),
    **dict.fromkeys(("events", "event", "ev"), EVENTS),
}


def named(words: Sequence[str], default: str = "") -> tuple[str, list[str]]:
    """The kind and the names in `words`. Without a kind, all are names of the `default` kind."""
    if not words:
        return default, []
    first, *rest = words
    if "/" in first:
        kinds, names = zip(
            *(word.split("/", 1) if "/" in word else ("", word) for word in words), strict=True
        )
        if len(set(kinds)) > 1:
            raise EvenkeelError(f"{' '.join(words)[:100]}: name things of one kind, all as KIND/NAME")
        return _kind(kinds[0]), list(names)
    if default and (first not in _WORDS or not rest):
        return default, list(words)
    return _kind(first), rest


def _kind(word: str) -> str:
    kind = _WORDS.get(word.lower())
    if kind is None:
        raise EvenkeelError(f'there is no kind "{word[:40]}"', hint="there are pods, node and events")
    return kind
