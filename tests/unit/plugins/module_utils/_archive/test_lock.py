# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Only one process at a time runs a run directory, and no dead one keeps it."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import threading

import pytest

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import lock as lock_module
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive import owners
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.journal import Journal, read_journal
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.lock import RunLock, read_lock
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.manifest import verify_manifest, write_manifest
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import InputError

DEAD = {"pid": 2**22 + 1, "started": "1"}  # above what any kernel gives


def dead(**fields):
    return {**owners.this_owner(), "play": DEAD, "worker": DEAD, **fields}


def elsewhere(**fields):
    return {**owners.this_owner(), "machine": "another/1", "host": "control-2", **fields}


@pytest.fixture
def other():
    """Another play on this machine."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield {**owners.this_owner(process.pid), "worker": owners._process(process.pid), "user": "ada"}
    process.kill()
    process.wait()


def hold(run, owner):
    """As another process would: its file, without its heartbeat."""
    made = RunLock(str(run), owner)
    run.mkdir(exist_ok=True)
    assert made._create(made._path)
    return made


class Time:
    """A clock that only sleeping moves. meanwhile: done at each sleep."""

    def __init__(self, meanwhile=lambda: None):
        self.now, self.meanwhile = 0.0, meanwhile

    def sleep(self, seconds):
        self.now += seconds
        self.meanwhile()

    def options(self):
        return {"sleep": self.sleep, "clock": lambda: self.now}


def test_a_run_that_is_alive_is_refused_with_who_and_since_when_and_nothing_is_touched(tmp_path, other):
    run = tmp_path / "r1"
    hold(run, other)
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()}
    for refuse in (RunLock(str(run)).acquire, RunLock(str(run)).check):
        with pytest.raises(InputError) as caught:
            refuse()
        assert f"ada@{other['host']}, process {other['play']['pid']}, since {other['since']}" in caught.value.message
        assert "Ctrl-C" in caught.value.hint
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.iterdir()} == before


def test_a_run_whose_process_died_on_this_machine_is_free_at_once(tmp_path):
    hold(tmp_path / "r1", dead())
    with RunLock(str(tmp_path / "r1"), sleep=lambda _s: pytest.fail("nothing to wait for")) as lock:
        assert read_lock(str(tmp_path / "r1/.lock")).owner == lock.owner


def test_the_next_task_of_a_play_goes_on_and_keeps_the_time_of_its_taking(tmp_path):
    run = str(tmp_path / "r1")
    first = RunLock(run, {**owners.this_owner(os.getppid()), "since": "2026-03-02T08:00:00Z"})
    with first:
        pass
    assert read_lock(first._path).busy is False
    with RunLock(run, owners.this_owner(os.getppid())) as lock:
        assert lock.owner["since"] == "2026-03-02T08:00:00Z" and read_lock(first._path).busy is True


def test_two_hosts_of_one_play_do_not_run_the_same_run_at_the_same_time(tmp_path, other):
    """A play over several hosts has a worker for each, all of the same parent."""
    run = tmp_path / "r1"
    hold(run, {**owners.this_owner(os.getppid()), "worker": other["worker"]})
    with pytest.raises(InputError, match="still going on"):
        RunLock(str(run), owners.this_owner(os.getppid())).acquire()


def test_a_holder_on_another_host_is_refused_when_its_heartbeat_moves(tmp_path):
    run = tmp_path / "r1"
    hold(run, elsewhere())
    beats = iter(range(1, 1000))

    def beat():
        if (number := next(beats)) % 15 == 0:
            os.utime(run / ".lock", (number, number))  # by a clock that is wrong by fifty years

    clock = Time(beat)
    with pytest.raises(InputError, match="control-2"):
        RunLock(str(run), **clock.options()).acquire()
    assert clock.now <= owners.HEARTBEAT_S + 1


def test_a_holder_on_another_host_that_is_silent_for_the_stated_time_is_dead(tmp_path):
    run = tmp_path / "r1"
    hold(run, elsewhere())
    os.utime(run / ".lock", (4e9, 4e9))  # its clock ran ahead; that does not keep it alive
    clock, told = Time(), []
    lock = RunLock(str(run), tell=told.append, **clock.options())
    lock.check()
    assert owners.STALE_S <= clock.now < owners.STALE_S + 5 and "control-2" in told[0]
    with lock:
        assert clock.now < owners.STALE_S + 5, "what was seen once is not waited for twice"


def test_a_lock_that_was_half_written_by_a_killed_process_does_not_last_for_ever(tmp_path):
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1/.lock").write_text('{"state": "bu')
    clock = Time()
    with RunLock(str(tmp_path / "r1"), **clock.options()):
        assert clock.now >= owners.STALE_S


def test_of_many_that_find_a_dead_run_at_the_same_moment_one_goes_on(tmp_path):
    for number in range(10):
        run = tmp_path / f"r{number}"
        hold(run, dead())
        start = threading.Barrier(8)
        won: list[RunLock] = []

        def take(run=run, start=start, kept=won.append):
            lock = RunLock(str(run), elsewhere(machine=f"{threading.get_ident()}/1"), **Time().options())
            # Everybody lives as far as the others can see; only the first holder is dead.
            lock._moves = lambda _held: True
            start.wait()
            try:
                lock.acquire()
            except InputError:
                return
            kept(lock)

        threads = [threading.Thread(target=take) for _number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1 and won[0]._why_lost() == ""
        won[0].release()
        assert list(run.iterdir()) == []


def test_whoever_lost_its_run_to_another_is_told_and_does_not_free_the_others_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.01)
    run, told, seen = tmp_path / "r1", [], threading.Event()
    with RunLock(str(run), lost=lambda why: (told.append(why), seen.set())) as lock:
        assert not seen.wait(0.1), "as long as it is ours nothing is said"
        taker = hold(tmp_path / "taken", elsewhere())
        os.replace(tmp_path / "taken/.lock", run / ".lock")
        before = (run / ".lock").stat().st_mtime_ns
        assert seen.wait(10) and "control-2" in told[0]
        lock.release()
    assert read_lock(str(run / ".lock")).owner == taker.owner and (run / ".lock").stat().st_mtime_ns == before


def test_the_heartbeat_moves_while_a_task_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(lock_module, "HEARTBEAT_S", 0.01)
    with RunLock(str(tmp_path / "r1")) as lock:
        beats = {read_lock(lock._path).beat}
        deadline = threading.Event()
        for _look in range(200):
            deadline.wait(0.02)
            beats.add(read_lock(lock._path).beat)
            if len(beats) > 2:
                break
        assert len(beats) > 2


def test_what_a_killed_process_left_half_written_is_in_no_archive(tmp_path):
    run = tmp_path / "r1"
    hold(run, dead())
    (run / "logs/c01").mkdir(parents=True)
    for name in (".report.json.x1.tmp", "logs/c01/g001-1-0.log.part", "logs/c01/g001-1-0.log.part.new", "logs/c01/g001-1-0.log.new"):
        (run / name).write_text("half")
    for name in ("logs/c01/g001-1-0.log", "run.json", "notes.new", ".hidden"):
        (run / name).write_text("whole")
    write_manifest(run)
    listed = {line.split("  ")[1] for line in (run / "MANIFEST.sha256").read_text().splitlines()}
    assert listed == {"logs/c01/g001-1-0.log", "run.json", "notes.new", ".hidden"} and verify_manifest(run) == []
    (run / "MANIFEST.sha256").unlink()
    with RunLock(str(run)) as lock:
        lock.release()
    assert {path.name for path in run.rglob("*") if path.is_file()} == {"g001-1-0.log", "run.json", "notes.new", ".hidden"}


def test_a_manifest_of_an_earlier_version_that_lists_a_half_written_file_still_holds(tmp_path):
    (tmp_path / "a.log.part").write_text("x")
    digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    (tmp_path / "MANIFEST.sha256").write_text(f"{digest}  a.log.part\n")
    assert verify_manifest(tmp_path) == []
    (tmp_path / "a.log.part").unlink()
    assert verify_manifest(tmp_path) == ["a.log.part: missing"]


def test_a_directory_that_cannot_be_written_is_told_as_such(tmp_path):
    (pathlib.Path(tmp_path) / "file").write_text("")
    with pytest.raises(InputError, match="cannot be locked"):
        RunLock(str(tmp_path / "file")).acquire()


def test_a_play_that_lost_its_run_writes_nothing_more_into_it(tmp_path):
    run = tmp_path / "r1"
    with RunLock(str(run)) as lock:
        lock.require()
        hold(tmp_path / "taken", elsewhere())
        os.replace(tmp_path / "taken/.lock", run / ".lock")
        with pytest.raises(InputError, match="control-2"):
            lock.require()
    journal = Journal(str(run / "journal.jsonl"))
    journal.write("batch_start", 0.0)
    journal.mute()
    journal.write("batch_end", 0.0)
    journal.close()
    assert [item["event"] for item in read_journal(str(run / "journal.jsonl"))] == ["batch_start"]
