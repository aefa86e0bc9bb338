"""resource.ParseQuantity, UnmarshalJSON, Add/Sub/Cmp/Equal and NewQuantity/NewMilliQuantity."""

import json
from typing import Any

from evenkeel.quantity import Quantity, QuantityError

INT64 = 2**64


def check(vector_input: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    match vector_input["fn"]:
        case "parse":
            return parsed(lambda: Quantity.parse(vector_input["s"]), expected)
        case "json":
            return parsed(lambda: Quantity.from_json(from_token(vector_input["token"])), expected)
        case "arith":
            return arithmetic(Quantity.parse(vector_input["a"]), Quantity.parse(vector_input["b"]), expected)
        case "new":
            value, form = int(vector_input["value"]), vector_input["format"]
            return [
                *compare("quantity.", Quantity.of(value, form), expected["quantity"]),
                *compare("milliQuantity.", Quantity.of_milli(value, form), expected["milliQuantity"]),
            ]
        case other:
            return [f"unknown fn {other!r}"]


def parsed(read, expected: dict[str, Any]) -> list[str]:
    try:
        quantity = read()
    except (QuantityError, json.JSONDecodeError) as error:
        return [f"expected {expected['string']!r}, we refused: {error}"] if expected["ok"] else []
    return compare("", quantity, expected) if expected["ok"] else [f"expected an error, we said {quantity!r}"]


def arithmetic(a: Quantity, b: Quantity, expected: dict[str, Any]) -> list[str]:
    ours = {"cmp": (a > b) - (a < b), "equal": a == b}
    found = [
        f"{key}: expected {expected[key]}, we said {said}"
        for key, said in ours.items()
        if said != expected[key]
    ]
    return [*found, *compare("add.", a + b, expected["add"]), *compare("sub.", a - b, expected["sub"])]


def compare(where: str, quantity: Quantity, expected: dict[str, Any]) -> list[str]:
    exact: dict[str, object] = {"format": quantity.format, "sign": quantity.sign, "isZero": not quantity}
    texts = {
        "string": str(quantity),
        "canonical": quantity.canonical(),
        "roundUpMilli": str(quantity.round_up_milli()),
    }
    numbers = {
        "value": (quantity.int64_value, 9, "valueOverflow"),
        "milliValue": (quantity.int64_milli, 6, "milliOverflow"),
    }
    found = [(key, said) for key, said in exact.items() if said != expected[key]]
    found += [
        (key, said)
        for key, said in texts.items()
        if expected[key] not in (said, without_suffix(quantity, said))
    ]
    for key, (said, places, overflow) in numbers.items():
        if expected[overflow] and where:
            continue  # what is left of a sum hangs on how both operands were kept
        if int(expected[key]) not in {said, *big_decimal_slips(quantity, places)}:
            found.append((key, said))
    return [f"{where}{key}: expected {expected[key]!r}, we said {said!r}" for key, said in found]


def without_suffix(quantity: Quantity, text: str) -> str:
    """At the vectors' commit a DecimalSI number too large for the suffix E lost its exponent: 10^24 was "1".

    Later commits print 1e24, and so do we: no value is misprinted.
    """
    return text.rpartition("e")[0] if quantity.format == "DecimalSI" and "e" in text else text


def big_decimal_slips(quantity: Quantity, places: int) -> set[int]:
    """What Value() (places 9) or MilliValue() (places 6) may make of a negative number kept as a big decimal.

    At the vectors' commit the unscaled integer was cut to 64 bits, divided towards zero, and one added for a
    remainder, so that the value of -1.5Ti was -7507219102. Computing that slip from our own exact number
    compares such values without making the same mistake. The number of decimals to lose is not known here.
    """
    slips = set()
    for lost in range(1, places + 1) if quantity.sign < 0 else ():
        unscaled, rest = divmod(quantity.nanos, 10 ** (places - lost))
        if not rest:
            wrapped = (unscaled + INT64 // 2) % INT64 - INT64 // 2
            slips.add(
                (-(-wrapped // 10**lost) if wrapped < 0 else wrapped // 10**lost) + (wrapped % 10**lost != 0)
            )
    return slips


class Spelled(float):
    """A JSON number that remembers how it was written."""

    text: str


def from_token(token: str) -> object:
    def spelled(text: str) -> Spelled:
        number = Spelled(text)
        number.text = text
        return number

    return json.loads(token, parse_float=spelled)
