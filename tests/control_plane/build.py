# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Builds the programs of a genuine control plane, once for each state of go.mod, go.sum and the build line.

`python tests/control_plane/build.py` prints where they are. Exit status 3 and a line that says why: they cannot be had here.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
CACHE = HERE.parents[1] / ".build" / "control-plane"
CANNOT = 3
PROGRAMS = {
    "etcd": "go.etcd.io/etcd/server/v3",
    "kube-apiserver": "k8s.io/kubernetes/cmd/kube-apiserver",
    "kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
    "kube-scheduler": "k8s.io/kubernetes/cmd/kube-scheduler",
    "jobset": "sigs.k8s.io/jobset",
    "trainer-controller-manager": "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
}
CORE = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
# Folders that a program needs at run time, kept beside it so that the module cache may go: module → (folder in it, name here).
MANIFESTS = {
    "sigs.k8s.io/jobset": ("config/components", "jobset-manifests"),
    "github.com/kubeflow/trainer/v2": ("manifests/base", "trainer-manifests"),
}
COMPLETE = "times.json"


class Unavailable(Exception):
    """There can be no genuine control plane here, and why."""


class BuildFailed(Exception):
    """Go is here, but the build failed: what it said."""


def version() -> str:
    """The Kubernetes release that go.mod names, as "v1.36.3"."""
    for line in (HERE / "go.mod").read_text().splitlines():
        words = line.split()
        if words[:1] == ["k8s.io/kubernetes"] and len(words) > 1:
            return words[1]
    raise BuildFailed("go.mod names no version of k8s.io/kubernetes")


def build_line() -> list[str]:
    """Without the version flags the server tells a version that kubectl cannot read."""
    major, minor = version().removeprefix("v").split(".")[:2]
    place = "k8s.io/component-base/version"
    stamp = f"-s -w -X {place}.gitVersion={version()} -X {place}.gitMajor={major} -X {place}.gitMinor={minor}"
    return ["go", "build", "-trimpath", "-ldflags", stamp]


def folder() -> pathlib.Path:
    """Where the programs of the present inputs are, or will be."""
    inputs = [(HERE / "go.mod").read_bytes(), (HERE / "go.sum").read_bytes(), json.dumps([build_line(), PROGRAMS, MANIFESTS]).encode()]
    return CACHE / hashlib.sha256(b"\0".join(inputs)).hexdigest()[:16]


def build() -> pathlib.Path:
    """The folder of all programs; builds what is missing. A second caller waits for the first one."""
    target = folder()
    if (target / COMPLETE).exists():
        return target
    if shutil.which("go") is None:
        raise Unavailable("Go is not installed, and no control plane was built before")
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (target / COMPLETE).exists():
            times = {name: _build_one(name, package, target) for name, package in PROGRAMS.items()}
            for module, (inside, name) in MANIFESTS.items():
                _keep_manifests(module, inside, target / name)
            (target / COMPLETE).write_text(json.dumps(times))
    return target


class Programs:
    """Where the programs are: KUBEBUILDER_ASSETS first, then what build() made. Raises Unavailable when the control plane is not whole."""

    def __init__(self) -> None:
        given = os.environ.get("KUBEBUILDER_ASSETS", "")
        self._given = pathlib.Path(given) if given else None
        for name in CORE:
            self.path(name)

    def path(self, name: str) -> str:
        """A program, or a folder of manifests."""
        if self._given is not None and (self._given / name).exists():
            return str(self._given / name)
        return str(build() / name)


def _go(*arguments: str) -> str:
    done = subprocess.run(["go", *arguments], cwd=HERE, env={**os.environ, "CGO_ENABLED": "0"}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"go {arguments[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout.strip()


def _build_one(name: str, package: str, target: pathlib.Path) -> float:
    """Seconds that one program took. It gets its name only when it is whole."""
    started = time.monotonic()
    if not (target / name).exists():
        _go(*build_line()[1:], "-o", str(target / f"{name}.part"), package)
        (target / f"{name}.part").rename(target / name)
    taken = round(time.monotonic() - started, 1)
    print(f"{name}: {taken} s", file=sys.stderr, flush=True)
    return taken


def _keep_manifests(module: str, inside: str, target: pathlib.Path) -> None:
    """Copies YAML of a module, writable: files of the module cache are not."""
    source = pathlib.Path(_go("list", "-m", "-f", "{{.Dir}}", module)) / inside
    for path in source.rglob("*.yaml"):
        copy = target / path.relative_to(source)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())


def main() -> int:
    started = time.monotonic()
    try:
        print(build() if shutil.which("go") else Programs().path(CORE[0]))
    except Unavailable as exc:
        print(f"no control plane: {exc}", file=sys.stderr)
        return CANNOT
    except BuildFailed as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    print(f"control plane programs ready after {time.monotonic() - started:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
