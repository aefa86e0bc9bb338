"""Named tuples are made in our own way, and behave as those of `typing`."""

import copy
import inspect
import pickle
from typing import NamedTuple as Typed

import pytest

from evenkeel.named_tuples import NamedTuple


class Ours(NamedTuple):
    """A value."""

    name: str
    number: int = 3
    others: tuple[str, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.number

    @classmethod
    def called(cls, name: str) -> "Ours":
        return cls(name)


class Theirs(Typed):
    name: str
    number: int = 3
    others: tuple[str, ...] = ()


class Empty(NamedTuple):
    pass


def test_a_class_has_the_attributes_that_typing_gives_it():
    for attribute in ("_fields", "_field_defaults", "__match_args__", "__annotations__"):
        assert getattr(Ours, attribute) == getattr(Theirs, attribute)
    assert str(inspect.signature(Ours)) == "(name, number=3, others=())"
    assert (Ours.__doc__, Ours.__module__, Ours.__qualname__) == ("A value.", __name__, "Ours")


def test_an_object_is_the_tuple_of_its_fields():
    one = Ours("a", others=("b",))
    assert tuple(one) == ("a", 3, ("b",))
    assert hash(one) == hash(tuple(one))
    for other in (tuple(one), Theirs("a", others=("b",))):
        assert other == one
    assert (one.name, one.number, one.others) == tuple(one)
    assert repr(one) == repr(Theirs(*one)).replace("Theirs", "Ours")
    assert one._asdict() == {"name": "a", "number": 3, "others": ("b",)}
    assert one._replace(number=4) == Ours("a", 4, ("b",))
    assert type(Ours._make(one)) is Ours
    assert (one.twice, Ours.called("c")) == (6, Ours("c"))
    assert Empty() == ()


def test_an_object_can_be_matched_copied_and_pickled():
    match Ours("a", 5):
        case Ours(name, number):
            assert (name, number) == ("a", 5)
        case _:
            pytest.fail("no match")
    for again in (copy.copy(Ours("a")), pickle.loads(pickle.dumps(Ours("a")))):
        assert type(again) is Ours
        assert again == Ours("a")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda cls: cls(),
        lambda cls: cls("a", 1, (), 2),
        lambda cls: cls("a", size=1),
        lambda cls: cls("a", name="b"),
        lambda cls: cls._make(["a"]),
        lambda cls: cls("a")._replace(size=1),
        lambda cls: setattr(cls("a"), "number", 1),
        lambda cls: setattr(cls("a"), "size", 1),
    ],
)
def test_a_mistake_is_the_error_that_typing_raises(wrong):
    with pytest.raises((TypeError, ValueError, AttributeError)) as ours:
        wrong(Ours)
    with pytest.raises(ours.type) as theirs:
        wrong(Theirs)
    assert str(ours.value).replace("Ours", "Theirs") == str(theirs.value)


def test_a_field_without_a_default_cannot_follow_one_with_a_default():
    body = {
        "__annotations__": {"first": int, "second": int},
        "first": 1,
        "__module__": __name__,
        "__qualname__": "Mixed",
    }
    with pytest.raises(TypeError, match="without a default"):
        type(NamedTuple)("Mixed", (NamedTuple,), body)
