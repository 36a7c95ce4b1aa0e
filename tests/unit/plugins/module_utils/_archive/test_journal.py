# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The journal survives a kill in the middle of a line."""

from __future__ import annotations

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import (
    Journal,
    finished_attempts,
    open_batches,
    read_journal,
)


def test_a_torn_line_is_left_out_and_the_rest_kept(tmp_path):
    path = str(tmp_path / "journal.jsonl")
    journal = Journal(path)
    journal.write("attempt_done", 0.0, category="c01", group="g001", record={"attempt": 1, "outcome": "succeeded"})
    journal.write("attempt_done", 1.0, category="c02", group="g001", record={"attempt": 1, "outcome": "failed"})
    journal.close()
    with open(path, "a", encoding="utf-8") as handle:
        handle.write('{"event": "attempt_done", "category": "c01", "gro')
    entries = read_journal(path)
    assert [entry["at"] for entry in entries] == ["1970-01-01T00:00:00Z", "1970-01-01T00:00:01Z"]
    assert finished_attempts(entries, "c01") == {"g001": [{"attempt": 1, "outcome": "succeeded"}]}


def test_no_journal_is_an_empty_one(tmp_path):
    assert read_journal(str(tmp_path / "none")) == []


def test_an_accusation_that_was_taken_back_is_that_of_its_own_attempt(tmp_path):
    """The group had been run again without the accused meanwhile."""
    path = str(tmp_path / "journal.jsonl")
    journal = Journal(path)
    for number, outcome in ((1, "failed"), (2, "succeeded")):
        journal.write("attempt_done", 0.0, category="c01", group="g001", record={"attempt": number, "outcome": outcome})
    journal.write("attempt_acquitted", 1.0, category="c01", group="g001", record={"attempt": 1, "outcome": "cancelled"})
    journal.close()
    assert [item["outcome"] for item in finished_attempts(read_journal(path), "c01")["g001"]] == ["cancelled", "succeeded"]


def test_a_batch_is_open_until_its_last_start_has_ended():
    entries = [{"event": f"batch_{event}", "category": batch} for batch, event in (
        ("c02", "start"), ("c01", "start"), ("c01", "end"), ("c01w01", "start"), ("c02", "end"), ("c02", "start"),
    )]  # fmt: skip
    assert open_batches([{"event": "planned"}, *entries]) == ["c01w01", "c02"]
    assert open_batches([*entries, {"event": "batch_end", "category": "c02"}]) == ["c01w01"]
