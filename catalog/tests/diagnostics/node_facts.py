# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Prints what a pod may read of its node, as one JSON document: host, GPUs, topology, NICs, and what could not be read and why.

Numbers are numbers, what a device does not have is null. Nothing is judged here.
"""

import ctypes
import json
import os
import re
import subprocess
import time
import xml.etree.ElementTree

SYS = os.environ.get("READINESS_SYS", "/sys")
PROC = os.environ.get("READINESS_PROC", "/proc")
KMSG = os.environ.get("READINESS_KMSG", "/dev/kmsg")
UNREAD = []


def unread(what, why):
    UNREAD.append({"what": what, "why": " ".join(str(why).split())[:300]})


def ask(*command):
    """What a command prints; "" and a word about it when it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        unread(" ".join(command), error)
        return ""
    if done.returncode:
        unread(" ".join(command), f"exit {done.returncode}: {done.stdout[-200:]} {done.stderr[-200:]}")
        return ""
    return done.stdout


def read(path, told=True):
    """The text of a file without blanks around it; None when it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read().strip()
    except OSError as error:
        if told:
            unread(path, error.strerror or error)
        return None


def listed(path):
    """The entries of a folder in the order of their numbers; none where it is not there."""
    names = os.listdir(path) if os.path.isdir(path) else []
    return sorted(names, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])


def number(text):
    """The number a text begins with; None for N/A and the like."""
    match = re.match(r"-?\d+(\.\d+)?", text or "")
    return None if match is None else float(match.group()) if match.group(1) else int(match.group())


def yes(text):
    return {"Yes": True, "No": False, "Active": True, "Not Active": False, "Enabled": True, "Disabled": False}.get(text)


def either(*said):
    known = [item for item in said if item is not None]
    return any(known) if known else None


def word(text):
    return None if text in (None, "", "N/A", "[N/A]") or text.startswith(("Requested functionality", "Unknown")) else text


# --- GPUs


def memory_errors(node, kind):
    """The sum of the counters of memory errors of a kind (correctable, uncorrectable); None where the GPU has none. Drivers split them
    differently."""
    if node is None:
        return None
    counts = [number(item.text) for item in node if kind in item.tag.split("_")]
    found = [count for count in counts if count is not None]
    return sum(found) if found else None


def gpu_facts(index, gpu):
    def at(path):
        return (gpu.findtext(path) or "").strip()

    def first(*paths):
        return next((at(path) for path in paths if gpu.find(path) is not None), "")

    reasons = gpu.find("clocks_event_reasons")
    reasons = reasons if reasons is not None else gpu.find("clocks_throttle_reasons")
    reasons = [] if reasons is None else reasons
    slowed = [] if gpu.find("clocks_event_reasons_counters") is None else gpu.find("clocks_event_reasons_counters")
    volatile, aggregate = gpu.find("ecc_errors/volatile"), gpu.find("ecc_errors/aggregate")
    return {
        "number": index,
        "uuid": word(at("uuid")),
        "serial": word(at("serial")),
        "bus_id": gpu.get("id"),
        "name": word(at("product_name")),
        "vbios": word(at("vbios_version")),
        "part_number": word(at("board_part_number")),
        "mig": word(at("mig_mode/current_mig")),
        "pcie": {
            "generation": number(at("pci/pci_gpu_link_info/pcie_gen/current_link_gen")),
            "max_generation": number(at("pci/pci_gpu_link_info/pcie_gen/max_link_gen")),
            "width": number(at("pci/pci_gpu_link_info/link_widths/current_link_width")),
            "max_width": number(at("pci/pci_gpu_link_info/link_widths/max_link_width")),
            "replays": number(at("pci/replay_counter")),
        },
        "ecc": {
            "enabled": yes(at("ecc_mode/current_ecc")),
            "correctable": memory_errors(volatile, "correctable"),
            "correctable_ever": memory_errors(aggregate, "correctable"),
            "uncorrectable": memory_errors(volatile, "uncorrectable"),
            "uncorrectable_ever": memory_errors(aggregate, "uncorrectable"),
            "sram_threshold_exceeded": yes(at("ecc_errors/aggregate/sram_threshold_exceeded")),
            "unrepairable": yes(at("ecc_errors/unrepairable_memory")),
            "repair_pending": either(yes(at("ecc_errors/channel_repair_pending")), yes(at("ecc_errors/tpc_repair_pending"))),
        },
        "remapped_rows": {
            "correctable": number(at("remapped_rows/remapped_row_corr")),
            "uncorrectable": number(at("remapped_rows/remapped_row_unc")),
            "pending": yes(at("remapped_rows/remapped_row_pending")),
            "failure": yes(at("remapped_rows/remapped_row_failure")),
        },
        "retired_pages": {
            "single_bit": number(at("retired_pages/multiple_single_bit_retirement/retired_count")),
            "double_bit": number(at("retired_pages/double_bit_retirement/retired_count")),
            "pending": yes(first("retired_pages/pending_retirement", "retired_pages/pending_blacklist")),
        },
        "clocks": {
            "sm_mhz": number(at("clocks/sm_clock")),
            "max_sm_mhz": number(at("max_clocks/sm_clock")),
            "memory_mhz": number(at("clocks/mem_clock")),
            "max_memory_mhz": number(at("max_clocks/mem_clock")),
        },
        "slowed_by": [re.sub(r"clocks_(event|throttle)_reason_", "", item.tag) for item in reasons if yes((item.text or "").strip())],
        "slowed_us": {item.tag.replace("clocks_event_reasons_counters_", ""): number(item.text) for item in slowed},
        "power": {
            "limit_w": number(first("gpu_power_readings/current_power_limit", "power_readings/power_limit")),
            "default_w": number(first("gpu_power_readings/default_power_limit", "power_readings/default_power_limit")),
        },
        "temperature_c": number(at("temperature/gpu_temp")),
        "recovery_action": word(at("gpu_recovery_action")),
        "fabric": {"state": word(at("fabric/state")), "status": word(at("fabric/status"))},
    }


def nvlinks(states, errors):
    """By the UUID of the GPU: links, those that are not active, the counters of errors of each link, and their sums."""
    found = {}
    uuid = None
    for line in [*states.splitlines(), *errors.splitlines()]:
        if match := re.search(r"\(UUID: (\S+?)\)", line):
            uuid = match.group(1)
            found.setdefault(uuid, {"links": 0, "inactive": [], "errors": {}, "counters": {}})
        elif uuid and (match := re.match(r"\s*Link (\d+): (?:<inactive>|[\d.]+ GB/s)\s*$", line)):
            found[uuid]["links"] += 1
            if "inactive" in line:
                found[uuid]["inactive"].append(int(match.group(1)))
        elif uuid and (match := re.match(r"\s*Link (\d+): (.*Errors?.*?): (\d+)\s*$", line)):
            name = match.group(2).lower().replace(" ", "_")
            found[uuid]["errors"][name] = found[uuid]["errors"].get(name, 0) + int(match.group(3))
            found[uuid]["counters"].setdefault(match.group(1), {})[name] = int(match.group(3))
    return found


def gpus():
    """(driver, GPUs)"""
    text = ask("nvidia-smi", "-q", "-x")
    try:
        root = xml.etree.ElementTree.fromstring(text) if text else None
    except xml.etree.ElementTree.ParseError as error:
        unread("nvidia-smi -q -x", error)
        root = None
    if root is None:
        return {}, []
    found = [gpu_facts(index, gpu) for index, gpu in enumerate(root.findall("gpu"))]
    links = nvlinks(ask("nvidia-smi", "nvlink", "-s"), ask("nvidia-smi", "nvlink", "-e"))
    for gpu in found:
        gpu["nvlinks"] = links.get(gpu["uuid"])
    return {"version": root.findtext("driver_version"), "cuda": root.findtext("cuda_version")}, found


# --- NICs


COUNTERS = ("symbol_error", "link_downed", "link_error_recovery", "port_rcv_errors", "local_link_integrity_errors", "port_xmit_discards")


def port_facts(path, name):
    at = os.path.join(path, "ports", name)
    counters = {counter: number(read(os.path.join(at, "counters", counter), told=False)) for counter in COUNTERS}
    gids = {}
    for index in listed(os.path.join(at, "gids")):
        gid = read(os.path.join(at, "gids", index), told=False)
        if gid and set(gid) - set("0:") and not gid.endswith(":0000:0000:0000:0000"):
            gids[index] = {"gid": gid, "type": read(os.path.join(at, "gid_attrs", "types", index), told=False)}
    return {
        "number": int(name),
        "state": (read(os.path.join(at, "state")) or "").partition(": ")[2] or None,
        "physical": (read(os.path.join(at, "phys_state")) or "").partition(": ")[2] or None,
        "rate": read(os.path.join(at, "rate")),
        "link_layer": read(os.path.join(at, "link_layer")),
        "gids": gids,
        "counters": counters,
    }


def nics():
    root = os.path.join(SYS, "class", "infiniband")
    found = []
    for device in listed(root):
        path = os.path.join(root, device)
        found.append(
            {
                "device": device,
                "model": read(os.path.join(path, "hca_type"), told=False),
                "board": read(os.path.join(path, "board_id"), told=False),
                "firmware": read(os.path.join(path, "fw_ver")),
                "numa_node": number(read(os.path.join(path, "device", "numa_node"), told=False)),
                "ports": [port_facts(path, port) for port in listed(os.path.join(path, "ports"))],
            }
        )
    return found


# --- the kernel log

XIDS_KEPT = 64
STAMP = r"\[ *(\d+\.\d+)\]"
READ_ALL, SIZE_OF_BUFFER = 3, 10


def kernel_lines():
    """(seconds since the boot, text) of each line of the kernel's log; None when it may not be read."""
    try:
        descriptor = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        text = kernel_buffer()
        if text is None:
            unread("the kernel's log", f"{KMSG}: {error.strerror}; klogctl: {os.strerror(ctypes.get_errno())}")
            return None
        found = [re.match(rf"(?:<\d+>)?{STAMP}(.*)", line) for line in text.splitlines()]
        return [(float(match.group(1)), match.group(2)) for match in found if match]
    with open(descriptor, "rb", buffering=0) as device:
        return list(records(device))


