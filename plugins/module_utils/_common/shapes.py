# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""The shapes that cross rooms: plain dicts, JSON-able, from the request to the report.

One class per shape. docs/data_shapes.md is written from this file (`tools/write_data_shapes.py`): the comment behind a key is its
meaning there. Conventions: times are RFC 3339 UTC texts; names ending `_s` are seconds, `_bytes` bytes; bandwidths are GB/s (10^9
bytes per second); unknown is None, never 0 or "".
"""

from __future__ import annotations

import typing as t

Verdict = t.Literal["passed", "failed", "incomplete", "error"]
NodeVerdict = t.Literal["passed", "failed", "suspect", "untested"]
Outcome = t.Literal["succeeded", "failed", "timed_out", "not_started", "cancelled"]
TestScale = t.Literal["intra-node", "intra-rack", "full-scale", "diagnose", "logs"]
Scalar: t.TypeAlias = float | int | bool | str | None


# --- request: what a user asks for, checked and completed (_plan/spec) ---


class Expression(t.TypedDict):
    """One requirement on node labels, as in a Kubernetes node selector."""

    key: str
    operator: str  # In, NotIn, Exists, DoesNotExist
    values: list[str]


class Target(t.TypedDict):
    """Which nodes are meant."""

    node_selector: dict[str, str]
    match_expressions: list[Expression]
    node_names: list[str]
    include_cordoned: bool
    gpu: str | None  # one GPU product or model only


class IsolationOptions(t.TypedDict):
    """How far a search for the component at fault may go."""

    min_group_size: int
    soak: bool
    budget: dict[str, int]  # waves, tests, node_minutes


class CategoryRequest(t.TypedDict):
    """One category as asked for."""

    test: str  # communication/nccl-all-reduce
    test_scale: str  # intra-node, intra-rack, full-scale, diagnose
    group_size: int | None  # nodes of each group; None: all of the rack, or of the cluster
    left_over: str  # own_group, untested, pair_with_known_good: what becomes of nodes that fill no group
    repeat: int  # how often each group is run and measured
    k_of_n: int | None  # so many of these must pass, each by itself; None: the median of all is judged
    options: dict[str, t.Any]  # the test's own
    criteria: list[str]  # CEL over measured.*
    thresholds: dict[str, str]  # NVCRE's form: {busBandwidthGBps: "value >= 400"}
    floors: bool  # nobody named a criterion: the catalog's floors apply
    isolate: str  # auto, never
    expect_transport: str | None
    again: bool | None  # once more after the last category; None: a fact sheet is, where others follow it
    workload: dict[str, t.Any]  # how pods are made; only what was given


class Request(t.TypedDict):
    """The certification, every key present: spec.json of the archive."""

    name: str
    target: Target
    topology_key: str | None  # None: gpu.clique if the nodes carry one, else the rack label
    categories: list[CategoryRequest]
    allow_no_criteria: bool
    bounds: dict[str, t.Any]  # max_concurrent, max_nodes, {deadline,attempt_timeout,queue_timeout,start_grace,node_grace}_s, retries
    isolation: IsolationOptions
    node_health: str | None  # CEL over a node; None: the default expression


# --- snapshot: the cluster as read once at the start (_cluster) ---


class Exclusion(t.TypedDict):
    """Why a node is no target."""

    reason: str  # NotReady, MemoryPressure, Deleting, Leaving, Starting, Cordoned, LabelWithoutResource, Mig, DevicePlugin, NotSelected ...
    message: str


class NodeFinding(t.TypedDict):
    """A fact that condemns a node before any test."""

    reason: str
    message: str
    evidence: list[str]


class NodeGpus(t.TypedDict):
    """The GPUs of a node."""

    product: str | None  # of the feature discovery label
    model: str | None  # of the GPU table; None: not in it
    memory_mib: int | None
    resource: str  # nvidia.com/gpu
    allocatable: int  # whole physical GPUs
    capacity: int  # whole physical GPUs
    expected: int | None  # by the GPU table and the majority of like nodes
    majority: int | None
    count_label: int | None
    mig: bool
    shared_replicas: int  # 1: not shared


class Domains(t.TypedDict):
    """Where a node stands."""

    clique: str | None  # NVLink domain, UUID.clique in full
    rack: str | None
    block: str | None
    hostname: str


class NodeCondition(t.TypedDict):
    """A condition that is not as it should be."""

    type: str
    status: str
    reason: str
    message: str
    hardware: bool  # it condemns GPUs or fabric
    says: str  # its class by the table of evidence
    why: str


class LeavingMark(t.TypedDict):
    """A mark by which an autoscaler, an operator or the cloud says that it is about to take the node."""

    quote: str
    taint: str | None  # its key, when it is a taint


class SnapshotNode(t.TypedDict):
    """One GPU-looking node."""

    name: str
    uid: t.NotRequired[str | None]  # of the Node object: another machine of this name has another
    target: bool  # False: see exclusion
    exclusion: Exclusion | None
    findings: list[NodeFinding]  # a target with findings stays a target, but no group is built with it
    gpu: NodeGpus
    nics: dict[str, int]  # network resources that pods can ask for, zero included
    domains: Domains
    platform: str | None
    provider_id: str
    ready: bool
    cordoned: bool
    taints: list[dict[str, str]]  # key, value, effect
    leaving: t.NotRequired[list[LeavingMark]]
    labels: dict[str, str]  # without those of feature discovery
    unhealthy: list[NodeCondition]
    versions: dict[str, str | None]  # driver, cuda, kubelet, os_image, kernel, architecture, container_runtime, boot_id


class Platform(t.TypedDict):
    """The detected platform."""

    name: str | None  # None when nodes disagree
    evidence: list[str]


class Snapshot(t.TypedDict):
    """The cluster, frozen for the run: snapshot.json of the archive."""

    schema_version: int
    taken_at: str
    server: dict[str, str | None]  # version, host, uid (of namespace kube-system: no two clusters have the same)
    platform: Platform
    capabilities: dict[str, t.Any]  # trainer, jobset, dra, compute_domains, schedulers, dcgm_service, kueue, success_policy
    topology: dict[str, str | None]  # the labels that domains.rack and domains.block were read from
    gpus: list[dict[str, t.Any]]  # pools of targets: product, model, nodes, gpus_per_node
    nodes: list[SnapshotNode]  # sorted by name
    notes: list[str]  # what could not be read, and guesses that a person should know of


# --- plan (_plan) ---


class Explained(t.TypedDict):
    """Which rule set a value."""

    path: str
    value: t.Any
    rule: str
    overridden: list[dict[str, t.Any]]  # rule, value
    note: t.NotRequired[str]


class Untested(t.TypedDict):
    """A node that no group was built with."""

    node: str
    reason: str
    message: str


class EnvItem(t.TypedDict):
    """One environment variable."""

    name: str
    value: str


class Group(t.TypedDict):
    """Nodes tested together in one workload."""

    name: str  # g001
    nodes: list[str]
    domain: str | None
    expected_transport: str | None  # ib, roce, rdma, efa, tcpxo, mnnvl, nvlink, tcp, any; None: nothing says so
    env: t.NotRequired[dict[str, str]]  # set or replaced in the template for this group alone
    witnesses: t.NotRequired[list[str]]  # those of its nodes that are tested by a group of their own and only complete this one


class Template(t.TypedDict):
    """The resolved workload of a category, stamped per group."""

    framework: str  # mpi, exec, torch: the key that says what to run
    namespace: str
    image: str
    image_pull_secrets: list[str]
    service_account: str | None
    gpus_per_node: int
    nic_resource: str | None
    resources: dict[str, t.Any]  # limits, and requests where none are named
    requests: dict[str, t.Any]
    env: list[EnvItem]
    mpi: t.NotRequired[dict[str, t.Any]]  # mpirun, mpirun_args, binary, args, pre_command
    exec: t.NotRequired[dict[str, t.Any]]  # script or command, per, pre_command
    torch: t.NotRequired[dict[str, t.Any]]  # script or module, args, rendezvous, pre_command
    files: dict[str, str]  # by name, for the pods
    volumes: list[dict[str, t.Any]]
    volume_mounts: list[dict[str, t.Any]]
    labels: dict[str, str]
    annotations: dict[str, str]
    priority_class: str | None
    scheduler_name: str | None
    security: dict[str, t.Any]  # privileged, capabilities, host_network
    init_containers: list[dict[str, t.Any]]
    sidecars: list[dict[str, t.Any]]
    tolerations: list[dict[str, t.Any]]
    ssh_port: int
    success_policy: bool  # the server knows Jobs' success policy
    transport: str | None  # what the platform's network uses
    attempt_timeout_s: int
    active_deadline_s: int  # of the Job; backs every other deadline


class Measure(t.TypedDict):
    """How the log of a category is read; other keys are context of the reader."""

    pods: t.NotRequired[str]  # whose logs beside the first: each (one a node, each for itself), ends (the last too); else none
    kind: str  # nccl, dcgm, training, goodput, log_profile, perftest, fio, nvbandwidth, gpu_burn, node_facts, key_value
    collective: t.NotRequired[str]
    profile: t.NotRequired[str]  # of kind log_profile
    profile_directories: t.NotRequired[list[str]]
    expected_sizes: t.NotRequired[list[int]]
    judged_size: t.NotRequired[int]
    require_data_check: t.NotRequired[bool]
    require_transport_proof: t.NotRequired[bool]
    dcgm_level: t.NotRequired[int]
    expected_gpus: t.NotRequired[int]
    required_tests: t.NotRequired[list[str]]  # of DCGM and nvbandwidth


class Category(t.TypedDict):
    """One catalog test at one scale on one pool of GPUs."""

    id: str  # unique, also when a test is listed twice
    short_id: str  # c01; part of object names
    title: str  # for people
    test: str
    test_scale: str
    gpu: str | None  # product of the pool
    repeat: t.NotRequired[int]  # how often each group is run and measured; absent: once
    k_of_n: t.NotRequired[int | None]  # so many of these must pass, each by itself; None: the median of all is judged
    criteria: list[str]
    thresholds: dict[str, str]
    isolate: str
    options: dict[str, t.Any]
    measure: Measure
    template: Template
    expect_transport: t.NotRequired[str | None]  # the user's own word for it
    net_transport: str | None  # what traffic between NVLink domains must use
    since: t.NotRequired[str]  # the category whose fact sheets these are compared with; nodes that were convicted since are in it too
    floors: t.NotRequired[list[dict[str, t.Any]] | None]  # rows that judge its groups by their size; None: the criteria are the user's
    explain: list[Explained]
    groups: list[Group]
    untested: list[Untested]


class Cost(t.TypedDict):
    """An upper bound: every run of a group goes into its timeout once."""

    groups: int
    runs: t.NotRequired[int]  # of groups, each repeat counted
    nodes: int
    gpu_hours_max: float


class Plan(t.TypedDict):
    """What will run: plan.json of the archive."""

    name: str
    bounds: dict[str, t.Any]
    categories: list[Category]
    cost: Cost
    evidence: list[dict[str, t.Any]]  # the catalog's table of what condemns hardware, applied to nodes under test


class RunMeta(t.TypedDict):
    """When a run started and under which id: run.json of the archive."""

    run_id: str
    version: str | None  # of the collection
    started: str
    started_epoch: float
    deadline_at: str
    deadline_epoch: float
    resumed: t.NotRequired[list[str]]
    finished: t.NotRequired[str]
    name: t.NotRequired[str]
    archive: t.NotRequired[str]
    notes: t.NotRequired[list[str]]


# --- who runs a run (_archive, _run) ---


class ProcessId(t.TypedDict):
    """A process of its machine; a pid alone is given away again."""

    pid: int
    started: str | None  # as the machine counts; None: it does not say


class Owner(t.TypedDict):
    """Who runs a run: in the lock of its directory, and on the anchor of its batch as annotation."""

    host: str  # for people
    machine: str  # boot and pid namespace: where the pids mean something
    user: str
    play: ProcessId  # lives as long as the play
    worker: ProcessId  # of the task that is under way
    since: str  # when the play took it
    token: str  # of this taking


# --- observation: what happened (_run) ---

# Every kind of entry of the journal; the end-to-end tests kill a run after each.
JournalEvent = t.Literal[
    "batch_start",
    "attempt_creating",
    "attempt_running",
    "attempt_decided",
    "attempt_deleting",
    "attempt_done",
    "attempt_acquitted",
    "batch_end",
]


class Cause(t.TypedDict):
    """Why an attempt ended as it did; classified once, when it ends."""

    reason: str  # of the table of reasons
    message: str
    nodes: list[str]  # that it names
    evidence: list[str]
    retryable: bool  # a new attempt may help


class PodRecord(t.TypedDict):
    """One pod of an attempt."""

    name: str
    node: str | None
    index: int | None
    role: str  # launcher, worker
    phase: str | None
    exit_code: int | None
    reason: str | None  # the API's word
    message: str | None  # the API's own words
    restarts: int
    log: str | None  # path, relative to the archive
    log_complete: bool
    log_problem: str | None  # why its log could not be read whole; None: it was, or it was not asked for


class Illness(t.TypedDict):
    """What condemns a node by its own evidence: conditions, taints, the health expression."""

    message: str
    evidence: list[str]
    kinds: list[str]  # the same for all nodes that show it


class NodeState(t.TypedDict):
    """What a node is at a moment. A value that is not known is None, and compares with nothing."""

    uid: str | None  # of the Node object
    boot_id: str | None
    gpus: int | None  # allocatable
    trouble: str | None  # why it cannot run anything; None: it can
    leaving: t.NotRequired[str | None]  # the mark by which it is announced to be taken away, quoted
    since: t.NotRequired[str | None]  # when its trouble was first seen by the batch
    illness: t.NotRequired[Illness]  # what of its own evidence condemns its hardware


class NodeSeen(t.TypedDict):
    """A node in the course of an attempt."""

    node: str
    before: NodeState | None  # when its pod came; None: it was never seen
    after: NodeState | None  # when the attempt's end was decided; None: it had gone
    fewest_gpus: int | None  # that it offered in between


class HealthEvent(t.TypedDict):
    """A node that became unhealthy under test."""

    node: str
    message: str
    evidence: list[str]


class AttemptRecord(t.TypedDict):
    """One execution of a workload. Made by `_causes.record.attempt_record` alone."""

    attempt: int  # 1 is the first
    repeat: t.NotRequired[int]  # of its group that it belongs to; 1 is the first, and what is meant where it is absent
    name: str | None  # of its objects
    outcome: Outcome
    cause: Cause | None  # None: it succeeded and nothing contradicts that
    exit_code: int | None  # of the container that decided
    created: str | None
    started: str | None  # all pods running
    finished: str | None
    duration_s: float | None
    pods: list[PodRecord]
    events: list[str]  # "Warning Failed gpu-…: Failed to pull image …"
    health: list[HealthEvent]
    machines: list[NodeSeen]  # its nodes, before and after
    excluded: list[Untested]  # members that were left out, since they could not be tested when it began


class GroupObservation(t.TypedDict):
    """What happened to a group."""

    name: str
    nodes: list[str]
    attempts: list[AttemptRecord]  # all of them, oldest first


class CleanupProof(t.TypedDict):
    """Whether everything that was created is gone."""

    proven: bool
    left: list[str]
    message: t.NotRequired[str]


class Observation(t.TypedDict):
    """What `workload_batch` leaves in the archive."""

    groups: list[GroupObservation]
    cleanup: CleanupProof | None
    cancelled: str  # why the batch was cut short; "" when it was not
    last_look: t.NotRequired[dict[str, NodeState | None] | None]  # its nodes at the end; a node None: it is gone; None: nobody could look


class FinalLook(t.TypedDict):
    """What has become of all tested nodes, looked at once more before the verdict: last_look.json of the archive."""

    at: str
    nodes: dict[str, NodeState | None] | None  # a node None: it is gone; None: nobody could look
    why: str  # why nobody could


# --- measurement: what logs prove (_measure) ---

MeasurementFinding = t.TypedDict(
    "MeasurementFinding",
    {
        "reason": str,
        "host": "str | None",
        "entity": "str | None",
        "message": str,
        "evidence": list[str],
        "test": t.NotRequired["str | None"],
        "code": t.NotRequired["int | None"],
        "severity": t.NotRequired["str | None"],
        "advice": t.NotRequired[str],
        "confidence": t.NotRequired[str],
        "class": t.NotRequired[str],
        "since": t.NotRequired[str],
    },
)


class Measurement(t.TypedDict):
    """Numbers with units from an attempt's logs. Made by `_measure.measurement.measurement` alone; kinds add keys of their own."""

    kind: str
    verdict: str | None  # a reason: what the logs prove to be wrong; None: nothing
    complete: bool  # False: partial, never compared with a limit
    reason: str  # one sentence for people
    values: dict[str, t.Any]  # what criteria see as measured.*
    units: dict[str, str]
    parsed: dict[str, t.Any]  # rows, footers, devices as read
    transport: dict[str, t.Any] | None  # class, gdr, networks[], hosts{}, blame: [{host, why, line}]
    judged: dict[str, t.Any] | None
    findings: list[MeasurementFinding]


