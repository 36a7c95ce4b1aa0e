# Copyright (c) the gpu_cluster.readiness authors
# SPDX-License-Identifier: Apache-2.0
"""Burns every GPU of a node with matrix products, counts wrong results and measures each GPU's speed, with PyTorch alone.

Each GPU has a process of its own, so that one that dies leaves the others. All products of a GPU have the same factors and are compared
bit by bit with the first, which the CPU checks. The results lie in most of the GPU's memory, so that this is tested too.
The output has the layout of gpu-burn, which the collection's reader knows. The exit status is 0 once all is summed up: the text decides.
"""

import argparse
import multiprocessing
import multiprocessing.connection
import shutil
import subprocess
import sys
import time

# What a row may be off by, as a share of its length: on H200 rounding comes to a twentieth of this in 16 bits, to a ninth in 32.
TOLERANCE = {"float16": 2.0**-6, "bfloat16": 2.0**-3, "tf32": 2.0**-6, "float32": 2.0**-14, "float64": 2.0**-40}
# A GPU that has not answered for so long after the end, or never began in that time, hangs.
PATIENCE_S = 60
START_S = 300


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--datatype", choices=sorted(TOLERANCE), default="float16")
    parser.add_argument("--size", type=int, default=8192, help="rows and columns of a matrix")
    parser.add_argument("--memory-percent", type=int, default=60, help="share of the free memory that holds results")
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


# --- one GPU -----------------------------------------------------------------------------------------------------------


