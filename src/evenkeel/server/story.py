"""A pod's story (`evenkeel why`) as JSON: the chapters with their figures, and each in a sentence."""

from evenkeel.agent.story import Chapter, Story
from evenkeel.agent.story_text import end_sentence, sentence, stayed_sentence
from evenkeel.api.encode import encode


def plain_story(story: Story) -> dict[str, object]:
    return {
        **_fields(story),
        "chapters": [_chapter(chapter) for chapter in story.chapters],
        "end": end_sentence(story),
    }


def _chapter(chapter: Chapter) -> dict[str, object]:
    stayed = [
        {**_fields(other), "sentence": stayed_sentence(other, chapter.resource)} for other in chapter.stayed
    ]
    return {**_fields(chapter), "sentence": sentence(chapter), **({"stayed": stayed} if stayed else {})}


def _fields(value: object) -> dict[str, object]:
    fields = encode(value)
    assert isinstance(fields, dict)
    return fields
