"""A real Ray cluster on this machine: killed actors, killed drivers, two nodes, Ray Data."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

from npad import InvalidInput
from npad.errors import WaitingWarning
from npad.scale import Failed, ModelSpec, RayCluster, Translate, WorkerError
from npad.scale.ray_cluster import connect, import_ray
from runs import ROOT, lines, refused
from scale_cases import (
    DECODING,
    SPEC,
    driver,
    expected,
    sentences,
    stopped_after,
    translate_and_kill,
    translations,
)

if find_spec("ray") is None:
    pytest.skip("needs the extra ray", allow_module_level=True)
# One secret for every process of the cluster and every driver; Ray reads it when it is imported.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
pytestmark = pytest.mark.ray
NODES: list[subprocess.Popen] = []  # of the cluster
RAY = str(Path(sys.executable).parent / "ray")


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes on this machine, of one CPU each; its address."""
    port = free_port()
    address = f"127.0.0.1:{port}"
    limits = ["--num-cpus=1", "--object-store-memory=100000000", "--disable-usage-stats", "--block"]
    head = ["--head", f"--port={port}", "--include-dashboard=false", *limits]
    try:
        for arguments in (head, [f"--address={address}", *limits]):
            node = subprocess.Popen([RAY, "start", *arguments], stdout=subprocess.DEVNULL)
            NODES.append(node)
            wait_for(address, node)
        yield address
    finally:
        for node in reversed(NODES):
            lose(node)


def lose(node: subprocess.Popen) -> None:
    """Kill all processes of a node −9, workers included, as a machine that loses its power."""
    for pid in descendants(node.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    node.wait(60)


def descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(found for child in children for found in descendants(int(child)))]


def free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


def wait_for(address: str, node: subprocess.Popen) -> None:
    host, port = address.split(":")
    for _ in range(600):
        assert node.poll() is None, "ray start failed"
        with suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.1)


@pytest.fixture
def workers(cluster):
    with RayCluster(SPEC, cluster, workers=2) as workers:
        yield workers


def test_ten_killed_actors_lose_and_double_nothing(workers, capfd):
    texts = sentences(320)
    assert translate_and_kill(workers, texts, 10, kills=10) == expected(texts, 10)
    assert workers.deaths == 10
    assert capfd.readouterr().out == ""  # Ray would print each death there


def test_both_nodes_work_and_chains_may_be_divided(workers):
    texts = sentences(24)
    while len(workers.ready) < 2:  # a node takes a while to join
        translations(workers, texts[:1], 1)
    found = [translations(workers, texts, *division) for division in [(5,), (6, 4)]]
    assert found == [expected(texts, 24)] * 2
    ray = import_ray()
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    def node_of(actor):
        return import_ray().get_runtime_context().get_node_id()

    # Each node has one CPU, and each actor takes one.
    actors = {ray.get(worker.actor.__ray_call__.remote(node_of)) for worker in workers.ready}
    assert len(nodes) == 2
    assert actors == nodes


