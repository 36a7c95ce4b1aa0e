# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Pod security: the levels baseline and restricted, by the labels of the namespace.

enforce refuses pods with 403; warn adds a warning to the answer, also for objects with a pod template. Checked are the controls a GPU
workload meets (host namespaces, privilege, capabilities, host paths and ports, volume types, users, seccomp); SELinux, AppArmor, /proc
and sysctl controls are not.
"""

from __future__ import annotations

import typing as t

from .objects import Object

_PREFIX = "pod-security.kubernetes.io/"
_BASELINE_CAPABILITIES = frozenset(
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT".split()  # noqa: SIM905
)
_RESTRICTED_VOLUMES = frozenset(
    ("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim", "projected", "secret")
)
_SECCOMP = ("RuntimeDefault", "Localhost")


def _containers(spec: Object) -> list[Object]:
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _context(container: Object) -> Object:
    return container.get("securityContext") or {}


def _named(names: t.Sequence[str], one: str, many: str) -> str:
    listed = ", ".join(f'"{name}"' for name in names)
    return f"{one if len(names) == 1 else many} {listed}"


def _guilty(spec: Object, bad: t.Callable[[Object], bool]) -> str:
    """The containers for which a test holds, as messages name them; empty when there is none."""
    names = [container.get("name", "") for container in _containers(spec) if bad(container)]
    return _named(names, "container", "containers") if names else ""


def _host_namespaces(spec: Object) -> str:
    used = [f"{name}=true" for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)]
    return f"host namespaces ({', '.join(used)})" if used else ""


def _privileged(spec: Object) -> str:
    who = _guilty(spec, lambda container: bool(_context(container).get("privileged")))
    return f"privileged ({who} must not set securityContext.privileged=true)" if who else ""


def _added(container: Object) -> set[str]:
    return set((_context(container).get("capabilities") or {}).get("add") or ())


def _capabilities(spec: Object) -> str:
    who = _guilty(spec, lambda container: bool(_added(container) - _BASELINE_CAPABILITIES))
    extra = sorted(set().union(*(_added(container) for container in _containers(spec))) - _BASELINE_CAPABILITIES)
    listed = ", ".join(f'"{name}"' for name in extra)
    return f"non-default capabilities ({who} must not include {listed} in securityContext.capabilities.add)" if who else ""


def _host_paths(spec: Object) -> str:
    names = [volume["name"] for volume in spec.get("volumes") or () if "hostPath" in volume]
    return f"hostPath volumes ({_named(names, 'volume', 'volumes')})" if names else ""


def _host_ports(spec: Object) -> str:
    ports = {port["hostPort"] for container in _containers(spec) for port in container.get("ports") or () if port.get("hostPort")}
    who = _guilty(spec, lambda container: any(port.get("hostPort") for port in container.get("ports") or ()))
    listed = ", ".join(str(port) for port in sorted(ports))
    return f"hostPort ({who} {'uses hostPort' if len(ports) == 1 else 'use hostPorts'} {listed})" if ports else ""


def _seccomp_type(context: Object) -> str | None:
    return (context.get("seccompProfile") or {}).get("type")


def _unconfined(spec: Object) -> str:
    who = _guilty(spec, lambda container: _seccomp_type(_context(container)) == "Unconfined")
    if not who and _seccomp_type(spec.get("securityContext") or {}) == "Unconfined":
        who = "pod"
    return f'seccompProfile ({who} must not set securityContext.seccompProfile.type to "Unconfined")' if who else ""


def _volume_types(spec: Object) -> str:
    bad = [(volume["name"], kind) for volume in spec.get("volumes") or () for kind in volume if kind not in _RESTRICTED_VOLUMES | {"name"}]
    names, kinds = [name for name, _kind in bad], sorted({f'"{kind}"' for _name, kind in bad})
    return f"restricted volume types ({_named(names, 'volume', 'volumes')} uses restricted volume type {', '.join(kinds)})" if bad else ""


def _escalation(spec: Object) -> str:
    who = _guilty(spec, lambda container: _context(container).get("allowPrivilegeEscalation") is not False)
    return f"allowPrivilegeEscalation != false ({who} must set securityContext.allowPrivilegeEscalation=false)" if who else ""


def _all_dropped(spec: Object) -> str:
    def bad(container: Object) -> bool:
        return "ALL" not in ((_context(container).get("capabilities") or {}).get("drop") or ())

    parts = []
    if who := _guilty(spec, bad):
        parts.append(f'{who} must set securityContext.capabilities.drop=["ALL"]')
    if who := _guilty(spec, lambda container: bool(_added(container) - {"NET_BIND_SERVICE"})):
        parts.append(f"{who} must not include added capabilities other than NET_BIND_SERVICE in securityContext.capabilities.add")
    return f"unrestricted capabilities ({'; '.join(parts)})" if parts else ""


def _non_root(spec: Object) -> str:
    by_pod = (spec.get("securityContext") or {}).get("runAsNonRoot")
    who = _guilty(spec, lambda container: not _context(container).get("runAsNonRoot", by_pod))
    return f"runAsNonRoot != true (pod or {who} must set securityContext.runAsNonRoot=true)" if who else ""


def _root_user(spec: Object) -> str:
    who = _guilty(spec, lambda container: _context(container).get("runAsUser") == 0)
    if not who and (spec.get("securityContext") or {}).get("runAsUser") == 0:
        who = "pod"
    return f"runAsUser=0 ({who} must not set runAsUser=0)" if who else ""


def _confined(spec: Object) -> str:
    by_pod = _seccomp_type(spec.get("securityContext") or {})
    who = _guilty(spec, lambda container: (_seccomp_type(_context(container)) or by_pod) not in _SECCOMP)
    return f'seccompProfile (pod or {who} must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost")' if who else ""


_BASELINE = (_host_namespaces, _privileged, _capabilities, _host_paths, _host_ports, _unconfined)
_RESTRICTED = (_host_namespaces, _privileged, _host_ports, _volume_types, _escalation, _all_dropped, _non_root, _root_user, _confined)


def violations(level: str, spec: Object) -> str:
    """What a pod spec does that a level does not allow, in one line; empty when it fits."""
    checks: t.Sequence[t.Callable[[Object], str]] = {"baseline": _BASELINE, "restricted": _RESTRICTED}.get(level, ())
    return ", ".join(text for check in checks if (text := check(spec)))


def problem(namespace_labels: t.Mapping[str, str], mode: str, spec: Object) -> str:
    """The message of a mode (enforce or warn) for a pod spec in a namespace with these labels; empty when there is nothing to say."""
    level = namespace_labels.get(_PREFIX + mode, "privileged")
    found = violations(level, spec)
    version = namespace_labels.get(f"{_PREFIX}{mode}-version", "latest")
    return f'violate{"s" if mode == "enforce" else ""} PodSecurity "{level}:{version}": {found}' if found else ""
