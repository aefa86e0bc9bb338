"""We answer as the real Kubernetes code does, and the runner that says so can be trusted."""

import gzip
import json
from pathlib import Path

import pytest

from evenkeel.quantity import Quantity
from tests.conformance.__main__ import main
from tests.conformance.areas import AREAS, run, vector_files
from tests.conformance.quantity import big_decimal_slips, compare

VECTORS = Path(__file__).parent / "vectors"


@pytest.mark.parametrize("area", AREAS)
def test_area_answers_as_kubernetes_does(area):
    result = run(area, vector_files(VECTORS)[area])
    assert result.total > 0
    assert not result.differing, "\n".join([str(result), *map(str, result.differences[:5])])


def write(directory, name, vectors):
    text = json.dumps(vectors).encode()
    (directory / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)


def vector(number, text, value):
    expected = {"format": "DecimalSI", "sign": 1, "isZero": False, "string": text, "canonical": text}
    expected |= {"roundUpMilli": text, "value": str(value), "milliValue": str(1000 * value)}
    expected |= {"ok": True, "valueOverflow": False, "milliOverflow": False}
    return {"id": f"quantity-{number}", "input": {"fn": "parse", "s": text}, "expected": expected}


@pytest.mark.parametrize("name", ["quantity.json", "quantity.json.gz"])
def test_runner_counts_what_agrees(tmp_path, capsys, name):
    write(tmp_path, name, [vector(1, "7", 7), vector(2, "5k", 5000)])
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "quantity: 2/2\n"


def test_runner_shows_the_first_differences_and_exits_1(tmp_path, capsys):
    write(tmp_path, "quantity.json", [vector(0, "7", 7), *(vector(i, "5k", 5) for i in range(1, 9))])
    assert main([str(tmp_path), "quantity"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["quantity: 1/9", "  quantity-1: value: expected '5', we said 5000"]
    assert len(lines) == 7


def test_an_exception_in_a_checker_is_a_difference_with_its_name(tmp_path, capsys):
    write(tmp_path, "quantity.json", [{"id": "q", "input": {"fn": "parse"}, "expected": {}}])
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().out == "quantity: 0/1\n  q: KeyError: 's'\n"


@pytest.mark.parametrize(
    "slip", [{"string": "6"}, {"format": "BinarySI"}, {"value": "6"}, {"sign": -1}, {"ok": False}]
)
def test_quantity_checker_notices_each_wrong_answer(tmp_path, slip):
    wrong = vector(1, "7", 7)
    wrong["expected"] |= slip
    write(tmp_path, "quantity.json", [wrong])
    assert main([str(tmp_path)]) == 1


def test_quantity_checker_knows_the_slip_of_a_negative_big_decimal_and_no_other_value():
    assert big_decimal_slips(Quantity.parse("-1.5Ti"), 9) >= {-7507219102}
    assert big_decimal_slips(Quantity.parse("1.5Ti"), 9) == set()
    assert not compare("", Quantity.parse("-1.5Ti"), negative(-7507219102))
    assert not compare("", Quantity.parse("-1.5Ti"), negative(-1649267441664))
    assert compare("", Quantity.parse("-1.5Ti"), negative(-7507219103))


def negative(value):
    expected = {"format": "BinarySI", "sign": -1, "isZero": False, "milliValue": "-1649267441664000"}
    expected |= {"string": "-1536Gi", "canonical": "-1536Gi", "roundUpMilli": "-1536Gi"}
    return expected | {"value": str(value), "valueOverflow": False, "milliOverflow": False}


def test_runner_names_unknown_areas_and_exits_2(tmp_path, capsys):
    write(tmp_path, "quantity.json", [vector(1, "7", 7)])
    write(tmp_path, "weather.json", [])
    assert main([str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == "quantity: 1/1\n"
    assert "unknown area weather" in said.err
    assert main([str(tmp_path), "wether"]) == 2
    assert "unknown area wether" in capsys.readouterr().err
    assert main([str(tmp_path), "qos"]) == 2
    assert "no vectors for qos" in capsys.readouterr().err


def test_runner_without_vectors_says_so_and_exits_2(tmp_path, capsys):
    (tmp_path / "README.md").touch()
    for arguments in ([], [str(tmp_path)], [str(tmp_path / "missing")]):
        assert main(arguments) == 2
        assert capsys.readouterr().err.startswith("conformance: ")


@pytest.mark.parametrize("content", [b"{}", b"[1]", b"nonsense"])
def test_runner_refuses_files_of_another_shape(tmp_path, capsys, content):
    (tmp_path / "quantity.json").write_bytes(content)
    assert main([str(tmp_path)]) == 2
    assert "quantity.json" in capsys.readouterr().err
