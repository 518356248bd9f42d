"""The training log: lines that are appended, dropped after an update, and checked when read."""

from __future__ import annotations

import gzip
import json

import pytest

from npad.errors import StorageError
from npad.storage import jsonl

RECORDS = [{"update": update, "perplexity": 9.5 / update} for update in (1, 2, 3, 3)]


@pytest.fixture
def log(tmp_path):
    for record in RECORDS:
        jsonl.append(tmp_path / "log.jsonl", record)
    return tmp_path / "log.jsonl"


def test_records_are_read_as_they_were_appended(log, tmp_path):
    assert jsonl.read(log) == RECORDS
    assert jsonl.read(tmp_path / "none.jsonl") == []
    for record in RECORDS:
        jsonl.append(tmp_path / "log.jsonl.gz", record)
    packed = gzip.decompress((tmp_path / "log.jsonl.gz").read_bytes())
    assert packed == log.read_bytes()


@pytest.mark.parametrize("update", [0, 1, 2, 3, 4])
def test_records_after_an_update_are_dropped(log, update):
    jsonl.rewind(log, update)
    assert jsonl.read(log) == [record for record in RECORDS if record["update"] <= update]


def test_a_last_line_that_was_cut_off_is_skipped(log):
    with log.open("a") as file:
        file.write('{"update": 4, "perp')
    assert jsonl.read(log) == RECORDS
    with log.open("a") as file:
        file.write('lexity": 2.0}')  # the line's end is missing
    assert jsonl.read(log) == [*RECORDS, {"update": 4, "perplexity": 2.0}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "is damaged: Expecting property name"),
        ("[]", "is damaged: no JSON object; remove the line, or the log"),
        ('{"update": 1, "perplexity": "2"}', "'perplexity' must be a number, not '2'"),
        (
            '{"update": 0, "perplexity": 2.0}',
            "'update' must be a whole number of at least 1, not 0",
        ),
        ('{"update": 1.0, "perplexity": 2.0}', "'update' must be a whole number of at least 1"),
        ('{"update": true, "perplexity": 2.0}', "'update' must be a whole number of at least 1"),
        ('{"perplexity": 2.0}', "'update' must be a whole number of at least 1, not None"),
        ('{"update": 1, "seconds": 2.0}', "is damaged: it has no perplexity"),
    ],
)
def test_another_line_is_named(log, line, reason):
    log.write_text(f"{json.dumps(RECORDS[0])}\n{line}\n")
    with pytest.raises(StorageError, match=rf"log\.jsonl, line 2 .*{reason}"):
        jsonl.read(log)


@pytest.mark.parametrize("name", ["perplexity", "valid_perplexity"])
def test_a_record_has_one_of_two_perplexities(tmp_path, name):
    jsonl.append(tmp_path / "log.jsonl", {"update": 1, name: 2})
    assert jsonl.read(tmp_path / "log.jsonl") == [{"update": 1, name: 2}]
