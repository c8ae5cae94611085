from pathlib import Path

import pytest

from roma.tools.load.errors import LoadInputError
from roma.tools.load.payload import cycled, read_bodies


def test_bodies_are_cycled_in_order() -> None:
    bodies = cycled([b"a", b"b"])
    assert [bodies(index) for index in range(5)] == [b"a", b"b", b"a", b"b", b"a"]


def test_no_bodies_are_refused() -> None:
    with pytest.raises(LoadInputError, match="0 request bodies: must be at least 1"):
        cycled([])


@pytest.mark.parametrize("name", ["b.jsonl", "b.ndjson", "B.JSONL"])
def test_a_lines_file_has_a_body_per_line(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    file.write_text('{"instances": [1]}\r\n\n{"instances":   [2]}')
    # Untouched but for the line's end: what the user wrote is what is sent.
    assert read_bodies(file) == (b'{"instances": [1]}', b'{"instances":   [2]}')


def test_another_file_is_one_body(tmp_path: Path) -> None:
    file = tmp_path / "body.json"
    file.write_text('{"instances":\n [1]}\n')
    assert read_bodies(file) == (b'{"instances":\n [1]}',)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("b.jsonl", '{"a": 1}\n{"a": \n', "line 2: not JSON"),
        ("b.json", '{"a": 1}\n{"a": 2}\n', "b.json: not JSON"),
        ("b.jsonl", "\n\n", "holds 0 bodies; must be at least 1"),
        ("b.json", "", "holds 0 bodies"),
    ],
)
def test_a_bad_file_names_the_fault(tmp_path: Path, name: str, text: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(LoadInputError, match=message):
        read_bodies(file)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(LoadInputError, match="No such file"):
        read_bodies(tmp_path / "absent.json")