def test_a_killed_driver_continues_where_it_stopped(cluster, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    texts = sentences(300)
    source.write_text("\n".join(texts) + "\n")
    command = driver(source, output, "--engine", "ray", "--address", cluster)
    with stopped_after(command, tmp_path / "out.manifest.jsonl", units=4):
        pass
    assert not output.exists()
    changed = subprocess.run([*command, "--sigma", "0.5"], capture_output=True, text=True)
    assert changed.returncode == 2
    assert "was begun with the decoder" in changed.stderr
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "of 300 lines were finished by an earlier run" in done.stderr
    assert lines(output) == expected(texts, 10)


def test_a_model_that_no_actor_can_load_is_one_line(cluster, tmp_path):
    spec = ModelSpec(str(tmp_path / "nowhere"), "cpu")
    with (
        RayCluster(spec, cluster, 2) as workers,
        pytest.raises(InvalidInput, match=r"a worker cannot load the model: there is no model"),
    ):
        list(workers.run(["a"], DECODING, 1))


def test_actors_that_find_no_room_are_one_line(cluster):
    with RayCluster(SPEC, cluster, 1, gpus_per_worker=1) as workers:
        workers.crew.start_seconds = workers.patience = 2.0
        with pytest.raises(WorkerError, match="no worker started within 2 s"):
            workers.start()


def test_actors_that_are_slow_to_start_are_waited_for(cluster):
    with RayCluster(SPEC, cluster, 1) as workers:
        workers.crew.start_seconds = workers.patience = 0.2
        with pytest.warns(WaitingWarning, match=r"one is being started: waiting for it"):
            workers.start()
        assert translations(workers, ["water"], 1) == expected(["water"], 1)


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_a_cluster_that_cannot_be_reached_is_one_line(tmp_path, scheme):
    (tmp_path / "in").write_text("danke\n")
    files = ("-i", tmp_path / "in", "-o", tmp_path / "out", "-m", "toy", "--engine", "ray")
    address = f"{scheme}127.0.0.1:{free_port()}"
    line = refused("translate", *files, "--address", address, code=1)
    assert f"cannot reach a Ray cluster at {address}: ConnectionRefusedError" in line
    assert "ray start --head" in line


def test_a_cluster_that_refuses_is_one_line(capfd):
    class Refusing:
        def init(self, address, **options):
            os.write(2, b"[2026-01-01 W] gcs_client.cc:210: many\nlines\n")
            raise ConnectionError("no token\nor another one")

    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(WorkerError, match=f"at {address}: ConnectionError: no token or anoth"):
            connect(Refusing(), address)
    assert capfd.readouterr().err == ""


def test_without_an_address_a_cluster_is_started_and_ended(tmp_path):
    ray = import_ray()
    with RayCluster(ModelSpec("toy", "cpu"), workers=1) as workers:
        (result,) = workers.run(["danke", Failed("no")], DECODING, 2)
        assert result.outcomes[0].text == "thanks"
        assert result.outcomes[1] == Failed("no")
    assert not ray.is_initialized()


def test_ray_data_translates_with_npads_class(cluster, tmp_path):
    texts = ["danke", "na ja", "ich verstehe nur bahnhof", "das ist mir wurst"] * 4
    (tmp_path / "in").write_text("\n".join(texts))
    example = [ROOT / "examples/ray_data.py", tmp_path / "in", "toy", "npad(chains=3)"]
    done = subprocess.run(
        [sys.executable, *map(str, example)],
        capture_output=True,
        text=True,
        env=os.environ | {"RAY_ADDRESS": cluster, "RAY_DATA_DISABLE_PROGRESS_BARS": "1"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    translate = Translate("toy", "npad(chains=3)", device="cpu")
    assert done.stdout.splitlines() == list(translate({"text": texts})["translation"])


def test_evaluate_runs_on_a_cluster(cluster, tmp_path):
    (tmp_path / "src").write_text("danke\nna ja\n")
    (tmp_path / "ref").write_text("thanks\nwell yes\n")
    command = [sys.executable, "-m", "npad", "evaluate", tmp_path / "src", tmp_path / "ref"]
    command += ["-m", "toy", "--json", "--engine", "ray", "--address", cluster, "--workers", "1"]
    start = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["length_ratio"] == 1.0
    assert time.monotonic() - start < 60


def test_a_lost_machine_costs_the_unit_it_had(workers):
    """The last test: the cluster has one node from now on."""
    texts, outputs = sentences(120), []
    while len(workers.ready) < 2:
        translations(workers, texts[:1], 1)
    for result in workers.run(texts, DECODING, 10):
        outputs += [outcome.text for outcome in result.outcomes]
        if len(outputs) == 20:
            lose(NODES.pop())
    assert outputs == expected(texts, 10)
    assert workers.deaths >= 1
