# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What the server fills in: defaults, the metadata and the first status of a new object. Each function changes what it is given."""

from __future__ import annotations

import base64
import typing as t
import uuid

from . import clock, names, quantity, structural
from .errors import bad_request, invalid, required
from .objects import Object
from .resources import Resource

CONTROLLER_UID_LABEL = "batch.kubernetes.io/controller-uid"
JOB_NAME_LABEL = "batch.kubernetes.io/job-name"
_MAX_INT32 = 2147483647


def _fill(target: Object, **values: t.Any) -> None:
    for key, value in values.items():
        target.setdefault(key, value)


def _probe(probe: Object) -> None:
    _fill(probe, timeoutSeconds=1, periodSeconds=10, successThreshold=1, failureThreshold=3)
    if "httpGet" in probe:
        _fill(probe["httpGet"], path="/", scheme="HTTP")


def _resources(resources: Object) -> None:
    for side in ("limits", "requests"):
        if side in resources:
            resources[side] = quantity.as_text(resources[side])
    if resources.get("limits"):
        resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}


def _container(container: Object, host_network: bool) -> None:
    image = container.get("image", "")
    tag = image.rsplit("/", 1)[-1].partition("@")[0].partition(":")[2]
    latest = "@" not in image and tag in ("", "latest")
    _fill(
        container,
        imagePullPolicy="Always" if latest else "IfNotPresent",
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        resources={},
    )
    _resources(container["resources"])
    for port in container.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if host_network and "containerPort" in port:
            port.setdefault("hostPort", port["containerPort"])
    for variable in container.get("env") or ():
        reference = (variable.get("valueFrom") or {}).get("fieldRef")
        if reference is not None:
            reference.setdefault("apiVersion", "v1")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if name in container:
            _probe(container[name])


def _volume(volume: Object) -> None:
    sources = [key for key in volume if key != "name"]
    if not sources:
        volume["emptyDir"] = {}
    for key in ("configMap", "secret", "downwardAPI", "projected"):
        if isinstance(volume.get(key), dict):
            volume[key].setdefault("defaultMode", 420)
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")


def pod_spec(spec: Object) -> None:
    """Defaults of a pod spec, in a pod or in a template."""
    _fill(
        spec,
        restartPolicy="Always",
        dnsPolicy="ClusterFirst",
        schedulerName="default-scheduler",
        terminationGracePeriodSeconds=30,
        securityContext={},
    )
    if spec.get("serviceAccountName") or spec.get("serviceAccount"):
        spec.setdefault("serviceAccountName", spec.get("serviceAccount"))
        spec["serviceAccount"] = spec["serviceAccountName"]
    host_network = bool(spec.get("hostNetwork"))
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        _container(container, host_network)
    for volume in spec.get("volumes") or ():
        _volume(volume)
    for constraint in spec.get("topologySpreadConstraints") or ():
        _fill(constraint, whenUnsatisfiable="DoNotSchedule")


def pod(obj: Object) -> None:
    """Defaults of a pod."""
    spec = obj.setdefault("spec", {})
    pod_spec(spec)
    _fill(spec, enableServiceLinks=True)


def _template(spec: Object) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _job_spec(spec: Object) -> None:
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    per_index = "backoffLimitPerIndex" in spec
    _fill(
        spec,
        parallelism=1,
        backoffLimit=_MAX_INT32 if per_index else 6,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy="Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed",
    )
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            pattern.setdefault("status", "True")
    _template(spec)


def job(obj: Object) -> None:
    """Defaults of a Job; the selector and the labels are added when the uid is known (job_selector)."""
    spec = obj.setdefault("spec", {})
    _job_spec(spec)
    spec.setdefault("manualSelector", False)


def job_selector(obj: Object) -> None:
    """The generated selector of a Job and the labels its pods get; a Job without labels gets the same ones.

    Nothing is generated under manualSelector.
    """
    spec, metadata = obj["spec"], obj["metadata"]
    if not spec["manualSelector"]:
        _generate_selector(spec, metadata)
    labels = spec["template"]["metadata"].get("labels")
    if labels and not metadata.get("labels"):
        metadata["labels"] = dict(labels)