# --- judgement (_judge) ---


class Limit(t.TypedDict):
    """One comparison inside a criterion."""

    metric: str
    op: str
    limit: float
    measured: Scalar
    margin: float | None


class CriterionResult(t.TypedDict):
    """One criterion against a complete measurement."""

    expression: str
    key: str | None  # of an NVCRE threshold
    status: str  # passed, failed, unmeasured, error
    passed: bool
    metric: str
    measured: Scalar
    unit: str | None
    op: str | None
    limit: float | None
    margin: float | None  # distance to the limit as a fraction of it; negative when it is missed
    limits: list[Limit]
    values: dict[str, t.Any]
    error: str | None
    message: str


Finding = t.TypedDict(
    "Finding",
    {
        "reason": str,
        "node": "str | None",
        "message": str,
        "evidence": list[str],
        "hint": str,
        "note": bool,
        "category": t.NotRequired["str | None"],
        "group": t.NotRequired["str | None"],
        "class": t.NotRequired[str],
        "confidence": t.NotRequired[float],
        "since": t.NotRequired[str],
    },
)


class Member(t.TypedDict):
    """What a verdict means for one node."""

    verdict: NodeVerdict
    findings: list[Finding]
    isolated: t.NotRequired[bool]  # isolation decided


class Range(t.TypedDict):
    """Where the values of several measurements lie."""

    low: float
    median: float
    high: float
    spread: float | None  # (high - low) / high; None: nothing is known of it
    samples: int


