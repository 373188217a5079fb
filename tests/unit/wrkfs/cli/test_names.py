"""Names in `--json`: Unicode for every parser, and the bytes of names that are not UTF-8."""

from __future__ import annotations

import json
import os
from urllib.parse import unquote_to_bytes

import pytest

from wrkfs.cli.names import strict

NAMES = (b"caf\xe9", b"\xff/%41", b"\xed\xa0\x80", b"a\xf0\x9f")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_is_not_utf8_has_its_bytes_beside_it(name: bytes) -> None:
    data = [{"path": os.fsdecode(name), "inner": {"name": os.fsdecode(name)}}, 3, None]
    document = json.loads(json.dumps(strict(data), ensure_ascii=False).encode("utf-8"))
    assert "\ufffd" in document[0]["path"]
    assert unquote_to_bytes(document[0]["encoded_path"]) == name
    assert unquote_to_bytes(document[0]["inner"]["encoded_name"]) == name


def test_lists_of_names_have_a_list_of_all_their_bytes() -> None:
    data = {"missing": [os.fsdecode(name) for name in (b"plain", *NAMES)]}
    document = json.loads(json.dumps(strict(data), ensure_ascii=False).encode("utf-8"))
    assert [unquote_to_bytes(one) for one in document["encoded_missing"]] == [b"plain", *NAMES]


def test_other_documents_are_as_they_were() -> None:
    data = {"path": "hällo\U0001f600", "missing": ["é"], "n": 1, "none": None, "list": [1.5, True]}
    assert strict(data) == data