def _generate_selector(spec: Object, metadata: Object) -> None:
    labels = spec["template"]["metadata"].setdefault("labels", {})
    own = {CONTROLLER_UID_LABEL: metadata["uid"], JOB_NAME_LABEL: metadata["name"]}
    legacy = {"controller-uid": metadata["uid"], "job-name": metadata["name"]}
    labels.update({**legacy, **own})
    if not spec.get("selector"):
        spec["selector"] = {"matchLabels": {CONTROLLER_UID_LABEL: metadata["uid"]}}


def _cron_job(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, concurrencyPolicy="Allow", suspend=False, successfulJobsHistoryLimit=3, failedJobsHistoryLimit=1)
    _job_spec(spec.setdefault("jobTemplate", {}).setdefault("spec", {}))


def _workload(**values: t.Any) -> t.Callable[[Object], None]:
    def fill(obj: Object) -> None:
        spec = obj.setdefault("spec", {})
        for key, value in values.items():
            spec.setdefault(key, dict(value) if isinstance(value, dict) else value)
        _template(spec)

    return fill


def _service(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, type="ClusterIP", sessionAffinity="None")
    if spec["type"] != "ExternalName":
        _fill(spec, ipFamilies=["IPv4"], ipFamilyPolicy="SingleStack", internalTrafficPolicy="Cluster")
    for port in spec.get("ports") or ():
        port.setdefault("protocol", "TCP")
        if "port" in port:
            port.setdefault("targetPort", port["port"])


def _secret(obj: Object) -> None:
    obj.setdefault("type", "Opaque")
    plain = obj.pop("stringData", None)
    if plain:
        data = obj.setdefault("data", {})
        data.update({key: base64.b64encode(value.encode()).decode() for key, value in plain.items()})


def _node(obj: Object) -> None:
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    if "capacity" in status:
        status["capacity"] = quantity.as_text(status["capacity"])
        status.setdefault("allocatable", dict(status["capacity"]))
    if "allocatable" in status:
        status["allocatable"] = quantity.as_text(status["allocatable"])


def _namespace(obj: Object) -> None:
    obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = obj["metadata"].get("name", "")


def _claim(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    _fill(spec, volumeMode="Filesystem")
    _resources(spec.setdefault("resources", {}))


def _quota(obj: Object) -> None:
    spec = obj.setdefault("spec", {})
    if "hard" in spec:
        spec["hard"] = quantity.as_text(spec["hard"])


def _priority_class(obj: Object) -> None:
    _fill(obj, preemptionPolicy="PreemptLowerPriority")


def _role_binding(obj: Object) -> None:
    for subject in obj.get("subjects") or ():
        group = "" if subject.get("kind") == "ServiceAccount" else "rbac.authorization.k8s.io"
        if group:
            subject.setdefault("apiGroup", group)
    if "roleRef" in obj:
        obj["roleRef"].setdefault("apiGroup", "rbac.authorization.k8s.io")


_ROLLING = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}
_ROLLING_DAEMONS = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}

BY_KIND: dict[tuple[str, str], t.Callable[[Object], None]] = {
    ("", "Pod"): pod,
    ("", "Service"): _service,
    ("", "Secret"): _secret,
    ("", "Node"): _node,
    ("", "Namespace"): _namespace,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "ResourceQuota"): _quota,
    ("batch", "Job"): job,
    ("batch", "CronJob"): _cron_job,
    ("apps", "DaemonSet"): _workload(updateStrategy=_ROLLING_DAEMONS, revisionHistoryLimit=10),
    ("apps", "Deployment"): _workload(replicas=1, strategy=_ROLLING, revisionHistoryLimit=10, progressDeadlineSeconds=600),
    ("apps", "ReplicaSet"): _workload(replicas=1),
    ("apps", "StatefulSet"): _workload(
        replicas=1,
        podManagementPolicy="OrderedReady",
        revisionHistoryLimit=10,
        updateStrategy={"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
    ),
    ("scheduling.k8s.io", "PriorityClass"): _priority_class,
    ("rbac.authorization.k8s.io", "RoleBinding"): _role_binding,
    ("rbac.authorization.k8s.io", "ClusterRoleBinding"): _role_binding,
}