class JudgedRepeat(t.TypedDict):
    """One repeat of a group, as it would be judged by itself."""

    repeat: int
    verdict: Verdict
    attempts: list[int]  # the numbers of its attempts
    values: dict[str, t.Any]  # of those metrics whose ranges are told


class Repeats(t.TypedDict):
    """The repeats of a group that was to be run more than once."""

    wanted: int
    k_of_n: int | None  # None: the median decides
    measured: int  # those whose values may be compared with limits
    passed: int  # by themselves
    ranges: dict[str, Range]  # by metric: the main one, and what criteria look at
    each: list[JudgedRepeat]


class JudgedGroup(t.TypedDict):
    """A group with its verdict."""

    name: str
    nodes: list[str]
    domain: str | None
    verdict: Verdict
    measured: bool  # a complete measurement exists
    attempts: list[AttemptRecord]
    measurement: Measurement | None  # of a repeated group its values are the medians
    criteria: list[CriterionResult]  # only of complete measurements
    repeats: t.NotRequired[Repeats]  # of a group that was to be run more than once
    findings: list[Finding]  # the one that decided first
    members: dict[str, Member]


class Conclusion(t.TypedDict):
    """What isolation says of a node, or of something between nodes."""

    node: str | None  # None: a pair, a path, a boundary; told of `nodes`, which keep their verdict
    verdict: NodeVerdict
    reason: str
    message: str
    evidence: list[str]
    hint: t.NotRequired[str]
    nodes: t.NotRequired[list[str]]


