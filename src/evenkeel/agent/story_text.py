"""The story of a pod in sentences, for the terminal and for the page."""

from evenkeel.agent.story import Chapter, Other, Story
from evenkeel.api.resources import CPU
from evenkeel.policy.eviction.message import readable
from evenkeel.policy.eviction.usage import Resource

_PLAIN = ("Started", "Killing", "Spared", "Evicted", "BackOff", "Returning")  # their messages say it all


def sentence(chapter: Chapter) -> str:
    text = chapter.message or chapter.reason
    if chapter.reason not in _PLAIN and chapter.reason.lower() not in text.lower():
        text = f"{chapter.reason}: {text}"
    if text.partition(" ")[0].isalpha():  # names and signals are written as they are
        text = text[:1].upper() + text[1:]
    if chapter.times > 1:
        text = f"{text.rstrip('.')}; {chapter.times} times until then"
    return text if text.endswith((".", "!", "?")) else f"{text}."


def stayed_sentence(other: Other, resource: str) -> str:
    """Of a pod that was considered; `resource` is what was short."""
    seen = other.pod
    used = "unknown" if seen.usage is None else _amount(seen.usage, resource)
    request = f" of its request of {_amount(seen.request, resource)}" if seen.request else ""
    who = f"{seen.pod} ({seen.qos_class}, priority {seen.priority})" if seen.qos_class else seen.pod
    return f"{who}, using {used}{request}, {other.why}."


def _amount(amount: int, resource: str) -> str:
    if resource == CPU:
        return f"{amount}m cpu"
    return readable(amount, Resource(resource) if resource else Resource.MEMORY)


def end_sentence(story: Story) -> str:
    if not story.is_held:
        return "It is gone; nobody asks for it any more."
    if story.reason:
        return f"It is {story.phase} now: {story.reason}."
    return f"It is {story.phase} now."
