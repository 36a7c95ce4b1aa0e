# Copyright (c) the gpu_cluster.readiness authors
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What every action plugin of the collection shares: argument checking, plain Python, errors as messages, live progress."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import time
import traceback
import typing as t

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.files import redact_text
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.lock import RunLock
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.owners import this_owner
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._archive.run_directory import RunDirectory
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.errors import ReadinessError
from ansible_collections.gpu_cluster.readiness.plugins.module_utils._common.plain import safe, to_plain

COLLECTION_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHIPPED_CATALOG = os.path.join(COLLECTION_ROOT, "catalog")


class ReadinessAction(ActionBase):  # type: ignore[misc]  # ansible-core's own source needs the newest Python to be read
    """Subclasses give ARGUMENT_SPEC and execute(arguments, task_vars) -> result."""

    ARGUMENT_SPEC: t.ClassVar[dict[str, t.Any]] = {}
    # Extra keywords of the argument spec: mutually_exclusive, required_together …
    SPEC_RULES: t.ClassVar[dict[str, t.Any]] = {}
    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: str | None = None, task_vars: dict[str, t.Any] | None = None) -> dict[str, t.Any]:
        """Called by Ansible; a ReadinessError becomes a failed result with its text, place and hint."""
        result: dict[str, t.Any] = super().run(tmp, task_vars)
        del tmp
        _validation, arguments = self.validate_argument_spec(self.ARGUMENT_SPEC, **self.SPEC_RULES)
        try:
            result.update(self.execute(to_plain(arguments), task_vars or {}))
        except ReadinessError as error:
            told = {key: safe(redact_text(value)) for key, value in error.as_dict().items()}
            result.update(failed=True, msg=safe(redact_text(error.render())), error=told)
        except Exception as error:  # a defect of ours: told in one line, with what a report of it needs
            where = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(where.filename)}:{where.lineno}"
            Display().vvv(traceback.format_exc())
            text = f"internal error at {place}: {type(error).__name__}: {error}. This is a defect of the collection; -vvv shows its trace"
            result.update(failed=True, msg=text, error={"message": text, "place": place, "hint": "Please report it"})
        return result

    def execute(self, arguments: dict[str, t.Any], task_vars: dict[str, t.Any]) -> dict[str, t.Any]:
        """The work of the plugin."""
        raise ReadinessError(f"{type(self).__name__} does nothing")

    @property
    def check_mode(self) -> bool:
        """Whether nothing may be changed."""
        return bool(self._task.check_mode)

    def lock_of(self, run: RunDirectory) -> RunLock:
        """The lock of a run, for this play."""
        return RunLock(run.path, this_owner(play_pid()), tell=self.progress)

    @contextlib.contextmanager
    def holding(self, run: RunDirectory) -> t.Iterator[RunLock]:
        """While this task writes into a run; no other process may meanwhile. In check mode nothing is written, and nothing is held."""
        lock = self.lock_of(run)
        if self.check_mode or not os.path.exists(run.plan):  # what is no run says so by itself
            yield lock
            return
        with lock:
            yield lock

    def progress(self, text: str) -> None:
        """One line of live progress, shown while the task runs (also in AWX). Never fails: the reader may be gone."""
        try:
            Display().display(f"[{time.strftime('%H:%M:%S')}] {safe(redact_text(text))}")
        except Exception:  # the controller process may have been killed; the work goes on to its clean end
            return


def play_pid() -> int:
    """The process of the play, from which the worker of each task is forked; also when it has died already."""
    parent = multiprocessing.parent_process()
    return parent.pid if parent is not None and parent.pid is not None else os.getppid()


def catalog_directories(user: t.Sequence[str]) -> list[str]:
    """Catalog directories in order of precedence: the user's, then the shipped one."""
    return [*[os.path.abspath(os.path.expanduser(directory)) for directory in user], SHIPPED_CATALOG]


def collection_version() -> str:
    """The version of the collection: of the installed artifact, or of the checkout."""
    for name, pattern in (("MANIFEST.json", r'"version":\s*"([^"]+)"'), ("galaxy.yml", r"(?m)^version:\s*(\S+)")):
        try:
            with open(os.path.join(COLLECTION_ROOT, name), encoding="utf-8") as handle:
                found = re.search(pattern, handle.read())
        except OSError:
            continue
        if found:
            return found.group(1)
    return "unknown"