class Burner:
    """The matrices of one GPU. results: as many as fit; every product goes to the next one."""

    def __init__(self, torch, gpu, options):
        self.torch, self.size, self.kind = torch, options.size, options.datatype
        self.device = torch.device("cuda", gpu)
        torch.cuda.set_device(self.device)
        torch.backends.cuda.matmul.allow_tf32 = options.datatype == "tf32"
        datatype = getattr(torch, "float32" if options.datatype == "tf32" else options.datatype)
        generator = torch.Generator().manual_seed(options.seed)
        self.factors = [torch.randn(self.size, self.size, generator=generator).to(self.device, datatype) for _factor in range(2)]
        self.first = torch.matmul(*self.factors)
        torch.cuda.synchronize(self.device)
        self.bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[self.first.element_size()]
        each = self.first.numel() * self.first.element_size()
        free = torch.cuda.mem_get_info(self.device)[0] * options.memory_percent // 100
        self.results = [torch.empty_like(self.first) for _result in range(max(1, free // each - 2))]
        self.next = 0

    def wrong_rows(self):
        """Rows of the first product that the CPU does not come to: product times vector against factor times (factor times vector)."""
        torch = self.torch
        vector = torch.randint(0, 2, (self.size,), generator=torch.Generator().manual_seed(1)).double() * 2 - 1
        wanted = self._times(self.factors[0], self._times(self.factors[1], vector))
        found = self._times(self.first, vector)
        lengths = torch.cat([block.norm(dim=1) for block in self._blocks(self.first)])
        off = (found - wanted).abs() > TOLERANCE[self.kind] * lengths
        return int((off | ~torch.isfinite(found)).sum())

    def _blocks(self, matrix):
        return (matrix[row : row + 1024].cpu().double() for row in range(0, self.size, 1024))

    def _times(self, matrix, vector):
        return self.torch.cat([block @ vector for block in self._blocks(matrix)])

    def run(self, count):
        """(seconds, wrong results) of so many products."""
        torch = self.torch
        chosen = [self.results[(self.next + step) % len(self.results)] for step in range(min(count, len(self.results)))]
        self.next = (self.next + len(chosen)) % len(self.results)
        began = time.perf_counter()
        for result in chosen:
            torch.matmul(*self.factors, out=result)
        torch.cuda.synchronize(self.device)
        took = time.perf_counter() - began
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for result in chosen:
            wrong += (result.view(self.bits) != self.first.view(self.bits)).sum()
        return len(chosen), took, int(wrong)


def burn(gpu, options, pipe):
    """The process of one GPU. Sends (what, …) to the parent: ready, work, failed before the burn, failed in it."""
    stage = "init"
    try:
        import torch

        burner = Burner(torch, gpu, options)
        about = torch.cuda.get_device_properties(gpu)
        wrong = burner.wrong_rows()
        burner.run(1)
        pipe.send(("ready", about.name, str(getattr(about, "uuid", "")) or "unknown", wrong))
        end = pipe.recv()
        stage, count = "compute", 1
        while time.time() < end:
            done, took, wrong = burner.run(count)
            pipe.send(("work", done, took, wrong))
            count = max(1, int(done / max(took, 1e-6)))  # about a second of work each time
        pipe.send(("done",))
    except Exception as error:
        pipe.send((stage, " ".join(str(error).split())[:400] or type(error).__name__))


# --- all of them -------------------------------------------------------------------------------------------------------


class Gpu:
    """What is known of one GPU."""

    def __init__(self, number, options):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=burn, args=(number, options, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.number, self.name, self.uuid = number, "unknown", "unknown"
        self.ready = self.ended = self.died = False
        self.work, self.errors, self.shown_errors = [], 0, 0  # work: (when, products, seconds)

    def take(self):
        """Reads what its process has to say."""
        try:
            what, *rest = self.pipe.recv()
        except (EOFError, OSError):
            self.fail(f"the process of GPU {self.number} ended without a word")
            return
        if what == "ready":
            self.ready, (self.name, self.uuid, self.errors) = True, rest
        elif what == "work":
            self.work.append((time.time(), rest[0], rest[1]))
            self.errors += rest[2]
        elif what == "done":
            self.ended = True
        else:
            self.fail(rest[0])

    def fail(self, why):
        if not self.ended:
            self.ended = self.died = True
            print(f"Failure during compute: {why}" if self.ready else f"Couldn't init a GPU test: {why}", flush=True)

    def products(self):
        return -1 if self.died else sum(count for _when, count, _took in self.work)

    def gflops(self, since, flops):
        """Over the products since then: the clocks have settled by the second half of a burn."""
        counted = [item for item in self.work if item[0] >= since] or self.work[-1:]
        products, seconds = sum(item[1] for item in counted), sum(item[2] for item in counted)
        return products * flops / seconds / 1e9 if seconds else 0.0

    def error_cell(self):
        new, self.shown_errors = self.errors > self.shown_errors, self.errors
        return f"{self.errors}{'  (DIED!)' if self.died else ' (WARNING!)' if new else ''}"


def wait(gpus, until, done):
    """Takes messages until all GPUs are done or the time is over."""
    while time.time() < until:
        pipes = {gpu.pipe: gpu for gpu in gpus if not gpu.ended and not done(gpu)}
        if not pipes:
            return
        for pipe in multiprocessing.connection.wait(list(pipes), timeout=max(0.0, until - time.time())):
            pipes[pipe].take()


def temperatures(gpus):
    """As nvidia-smi tells them, by UUID; a cell without a number where it does not."""
    found = {}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=uuid,temperature.gpu", "--format=csv,noheader,nounits"]
        said = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False).stdout
        found = dict(line.replace(" ", "").split(",", 1) for line in said.splitlines() if line.count(",") == 1)
    cells = [found.get(gpu.uuid) or found.get(f"GPU-{gpu.uuid}") or "" for gpu in gpus]
    return " - ".join(f"{cell} C" if cell.isdigit() else "--" for cell in cells)


def show(gpus, percent, since, flops):
    work = " - ".join(f"{gpu.products()} ({0 if gpu.died else gpu.gflops(since, flops):.0f} Gflop/s)" for gpu in gpus)
    errors = " - ".join(gpu.error_cell() for gpu in gpus)
    print(f"{percent:.1f}%  proc'd: {work}   errors: {errors}   temps: {temperatures(gpus)} ", flush=True)


def sum_up(gpus):
    print(f"\nTested {len(gpus)} GPUs:")
    for gpu in gpus:
        print(f"\tGPU {gpu.number}: {'FAULTY' if gpu.died or gpu.errors else 'OK'}", flush=True)


def main():
    options = parse_arguments()
    multiprocessing.set_start_method("spawn")
    import torch

    count = torch.cuda.device_count()
    if not count:
        sys.exit("No CUDA devices")
    gpus = [Gpu(number, options) for number in range(count)]
    wait(gpus, time.time() + START_S, lambda gpu: gpu.ready)
    for gpu in gpus:
        if not gpu.ready:
            gpu.fail(f"not ready after {START_S} s")
        print(f"GPU {gpu.number}: {gpu.name} (UUID: {gpu.uuid if gpu.uuid.startswith('GPU-') else 'GPU-' + gpu.uuid})")
    print(f"Burning for {options.seconds} seconds.", flush=True)
    began, flops = time.time(), 2.0 * options.size**3
    end = began + options.seconds
    for gpu in gpus:
        if not gpu.ended:
            gpu.pipe.send(end)
    for step in range(1, 11):
        until = began + options.seconds * step / 10
        wait(gpus, until, lambda _gpu: False)
        if step == 10:
            wait(gpus, end + PATIENCE_S, lambda gpu: gpu.ended)
            for gpu in gpus:
                gpu.fail(f"GPU {gpu.number} has not answered for {PATIENCE_S} s")  # of those that have not ended
        show(gpus, step * 10, began + (time.time() - began) / 2, flops)
    for gpu in gpus:
        gpu.process.kill()
    sum_up(gpus)


if __name__ == "__main__":
    main()