def kernel_buffer():
    libc = ctypes.CDLL(None, use_errno=True)
    size = libc.klogctl(SIZE_OF_BUFFER, None, 0)
    buffer = ctypes.create_string_buffer(max(size, 1))
    count = libc.klogctl(READ_ALL, buffer, size) if size > 0 else -1
    return None if count < 0 else buffer.raw[:count].decode(errors="replace")


def records(device):
    """What /dev/kmsg gives, a record at each read: "level,number,microseconds,flags;text"."""
    while True:
        try:
            data = device.read(8192)
        except BrokenPipeError:  # a record was overwritten before it was read
            continue
        except OSError:
            return
        if not data:
            return
        for line in data.decode(errors="replace").splitlines():
            match = re.match(r"\d+,\d+,(\d+),[^;]*;(.*)", line)
            if match:
                yield int(match.group(1)) / 1e6, match.group(2)


def kernel_log():
    """The Xids of the kernel's log, and when its last line was written; None when it may not be read."""
    lines = kernel_lines()
    if lines is None:
        return None
    uptime = number(read(os.path.join(PROC, "uptime"), told=False))
    found = []
    for at_s, text in lines:
        match = re.search(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)[^)]*\): (\d+)", text)
        if match:
            line = " ".join(text.split())[:200]
            found.append({"at_s": at_s, "at": None if uptime is None else stamp(time.time() - uptime + at_s),
                          "code": int(match.group(2)), "bus_id": match.group(1), "line": line})  # fmt: skip
    return {"last_s": max((at_s for at_s, _text in lines), default=None), "xids": found[-XIDS_KEPT:]}


