# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""A small training that finishes in a minute or two on any GPU with PyTorch alone, started by torchrun.

A stack of transformer layers learns to repeat random tokens: data parallel over all ranks (DistributedDataParallel, so each step ends with
an all-reduce of the gradients), mock data from a seed, mixed precision, a checkpoint that is written, read back and compared.
The last rank prints its steps, the first its checkpoints, in the layout of Megatron-LM, which the collection's reader knows.
"""

import argparse
import datetime
import math
import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--train-iters", type=int, default=50)
    parser.add_argument("--log-interval", type=int, default=5)
    parser.add_argument("--num-layers", type=int, default=8)
    parser.add_argument("--hidden-size", type=int, default=1024)
    parser.add_argument("--seq-length", type=int, default=512)
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--vocab-size", type=int, default=8192)
    parser.add_argument("--seed", type=int, default=1234)
    parser.add_argument("--save", default="", help="directory for the checkpoint; empty: none is written")
    return parser.parse_args()


class Model(nn.Module):
    """Tokens in, a guess for each position out."""

    def __init__(self, options):
        super().__init__()
        self.embedding = nn.Embedding(options.vocab_size, options.hidden_size)
        layer = nn.TransformerEncoderLayer(
            options.hidden_size, options.hidden_size // 64, 4 * options.hidden_size, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, options.num_layers, enable_nested_tensor=False)
        self.head = nn.Linear(options.hidden_size, options.vocab_size, bias=False)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)))


def flops_per_sample(model, options):
    """Forward and backward: six operations for each parameter and token, and twelve for each pair of tokens in attention."""
    dense = sum(parameter.numel() for name, parameter in model.named_parameters() if "embedding" not in name)
    attention = 12 * options.num_layers * options.hidden_size * options.seq_length
    return (6 * dense + attention) * options.seq_length


def clock():
    return datetime.datetime.now().strftime("%Y-%m-%d %H:%M:%S.%f")


def save_and_compare(model, optimizer, iteration, options):
    """Writes a checkpoint, reads it back, and ends the run when they differ: a file system that loses bytes is found here."""
    os.makedirs(options.save, exist_ok=True)
    path = os.path.join(options.save, f"iter_{iteration:07d}.pt")
    print(f"saving checkpoint at iteration {iteration:7d} to {options.save} in torch format", flush=True)
    torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "iteration": iteration}, path)
    loaded = torch.load(path, map_location="cpu", weights_only=True)
    for name, value in model.module.state_dict().items():
        if not torch.equal(value.cpu(), loaded["model"][name]):
            sys.exit(f"checkpoint {path} is not what was written: {name} differs")
    os.unlink(path)
    print(f"  successfully saved checkpoint from iteration {iteration:7d} to {options.save} [ t 1/1, p 1/1 ]", flush=True)


def main():
    options = parse_arguments()
    local = int(os.environ["LOCAL_RANK"])
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", local) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", device_id=device if on_gpu else None)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(Model(options).to(device), device_ids=[local] if on_gpu else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    generator = torch.Generator(device="cpu").manual_seed(options.seed + rank)
    batch = options.micro_batch_size * ranks
    work = flops_per_sample(model.module, options) * options.micro_batch_size
    if rank == 0:
        print(f"using world size: {ranks}, data-parallel size: {ranks}, tensor-model-parallel size: 1, pipeline-model-parallel size: 1")
        print(f"[before the start of training step] datetime: {clock()} ", flush=True)
    dist.barrier()
    since, skipped, bad = time.perf_counter(), 0, 0
    for iteration in range(1, options.train_iters + 1):
        tokens = torch.randint(options.vocab_size, (options.micro_batch_size, options.seq_length), generator=generator).to(device)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if iteration % options.log_interval and iteration != options.train_iters:
            continue
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        mean = float(mean) / ranks
        steps = iteration % options.log_interval or options.log_interval
        took = (time.perf_counter() - since) / steps
        bad += math.isnan(mean)
        if rank == ranks - 1:
            shown = f"grad norm: {float(norm):.3f}"
            loss_text = "" if math.isnan(mean) else f" lm loss: {mean:.6E} |"
            print(
                f" [{clock()}] iteration {iteration:8d}/{options.train_iters:8d} | consumed samples: {iteration * batch:12d} | "
                f"elapsed time per iteration (ms): {took * 1e3:.1f} | throughput per GPU (TFLOP/s/GPU): {work / took / 1e12:.1f} | "
                f"learning rate: 3.000000E-04 | global batch size: {batch:5d} |{loss_text} loss scale: 1.0 | {shown} | "
                f"number of skipped iterations: {skipped:3d} | number of nan iterations: {bad:3d} |",
                flush=True,
            )
        since = time.perf_counter()
    if options.save and local == 0:
        save_and_compare(model, optimizer, options.train_iters, options)
    dist.barrier()
    if rank == 0:
        print(f"[after training is done] datetime: {clock()} ", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