class JudgedCategory(t.TypedDict):
    """A category with its verdict: judged/<category>.json of the archive."""

    id: str
    test: str
    test_scale: str
    verdict: Verdict
    why: str  # "1 of 16 groups failed, 4 nodes suspect (ThresholdViolation 1)"
    criteria: list[dict[str, t.Any]]  # expression, key, metrics[], limits[], unit, place
    allow_no_criteria: bool
    groups: list[JudgedGroup]
    untested: list[Untested]
    members: dict[str, Member]  # worst of its groups; after isolation its conclusion
    isolation: dict[str, t.Any] | None  # findings[], conclusion?


OwnFinding = t.TypedDict(
    "OwnFinding",
    {
        "reason": str,
        "category": "str | None",
        "group": "str | None",
        "message": str,
        "evidence": list[str],
        "hint": str,
        "note": bool,
        "class": t.NotRequired[str],
        "confidence": t.NotRequired[float],
        "since": t.NotRequired[str],
    },
)


class JudgedNode(t.TypedDict):
    """A target node over all categories."""

    name: str
    verdict: NodeVerdict
    findings: list[OwnFinding]  # of the node, so none names it


class Coverage(t.TypedDict):
    """How much of what was asked for was tested."""

    targets: int
    tested: int
    excluded: int
    ratio: float  # tested / (targets + excluded)


