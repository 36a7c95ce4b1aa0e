# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A finished archive is evidence: nobody goes on in one that was changed, and whoever goes on says so by taking the seal away."""

from __future__ import annotations

import json
import pathlib
import types

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import Journal
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import MANIFEST, is_sealed, verify_manifest
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory, new_run_id
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._causes.record import attempt_record, pod_record
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ClusterError, InputError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.batches import run_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.categories import effective_category, judge_run_category
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.given import category_given, snapshot_given
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.reporting import write_report
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._pipeline.runs import open_run, resume_run
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._plan.spec import parse_spec

REQUEST = parse_spec({"categories": [{"test": "t/key-value", "test_scale": "intra-node", "criteria": ["measured.speed >= 2"]}]})
CATEGORY = category_given(
    {
        "id": "c01", "short_id": "c01", "title": "c01", "test": "t/key-value", "test_scale": "intra-node", "isolate": "auto",
        "criteria": ["measured.speed >= 2"], "measure": {"kind": "key_value"}, "groups": [{"name": "g001", "nodes": ["n1"]}],
    }
)  # fmt: skip
SNAPSHOT = snapshot_given({"nodes": [{"name": "n1", "target": True}], "gpus": []})
COST = {"groups": 1, "nodes": 1, "gpu_hours_max": 1.0}


@pytest.fixture
def run(tmp_path: pathlib.Path) -> RunDirectory:
    """A finished run of one category whose log says speed=3."""
    made = RunDirectory.create(str(tmp_path), "r1")
    plan = {"name": "n", "bounds": REQUEST["bounds"], "categories": [CATEGORY], "cost": COST, "health_conditions": []}
    open_run(made, "r1", REQUEST, SNAPSHOT, plan, now=0.0)
    log = pathlib.Path(made.logs("c01")) / "g001-1-0.log"
    log.parent.mkdir(parents=True)
    log.write_text("speed=3\nend=true\n", encoding="utf-8")
    pods = [pod_record("p", node="n1", index=0, exit_code=0, log="logs/c01/g001-1-0.log", log_complete=True)]
    attempt = attempt_record(1, "succeeded", exit_code=0, pods=pods)
    groups = [{"name": "g001", "nodes": ["n1"], "attempts": [attempt]}]
    made.write(made.observation("c01"), {"groups": groups, "cleanup": {"proven": True, "left": []}, "cancelled": ""})
    made.write(made.judged("c01"), judge_run_category(made, effective_category(made, "c01")))
    assert write_report(made)[0]["verdict"] == "passed"
    return made


def tamper(run: RunDirectory) -> None:
    path = pathlib.Path(run.judged("c01"))
    path.write_text(path.read_text(encoding="utf-8").replace("passed", "failed"), encoding="utf-8")


def test_a_report_is_sealed_and_rebuilt_to_the_same_bytes(run: RunDirectory) -> None:
    before = pathlib.Path(run.report).read_bytes()
    assert is_sealed(run.path) and verify_manifest(run.path) == []
    _report, _text, changed = write_report(run)
    assert not changed and pathlib.Path(run.report).read_bytes() == before and verify_manifest(run.path) == []


@pytest.mark.parametrize(
    "go_on", [write_report, lambda run: resume_run(run, now=1.0), lambda run: run.open()], ids=["report", "resume", "judge"]
)
def test_a_changed_archive_is_refused_with_the_file_that_was_changed(run: RunDirectory, go_on) -> None:
    tamper(run)
    with pytest.raises(InputError, match=r"judged/c01\.json: changed") as caught:
        go_on(run)
    assert MANIFEST in caught.value.hint
    assert is_sealed(run.path), "what was refused is left as it was"


def test_a_missing_log_is_seen(run: RunDirectory) -> None:
    (pathlib.Path(run.logs("c01")) / "g001-1-0.log").unlink()
    with pytest.raises(InputError, match="missing"):
        write_report(run)


def test_views_and_files_that_came_later_are_no_harm(run: RunDirectory) -> None:
    """A report is made anew from the rest; an operator's note beside it is theirs."""
    pathlib.Path(run.report).write_text("{}", encoding="utf-8")
    (pathlib.Path(run.path) / "ticket.txt").write_text("RMA 1", encoding="utf-8")
    report, _text, changed = write_report(run)
    assert changed and report["verdict"] == "passed"
    assert json.loads(pathlib.Path(run.report).read_text(encoding="utf-8"))["run_id"] == "r1"