def stamp(epoch):
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(epoch))


# --- the host


def host():
    memory = re.search(r"MemTotal:\s+(\d+) kB", read(os.path.join(PROC, "meminfo")) or "")
    nodes = [name for name in listed(os.path.join(SYS, "devices", "system", "node")) if re.fullmatch(r"node\d+", name)]
    return {
        "kernel": read(os.path.join(PROC, "sys", "kernel", "osrelease")),
        "boot_id": read(os.path.join(PROC, "sys", "kernel", "random", "boot_id")),
        "product": read(os.path.join(SYS, "class", "dmi", "id", "product_name"), told=False),
        "cpus": os.cpu_count(),
        "memory_kib": int(memory.group(1)) if memory else None,
        "numa_nodes": {name: read(os.path.join(SYS, "devices", "system", "node", name, "cpulist")) for name in nodes},
    }


def main():
    driver, found = gpus()
    topology = re.sub(r"\x1b\[[0-9;]*m", "", ask("nvidia-smi", "topo", "-m"))
    facts = {
        "host": host(),
        "driver": driver,
        "gpus": found,
        "topology": topology.splitlines(),
        "nics": nics(),
        "kernel_log": kernel_log(),
        "unread": UNREAD,
    }
    print(json.dumps({"node_facts": facts}, indent=1), flush=True)


if __name__ == "__main__":
    main()
