# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""What each kind of measurement can put into its `values`: name, type, unit and meaning.

Criteria are type-checked against these tables before anything starts, and the documentation of `measured.*`
is generated from them. A kind whose metrics are declared by the user (a log profile, key=value output) has
`OPEN` in its entry: names beyond the table are allowed there.
"""

from __future__ import annotations

import typing as t


class Metric(t.NamedTuple):
    """One value a measurement may carry.

    type: number | int | bool | string. Every metric may also be null: unknown.
    unit: as shown to people; "" for plain numbers and words.
    """

    type: str
    unit: str
    description: str


NCCL: dict[str, Metric] = {
    "bus_bandwidth": Metric("number", "GB/s", "Mean out-of-place bus bandwidth at the judged message size"),
    "alg_bandwidth": Metric("number", "GB/s", "Mean out-of-place algorithm bandwidth at the judged message size"),
    "bus_bandwidth_peak": Metric("number", "GB/s", "Highest per-size mean bus bandwidth, as NVCRE judges it"),
    "alg_bandwidth_peak": Metric("number", "GB/s", "Highest per-size mean algorithm bandwidth, as NVCRE judges it"),
    "bus_bandwidth_min": Metric("number", "GB/s", "Lowest sample of the bus bandwidth at the judged size"),
    "bus_bandwidth_max": Metric("number", "GB/s", "Highest sample of the bus bandwidth at the judged size"),
    "spread": Metric("number", "", "(max - min) / max of the samples at the judged size"),
    "samples": Metric("int", "", "Samples at the judged size"),
    "message_size": Metric("int", "B", "The judged message size"),
    "time_us": Metric("number", "us", "Mean out-of-place time at the judged size"),
    "latency_us": Metric("number", "us", "Mean out-of-place time at the smallest non-zero size"),
    "avg_bus_bandwidth": Metric("number", "GB/s", "The program's own average over all sizes; never a link rate"),
    "collapse": Metric("number", "", "Bandwidth at the largest size over the peak; below 0.9 large messages collapse"),
    "collective": Metric("string", "", "all_reduce, all_gather, ..."),
    "datatype": Metric("string", "", "Type word of the judged rows; null when several were run"),
    "redop": Metric("string", "", "Reduction of the judged rows; null when several were run or none applies"),
    "ranks": Metric("int", "", "Ranks of the judged group"),
    "nodes": Metric("int", "", "Hosts of the judged group"),
    "transport": Metric("string", "", "ib, roce, efa, ofi, tcp, mnnvl, nvlink, pcie, shm, a vendor name, or unknown"),
    "gdr": Metric("string", "", "GPU Direct RDMA over the edges between hosts: all, partial, none, not_applicable"),
    "data_correct": Metric("bool", "", "Whether the elements were right; null when they were not checked"),
    "wrong": Metric("number", "", "Wrong elements summed over all rows and both placements; null when not checked"),
    "nvls": Metric("bool", "", "NVLink SHARP channels were set up; null when the log does not say"),
    "nccl_version": Metric("string", "", "NCCL library that ran"),
}

DCGM: dict[str, Metric] = {
    "result": Metric("string", "", "Class of the worst entity: pass, warn, config_fail, hardware_fail, incomplete, ..."),
    "gpus": Metric("int", "", "GPUs the diagnostic listed"),
    "failed_gpus": Metric("int", "", "GPUs named as failed"),
    "tests": Metric("int", "", "Tests in the document"),
    "tests_passed": Metric("int", "", "Tests with the result Pass"),
    "tests_failed": Metric("int", "", "Tests with the result Fail"),
    "tests_warned": Metric("int", "", "Tests with the result Warn"),
    "tests_skipped": Metric("int", "", "Tests that were skipped or did not run"),
    "severity": Metric("string", "", "Worst severity: monitor, config, triage, reset, isolate; null without an error"),
    "dcgm_version": Metric("string", "", "DCGM that ran"),
}

GOODPUT: dict[str, Metric] = {
    "goodput": Metric("number", "", "Useful time over all time, 0 to 1, corrected for the log interval; null when unmeasured"),
    "goodput_nvcre": Metric("number", "", "The same by NVCRE's formula to the letter"),
    "goodput_consistent": Metric("bool", "", "Whether the terms agree with the steps that were kept, within 0.05"),
    "interruptions": Metric("int", "", "Interruptions after the training had begun"),
    "lost_steps": Metric("int", "", "Steps that were done and lost by interruptions"),
    "wall_time_s": Metric("number", "s", "Start of the measurement to the end of the job"),
}

TRAINING: dict[str, Metric] = {
    "avg_step_time_s": Metric("number", "s", "Mean time of a step after the warm-up, weighted by the steps a line covers"),
    "step_time_min_s": Metric("number", "s", "Fastest line after the warm-up"),
    "step_time_max_s": Metric("number", "s", "Slowest line after the warm-up"),
    "step_time_spread": Metric("number", "", "(max - min) / max of the lines after the warm-up"),
    "tflops_per_gpu": Metric("number", "TFLOP/s", "Work over time per GPU after the warm-up: lines are weighted by the time they cover"),
    "samples_per_second": Metric("number", "1/s", "Global batch size over the mean step time"),
    "tokens_per_second": Metric("number", "1/s", "Tokens over all GPUs: samples per second by the sequence length that was printed"),
    "tokens_per_second_per_gpu": Metric("number", "1/s", "The same per GPU, where the number of ranks was printed"),
    "ranks": Metric("int", "", "Ranks of the training, as the program printed them"),
    "steps": Metric("int", "", "Step lines that count in the averages"),
    "iterations": Metric("int", "", "Highest iteration reached"),
    "total_iterations": Metric("int", "", "Iterations the job was asked for"),
    "loss_first": Metric("number", "", "First loss that was printed"),
    "loss_last": Metric("number", "", "Loss of the last step line; null when it is missing or not a number"),
    "diverged": Metric("bool", "", "Whether loss or gradient norm are no numbers at the end"),
    "nan_iterations": Metric("int", "", "Iterations with a loss that is not a number, as counted by the program"),
    "skipped_iterations": Metric("int", "", "Iterations skipped, as counted by the program"),
    "checkpoints": Metric("int", "", "Checkpoints that became durable"),
    "checkpoint_save_s": Metric("number", "s", "Time that saves kept the training from going on, summed"),
    "restarts": Metric("int", "", "Starts of the application after the first"),
    "rank_time_ratio": Metric("number", "", "Slowest over fastest rank in forward and backward pass, where timers are printed"),
    "framework": Metric("string", "", "megatron, megatron-bridge, nemo or lightning"),
    **GOODPUT,
}

PERFTEST: dict[str, Metric] = {
    "bandwidth": Metric("number", "GB/s", "Average bandwidth at the judged message size, of the slowest table"),
    "bandwidth_gbit": Metric("number", "Gb/s", "The same in the unit network ports are sold in"),
    "bandwidth_peak": Metric("number", "GB/s", "Peak bandwidth at the judged message size; null when not measured"),
    "message_rate": Metric("number", "Mpps", "Messages per microsecond at the judged message size"),
    "latency_us": Metric("number", "us", "Typical (median) latency at the judged message size"),
    "latency_avg_us": Metric("number", "us", "Mean latency at the judged message size"),
    "latency_min_us": Metric("number", "us", "Lowest latency at the judged message size"),
    "latency_max_us": Metric("number", "us", "Highest latency at the judged message size"),
    "latency_p99_us": Metric("number", "us", "99th percentile of the latency at the judged message size"),
    "message_size": Metric("int", "B", "The judged message size"),
    "iterations": Metric("int", "", "Iterations at the judged message size"),
    "device": Metric("string", "", "RDMA device"),
    "link_type": Metric("string", "", "IB or Ethernet"),
    "mtu": Metric("int", "B", "MTU of the connection"),
    "test": Metric("string", "", "write_bw, send_lat, ..."),
    "pairs": Metric("int", "", "Pairs of NICs that were measured one by one"),
    "pairs_spread": Metric("number", "", "(max - min) / max of the bandwidth, or latency, over those pairs"),
}

FIO: dict[str, Metric] = {
    "read_bandwidth": Metric("number", "GB/s", "Read bandwidth summed over the jobs"),
    "write_bandwidth": Metric("number", "GB/s", "Write bandwidth summed over the jobs"),
    "read_iops": Metric("number", "1/s", "Read operations per second summed over the jobs"),
    "write_iops": Metric("number", "1/s", "Write operations per second summed over the jobs"),
    "read_latency_us": Metric("number", "us", "Mean completion latency of reads"),
    "write_latency_us": Metric("number", "us", "Mean completion latency of writes"),
    "read_latency_p99_us": Metric("number", "us", "Worst 99th percentile of the completion latency of reads"),
    "write_latency_p99_us": Metric("number", "us", "Worst 99th percentile of the completion latency of writes"),
    "errors": Metric("int", "", "Jobs or I/Os that ended with an error"),
    "jobs": Metric("int", "", "Jobs in the document"),
    "runtime_s": Metric("number", "s", "Longest run time of a job"),
}

NVBANDWIDTH: dict[str, Metric] = {
    "host_to_device": Metric("number", "GB/s", "Lowest host to device copy bandwidth of a GPU"),
    "device_to_host": Metric("number", "GB/s", "Lowest device to host copy bandwidth of a GPU"),
    "device_to_device": Metric("number", "GB/s", "Lowest device to device bandwidth of a pair"),
    "spread": Metric("number", "", "Worst (max - min) / max inside one test"),
    "host_spread": Metric("number", "", "The same of the copies between the host and one GPU at a time"),
    "testcases": Metric("int", "", "Test cases that ran"),
    "failed": Metric("int", "", "Test cases that failed or found wrong data"),
    "skipped": Metric("int", "", "Test cases that were waived"),
    "gpus": Metric("int", "", "GPUs listed"),
}

GPU_BURN: dict[str, Metric] = {
    "gflops_min": Metric("number", "GFLOP/s", "Last throughput of the slowest GPU, of all runs in the log"),
    "gflops_max": Metric("number", "GFLOP/s", "Last throughput of the fastest GPU"),
    "gflops_spread": Metric("number", "", "(max - min) / max over the GPUs"),
    "slowest_gpu": Metric("int", "", "Number of the GPU with the lowest throughput"),
    "errors": Metric("int", "", "Wrong results summed over the GPUs"),
    "temperature_max": Metric("number", "C", "Highest temperature that was printed"),
    "gpus": Metric("int", "", "GPUs that were tested"),
    "faulty_gpus": Metric("int", "", "GPUs with wrong results, or that died"),
    "progress": Metric("number", "%", "Last progress that was printed"),
}

NODE_FACTS: dict[str, Metric] = {
    "gpus": Metric("int", "", "GPUs on the fact sheet"),
    "remap_failures": Metric(
        "int", "", "GPUs with a row of memory that could not be remapped; null where no GPU has such a counter, as below"
    ),
    "unrepairable": Metric("int", "", "GPUs whose memory is beyond repair"),
    "sram_threshold_exceeded": Metric("int", "", "GPUs whose SRAM had more errors than it may have"),
    "remaps_pending": Metric("int", "", "GPUs with a row that waits for a reset to be remapped"),
    "retirements_pending": Metric("int", "", "GPUs with a page that waits for a reset to be retired"),
    "repairs_pending": Metric("int", "", "GPUs with a repair that waits for a reset"),
    "ecc_uncorrectable": Metric("int", "", "Memory errors since the last reset that were not corrected, over all GPUs"),
    "ecc_uncorrectable_ever": Metric("int", "", "The same over the life of the GPUs"),
    "rows_remapped": Metric("int", "", "Rows of memory that were remapped for errors that were not corrected"),
    "recovery_actions": Metric("int", "", "GPUs for which the driver asks for a reset, a reboot or a drain"),
    "slowed_gpus": Metric("int", "", "GPUs that heat or power slows down at this moment"),
    "narrow_links": Metric("int", "", "GPUs whose PCIe link has fewer lanes than it can have"),
    "nvlinks_inactive": Metric("int", "", "NVLinks that are not active"),
    "nvlink_errors": Metric("int", "", "Errors that NVLinks have counted"),
    "nics": Metric("int", "", "RDMA devices of the node"),
    "ports_down": Metric("int", "", "Ports of RDMA devices that are not active"),
    "unread": Metric("int", "", "What the fact sheet could not read"),
    "driver": Metric("string", "", "Version of the GPU driver"),
    "kernel": Metric("string", "", "Version of the kernel"),
}

# kind -> its table. Each kind of measurement.KINDS has one.
METRICS: dict[str, dict[str, Metric]] = {
    "nccl": NCCL,
    "dcgm": DCGM,
    "training": TRAINING,
    "goodput": TRAINING,
    "log_profile": {},
    "perftest": PERFTEST,
    "fio": FIO,
    "nvbandwidth": NVBANDWIDTH,
    "gpu_burn": GPU_BURN,
    "node_facts": NODE_FACTS,
    "key_value": {},
}

# Kinds with further metrics: declared by users, or (nvbandwidth) NAME_min and NAME_sum of every matrix, and NAME_max where it is a latency.
OPEN: frozenset[str] = frozenset({"log_profile", "key_value", "nvbandwidth"})


def units(kind: str, values: t.Mapping[str, t.Any]) -> dict[str, str]:
    """Unit of every value present that has one."""
    table = METRICS.get(kind, {})
    return {name: table[name].unit for name in values if name in table and table[name].unit}
