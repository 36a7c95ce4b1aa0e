# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Megatron-LM's pretrain_gpt.py, started by torchrun, with the arguments that follow from the number of ranks.

Takes Megatron's own arguments and hands them on. Of its own: --source, where Megatron-LM lies; --precision; --global-batch-size 0 for one
micro batch for each rank; --checkpoint-dir, empty for no checkpoints, from which a training that was begun there goes on.
"""

import argparse
import os
import runpy
import sys


def parse(words):
    """(own arguments, those that are Megatron's alone)."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--source", required=True)
    parser.add_argument("--precision", choices=["bf16", "fp8"], default="bf16")
    parser.add_argument("--checkpoint-dir", default="")
    parser.add_argument("--save-interval", type=int, default=250)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    parser.add_argument("--global-batch-size", type=int, default=0)
    parser.add_argument("--tensor-model-parallel-size", type=int, default=1)
    parser.add_argument("--pipeline-model-parallel-size", type=int, default=1)
    parser.add_argument("--seq-length", type=int, required=True)
    parser.add_argument("--train-iters", type=int, required=True)
    return parser.parse_known_args(words)


def megatron_arguments(words, ranks):
    """What pretrain_gpt.py is given. Exits with the arithmetic where the ranks do not come out even."""
    own, handed_on = parse(words)
    across = own.tensor_model_parallel_size * own.pipeline_model_parallel_size
    if ranks % across:
        sys.exit(f"{ranks} ranks are no multiple of tensor x pipeline parallel = {across}")
    batch = own.global_batch_size or ranks * own.micro_batch_size
    if batch % (ranks // across * own.micro_batch_size):
        sys.exit(f"a global batch of {batch} is no multiple of {ranks // across} data parallel ranks x {own.micro_batch_size} samples")
    made = [*handed_on, "--bf16"]
    if own.precision == "fp8":
        made += ["--fp8-format", "hybrid"]
    if own.tensor_model_parallel_size > 1:
        made.append("--sequence-parallel")
    if own.checkpoint_dir:
        made += ["--save", own.checkpoint_dir, "--save-interval", str(own.save_interval), "--ckpt-format", "torch_dist"]
        made += ["--async-save", "--ckpt-fully-parallel-load", "--ckpt-assume-constant-structure"]
        if os.path.isdir(own.checkpoint_dir) and os.listdir(own.checkpoint_dir):
            made += ["--load", own.checkpoint_dir]
    numbers = {
        "--micro-batch-size": own.micro_batch_size,
        "--global-batch-size": batch,
        "--tensor-model-parallel-size": own.tensor_model_parallel_size,
        "--pipeline-model-parallel-size": own.pipeline_model_parallel_size,
        "--seq-length": own.seq_length,
        "--max-position-embeddings": own.seq_length,
        "--train-iters": own.train_iters,
        "--eval-interval": own.train_iters,
    }
    return made + [word for name, number in numbers.items() for word in (name, str(number))]


def main():
    arguments = megatron_arguments(sys.argv[1:], int(os.environ["WORLD_SIZE"]))
    source = parse(sys.argv[1:])[0].source
    program = os.path.join(source, "pretrain_gpt.py")
    sys.path[0] = source  # and no longer the directory of this file
    sys.argv = [program, *arguments]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