def quality_of_service(spec: Object) -> str:
    """status.qosClass of a pod: Guaranteed, Burstable or BestEffort, by cpu and memory alone."""
    requests: list[Object] = []
    limits: list[Object] = []
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        resources = container.get("resources") or {}
        requests.append({k: v for k, v in (resources.get("requests") or {}).items() if k in ("cpu", "memory")})
        limits.append({k: v for k, v in (resources.get("limits") or {}).items() if k in ("cpu", "memory")})
    if not any(requests) and not any(limits):
        return "BestEffort"
    guaranteed = all(set(limit) == {"cpu", "memory"} for limit in limits) and all(
        quantity.parse(request.get(key)) == quantity.parse(limit[key])
        for request, limit in zip(requests, limits, strict=True)
        for key in limit
    )
    return "Guaranteed" if guaranteed else "Burstable"


def pod_status(obj: Object) -> None:
    """The status of a pod that was just created."""
    obj["status"] = {"phase": "Pending", "qosClass": quality_of_service(obj["spec"])}


def _namespace_status(obj: Object) -> None:
    obj.setdefault("spec", {})["finalizers"] = ["kubernetes"]
    obj["status"] = {"phase": "Active"}


def _quota_status(obj: Object) -> None:
    obj["status"] = {}


INITIAL_STATUS: dict[tuple[str, str], t.Callable[[Object], None]] = {
    ("", "Pod"): pod_status,
    ("", "Namespace"): _namespace_status,
    ("", "PersistentVolumeClaim"): lambda obj: obj.update(status={"phase": "Pending"}),
    ("", "Service"): lambda obj: obj.update(status={"loadBalancer": {}}),
    ("", "ResourceQuota"): _quota_status,
    ("batch", "Job"): lambda obj: obj.update(status={}),
    ("apps", "Deployment"): lambda obj: obj.update(status={}),
    ("apps", "ReplicaSet"): lambda obj: obj.update(status={"replicas": 0}),
    ("apps", "StatefulSet"): lambda obj: obj.update(status={"replicas": 0, "availableReplicas": 0}),
    ("apps", "DaemonSet"): lambda obj: obj.update(
        status={"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}
    ),
}


# --- of any kind ----------------------------------------------------------------------------------------------------------


def set_defaults(resource: Resource, obj: Object) -> None:
    """The defaults of the kind."""
    fill = BY_KIND.get((resource.group, resource.kind))
    if fill:
        fill(obj)
    if resource.kind == "CustomResourceDefinition":
        structural.complete_names(obj)


def set_initial(resource: Resource, obj: Object) -> None:
    """What only a new object gets: the selector of a Job and the first status."""
    kind = (resource.group, resource.kind)
    if kind == ("batch", "Job"):
        job_selector(obj)
    if resource.has_status and not resource.keeps_status:
        obj.pop("status", None)
    if kind in INITIAL_STATUS:
        INITIAL_STATUS[kind](obj)


def set_new_metadata(resource: Resource, namespace: str, metadata: Object) -> None:
    """Name, namespace, uid and time of a new object. Raises 400 for another namespace, 422 without a name."""
    if metadata.get("namespace", namespace) != namespace:
        raise bad_request("the namespace of the provided object does not match the namespace sent on the request")
    if namespace:
        metadata["namespace"] = namespace
    else:
        metadata.pop("namespace", None)
    if not metadata.get("name"):
        if not metadata.get("generateName"):
            raise invalid(resource.group, resource.kind, "", [required("metadata.name", "name or generateName is required")])
        metadata["name"] = metadata["generateName"][:58] + names.random_suffix()
    for key in ("selfLink", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        metadata.pop(key, None)
    metadata["uid"] = str(uuid.uuid4())
    metadata["creationTimestamp"] = clock.stamp(clock.now())
    if resource.generation:
        metadata["generation"] = 1
