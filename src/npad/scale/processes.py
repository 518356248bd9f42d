"""Workers as processes of this machine, with the standard library alone."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from npad.scale.pool import Crew, Pool
from npad.scale.units import Unit
from npad.scale.worker import Died, Event, ModelSpec, load_worker, run_remotely

# A forked child would inherit torch's threads and CUDA's context in an unusable state.
SPAWN = multiprocessing.get_context("spawn")
STOP_SECONDS = 5.0  # that a worker may take to end after it was killed


@dataclass(eq=False)
class Process:
    """A worker process and this end of the pipe to it."""

    process: BaseProcess
    connection: Connection[Unit, Event]


class ProcessCrew(Crew):
    """Starts processes; with several GPUs, each worker uses the next one in turn."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec, self.started = spec, count()

    def start(self) -> Process:
        here, there = SPAWN.Pipe()
        spec = on_next_gpu(self.spec, next(self.started))
        process = SPAWN.Process(target=serve, args=(there, spec), daemon=True)
        with _interrupts_ignored():
            process.start()
        there.close()  # so that the pipe ends when the worker does
        return Process(process, here)

    def send(self, worker: Process, unit: Unit) -> None:
        with suppress(OSError):  # it has died: `wait` finds its pipe at an end
            worker.connection.send(unit)

    def wait(self, workers: Collection[Process], seconds: float) -> list[tuple[Process, Event]]:
        by_connection = {worker.connection: worker for worker in workers}
        ready = wait(list(by_connection), seconds)
        return [(worker, _receive(worker)) for c, worker in by_connection.items() if c in ready]

    def is_starting(self, worker: Process) -> bool:
        return worker.process.is_alive()

    def stop(self, worker: Process) -> None:
        worker.process.kill()
        worker.process.join(STOP_SECONDS)
        worker.connection.close()

    def close(self) -> None:
        self.started = count()


def _receive(worker: Process) -> Event:
    """Return what a worker sent; a message that its death cut off counts as none."""
    try:
        return worker.connection.recv()
    except (EOFError, OSError):
        worker.process.join(STOP_SECONDS)
        code = worker.process.exitcode
        return Died("its pipe ended" if code is None else f"exit code {code}")


def serve(connection: Connection[Event, Unit], spec: ModelSpec) -> None:
    """Load a model and run the units that arrive, until the driver is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver's to handle, and it ends the workers
    worker, loaded = load_worker(spec)
    try:
        connection.send(loaded)
        while worker is not None:
            connection.send(run_remotely(worker, connection.recv()))
    except (EOFError, BrokenPipeError, ConnectionResetError):  # the driver has died
        return


class Processes(Pool):
    """Workers that are processes of this machine.

    A program that makes one at its top level needs `if __name__ == "__main__":`, as for anything
    that spawns processes.

    Args:
        spec: the model that each process loads. Without `threads`, they share the CPUs.
        workers: the number of processes: by default one per GPU, or one per CPU without GPUs.
    """

    def __init__(self, spec: ModelSpec, workers: int | None = None) -> None:
        workers = default_workers(spec.device) if workers is None else workers
        if spec.threads is None:
            spec = replace(spec, threads=max(1, available_cpus() // max(1, workers)))
        super().__init__(ProcessCrew(spec), workers)


def default_workers(device: str) -> int:
    """Return one worker per GPU if GPUs are used, else one per CPU."""
    gpus = torch.cuda.device_count() if device in ("auto", "cuda") else 0
    return gpus or (available_cpus() if device in ("auto", "cpu") else 1)


def available_cpus() -> int:
    """Return the number of CPUs that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def on_next_gpu(spec: ModelSpec, number: int) -> ModelSpec:
    """Return the specification of worker `number`, which uses the next GPU in turn."""
    gpus = torch.cuda.device_count() if spec.device in ("auto", "cuda") else 0
    return replace(spec, device=f"cuda:{number % gpus}") if gpus > 1 else spec


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Let a process that is started inside ignore Ctrl-C while it imports its modules."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if handler is None else handler)