class RolledUp(t.TypedDict):
    """The certification's verdict."""

    verdict: Verdict
    why: str
    coverage: Coverage
    categories: list[JudgedCategory]
    nodes: list[JudgedNode]
    excluded: list[Untested]
    not_selected: list[str]


# --- report (_report) ---


class RackRow(t.TypedDict):
    """The groups of a category that stand in one rack."""

    rack: str
    groups: int
    groups_measured: int
    nodes: int
    nodes_measured: int
    low: float | None  # value of a group; None: none was measured
    median: float | None
    high: float | None


class RollUp(t.TypedDict):
    """A category by racks."""

    metric: str | None  # the main one of the category; None: nothing was measured
    unit: str | None
    racks: list[RackRow]


class Report(t.TypedDict):
    """report.json: every other format is a view of it. docs/report.schema.json describes it to the last key."""

    schema_version: int
    generator: dict[str, str | None]
    run_id: str
    verdict: Verdict
    why: str
    started: str | None
    finished: str | None
    certification: dict[str, t.Any]
    cluster: dict[str, t.Any]
    coverage: Coverage
    cost: Cost | None
    categories: list[dict[str, t.Any]]
    nodes: list[JudgedNode]
    excluded: list[Untested]
    not_selected: list[str]
    cleanup: CleanupProof
    notes: list[str]
    archive: str | None