def test_whoever_goes_on_takes_the_seal_away(run: RunDirectory) -> None:
    """Else a run that is taken up and killed would look like a changed archive."""
    resume_run(run, now=1.0)
    assert not is_sealed(run.path)
    assert resume_run(run, now=2.0)["resumed"] == ["1970-01-01T00:00:01Z", "1970-01-01T00:00:02Z"]


def test_looking_alone_changes_nothing(run: RunDirectory) -> None:
    before = {path: path.read_bytes() for path in pathlib.Path(run.path).rglob("*") if path.is_file()}
    resume_run(run, now=1.0, dry=True)
    write_report(run, dry=True)
    assert {path: path.read_bytes() for path in pathlib.Path(run.path).rglob("*") if path.is_file()} == before


def test_a_batch_that_broke_off_leaves_an_observation_that_accuses_nobody(run: RunDirectory) -> None:
    pathlib.Path(run.observation("c01")).unlink()
    judged = judge_run_category(run, effective_category(run, "c01"), "the API server went away")
    assert judged["verdict"] == "error" and judged["members"]["n1"]["verdict"] == "untested"
    observation = run.read_observation("c01")
    assert observation and observation["cleanup"] == {"proven": False, "left": [], "message": "the API server went away"}


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("preflight: our user lacks 2 permissions: create jobs (batch) in namespace default; list pods in namespace default", "Forbidden"),
        ('jobs.batch is forbidden: User "u" cannot create resource "jobs" in API group "batch" in the namespace "x"', "Forbidden"),
        ('pods "p" is forbidden: violates PodSecurity "restricted:latest": privileged', "AdmissionDenied"),
        ("GET /api/v1/nodes: no answer from https://a: connection refused", "SetupError"),
    ],
)
def test_a_category_that_could_not_begin_says_why_and_that_nothing_was_created(run: RunDirectory, why: str, reason: str) -> None:
    pathlib.Path(run.observation("c01")).unlink()
    judged = judge_run_category(run, effective_category(run, "c01"), why, created=False)
    assert judged["members"]["n1"]["verdict"] == "untested"
    assert [finding["reason"] for finding in judged["members"]["n1"]["findings"]] == [reason]
    observation = run.read_observation("c01")
    assert observation and observation["cleanup"] == {"proven": True, "left": [], "message": "nothing was created"}


def test_a_wave_that_breaks_off_tells_what_it_left_and_the_cleanup_is_not_proven(run: RunDirectory) -> None:
    """The category before it had cleaned up, so the report said "proven: nothing of this run is left", with the wave's anchor there."""
    wave = {**CATEGORY, "id": "c01-w01", "short_id": "c01w01"}

    def break_off() -> None:
        raise ClusterError("our key could not be made", place="secrets")

    left = {"proven": False, "left": ["configmap/readiness-r1-c01w01"], "message": "configmaps cannot be deleted: forbidden"}
    engine = types.SimpleNamespace(run=break_off, proof=left, disown=None)
    with pytest.raises(ClusterError):
        run_category(run, wave, engine, types.SimpleNamespace(require=lambda: None))
    report, text, _changed = write_report(run)
    assert report["cleanup"] == left and report["verdict"] == "incomplete" and "the cleanup is not proven" in report["why"]
    assert "NOT PROVEN, may be left: configmap/readiness-r1-c01w01" in text and "configmaps cannot be deleted: forbidden" in text
    assert any("our key could not be made" in note for note in report["notes"])


@pytest.mark.parametrize("cut", ["c01", "c01w01"])
def test_a_batch_that_was_killed_before_it_cleaned_up_proves_nothing(run: RunDirectory, cut: str) -> None:
    """A worker that is killed alone writes no observation; what the batches before it had proven says nothing of its objects."""
    run.open()
    journal = Journal(run.journal)
    for batch, events in {"c01": ("batch_start", "batch_end"), cut: ("batch_start",)}.items():
        for event in events:
            journal.write(event, 0.0, category=batch)
    report, text, _changed = write_report(run)
    assert report["verdict"] == "incomplete" and not report["cleanup"]["proven"]
    assert f"{cut} was ended before it could clean up" in text
    run.open()
    journal.write("batch_end", 0.0, category=cut)
    journal.close()
    assert write_report(run)[0]["cleanup"]["proven"], "it was resumed"


def test_two_runs_never_share_a_directory(run: RunDirectory) -> None:
    with pytest.raises(InputError, match="a run with this id exists"):
        RunDirectory.create(str(pathlib.Path(run.path).parent), "r1")


@pytest.mark.parametrize("given", ["Upper", "a_b", "-a", "a" * 33, "ü"])
def test_an_id_that_cannot_be_part_of_object_names_is_refused(given: str) -> None:
    with pytest.raises(InputError, match="run id"):
        new_run_id(given, 0.0)
