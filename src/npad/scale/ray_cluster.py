"""Workers as actors of a Ray cluster: this machine, or many. The only place that imports Ray.

Ray Core's actors, not Ray Data: Ray Data waits forever when its actors take every logical CPU
(ray-project/ray issue 44687), and keeps no order by default.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from npad.errors import missing_library
from npad.scale.pool import Crew, Pool, WorkerError
from npad.scale.units import Unit
from npad.scale.worker import Died, Event, ModelSpec, Worker, load_worker, one_line, run_remotely
from npad.validation import ensure_integer, ensure_number

# Units and results are kilobytes. Ray would take 30 % of the memory, and more than a container's
# /dev/shm may have.
OBJECT_STORE_BYTES = 256 << 20
CONNECT_SECONDS = 10.0  # that a cluster may take to accept a connection
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent to anyone
    # Under `uv run`, Ray since 2.47 starts workers through uv, in a newly built environment.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",  # without GPUs of its own, an actor sees none
    "RAY_NUM_REDIS_GET_RETRIES": "3",  # attempts to reach a cluster, of up to 40 s; Ray's are 20
}


def import_ray() -> Any:
    """Import Ray with npad's settings.

    Raises:
        InvalidInput: Ray is not installed.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)  # Ray reads some of them when it is imported
    try:
        import ray
    except ImportError as error:
        raise missing_library("engine ray needs Ray 2.60 or later", "ray") from error
    return ray


class RayWorker:
    """A worker in a Ray actor. Its methods return what happened: an exception would be wrapped."""

    def __init__(self, spec: ModelSpec) -> None:
        self.spec = spec
        self.worker: Worker | None = None

    def load(self) -> Event:
        """Load the model, once."""
        self.worker, loaded = load_worker(self.spec)
        return loaded

    def run(self, unit: Unit) -> Event:
        assert self.worker is not None  # a worker that is not ready gets no units
        return run_remotely(self.worker, unit)


@dataclass(eq=False)
class Remote:
    """An actor and the reference to what it works on, if it does."""

    actor: Any
    reference: Any


class RayCrew(Crew):
    """Starts actors, each with its share of the cluster's CPUs and GPUs.

    Ray restarts no actor by itself (`max_restarts=0`): the pool starts another, on whichever
    machine has room, and so outlives a machine as well as a process. Actors have no `runtime_env`:
    npad is installed on every machine, in the driver's version.
    """

    def __init__(self, spec: ModelSpec, address: str | None, gpus: float | None) -> None:
        self.ray = import_ray()
        self.own = not self.ray.is_initialized()
        if self.own:
            connect(self.ray, address)
        self.resources = self.ray.cluster_resources()
        self.started_here = self.own and not address and not os.environ.get("RAY_ADDRESS")
        if self.started_here:
            self.start_seconds = 120.0  # no autoscaler adds machines
        has_gpus = self.resources.get("GPU", 0) > 0 and spec.device != "cpu"
        self.gpus = gpus if gpus is not None else float(has_gpus or spec.device == "cuda")
        self.spec = spec if spec.threads else replace(spec, threads=1)
        self.kind = self.ray.remote(
            num_cpus=self.spec.threads, num_gpus=self.gpus, max_restarts=0, max_task_retries=0
        )(RayWorker)

    def default_workers(self) -> int:
        """Return how many workers fit in the cluster as it is now."""
        fits = int(self.resources.get("CPU", 1) // (self.spec.threads or 1))
        if self.gpus > 0:
            fits = min(fits, int(self.resources.get("GPU", 0) / self.gpus))
        return max(1, fits)

    def start(self) -> Remote:
        actor = self.kind.remote(self.spec)
        return Remote(actor, actor.load.remote())

    def send(self, worker: Remote, unit: Unit) -> None:
        worker.reference = worker.actor.run.remote(unit)

    def wait(self, workers: Collection[Remote], seconds: float) -> list[tuple[Remote, Event]]:
        by_reference = {worker.reference: worker for worker in workers if worker.reference}
        references = list(by_reference)
        self.ray.wait(references, num_returns=1, timeout=seconds)
        done, _ = self.ray.wait(references, num_returns=len(references), timeout=0)
        finished = [by_reference[reference] for reference in done]
        return [(worker, self._receive(worker)) for worker in finished]

    def _receive(self, worker: Remote) -> Event:
        reference, worker.reference = worker.reference, None
        try:
            event: Event = self.ray.get(reference)
        except (
            self.ray.exceptions.RayError
        ) as error:  # the actor, its machine or its result is gone
            return Died(one_line(error)[:200])
        return event

    def is_starting(self, worker: Remote) -> bool:
        """Return whether Ray has a process for an actor, or room for one.

        Ray names the process once it runs, which takes minutes on a busy machine. Before that, an
        actor that gets a process looks like one that waits for room; but in a cluster that was
        started here there is room as soon as a machine is large enough.
        """
        with suppress(Exception):  # no public function tells it without Ray's dashboard
            if self._actor_state(worker).get("Pid"):
                return True
        needed = {"CPU": self.spec.threads or 1, "GPU": self.gpus}
        found = self.resources if self.started_here else self.ray.available_resources()
        return all(found.get(name, 0) >= number for name, number in needed.items())

    def _actor_state(self, worker: Remote) -> dict[str, Any]:
        state: dict[str, Any] = self.ray._private.state.actors(worker.actor._actor_id.hex())
        return state

    def stop(self, worker: Remote) -> None:
        worker.reference = None
        with suppress(self.ray.exceptions.RayError):
            self.ray.kill(worker.actor)

    def close(self) -> None:
        if self.own:
            self.ray.shutdown()


def connect(ray: Any, address: str | None) -> None:
    """Connect to a cluster, or start one on this machine if there is no address.

    Raises:
        WorkerError: the cluster cannot be reached.
    """
    # Ray takes RAY_ADDRESS where no address is given; "local" starts a cluster whatever it says.
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        options |= {"include_dashboard": False, "object_store_memory": OBJECT_STORE_BYTES}
    else:
        ensure_listening(address)
    try:
        with native_stderr_discarded():
            ray.init(address, **options)
    except Exception as error:
        raise unreachable(address, one_line(error)) from error
    discard_messages(ray)


def discard_messages(ray: Any) -> None:
    """Keep Ray from printing the death of a worker to standard output, where results may go.

    There is no option for it. The pool counts the deaths.
    """
    module: Any = getattr(getattr(ray, "_private", None), "worker", None)
    if hasattr(module, "print_to_stdstream"):
        module.print_to_stdstream = lambda *_, **__: None


@contextmanager
def native_stderr_discarded() -> Iterator[None]:
    """Discard what is written to file descriptor 2 inside, past Python: Ray's C++ log lines.

    npad reports a failure in one line, Ray in many.
    """
    sys.stderr.flush()
    kept, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(null)


def ensure_listening(address: str) -> None:
    """Raise WorkerError if nothing accepts connections at HOST:PORT; Ray would try for minutes."""
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        if url.hostname is None or url.port is None:  # "auto"
            return
        socket.create_connection((url.hostname, url.port), CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        raise unreachable(address, one_line(error)) from error


def unreachable(address: str, reason: str) -> WorkerError:
    """Return the error for a cluster that cannot be reached."""
    return WorkerError(
        f"cannot reach a Ray cluster at {address}: {reason}; start one with `ray start --head` and "
        "give its address, or leave out --address"
    )


class RayCluster(Pool):
    """Workers that are actors of a Ray cluster.

    Args:
        spec: the model that each actor loads. Without `threads`, an actor has one CPU.
        address: of the cluster, `HOST:PORT`, `ray://HOST:PORT` or `auto`; by default RAY_ADDRESS,
            or a new cluster on this machine.
        workers: the number of actors: by default as many as the cluster has room for now.
        gpus_per_worker: GPUs of each actor, which may be a fraction; by default 1 if the cluster
            has GPUs and the device is not the CPU.

    Raises:
        InvalidInput: Ray is not installed, or an argument breaks its rule.
        WorkerError: the cluster cannot be reached.
    """

    def __init__(
        self,
        spec: ModelSpec,
        address: str | None = None,
        workers: int | None = None,
        gpus_per_worker: float | None = None,
    ) -> None:
        if workers is not None:
            ensure_integer("workers", workers, 1)
        if gpus_per_worker is not None:
            ensure_number("gpus_per_worker", gpus_per_worker, minimum=0)
        crew = RayCrew(spec, address, gpus_per_worker)
        super().__init__(crew, workers or crew.default_workers())
