"""The cluster files of examples/: valid by their schemas, and of one mind with npad."""

from __future__ import annotations

import json
import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from npad.cli.commands import build

yaml = pytest.importorskip("yaml")
EXAMPLES = Path(__file__).parent.parent.parent / "examples"

# The fields of KubeRay's RayJob, version ray.io/v1, that the example may use, and their types.
QUANTITIES = {"*": (str, int)}
CONTAINER = {
    "name": str,
    "image": str,
    "resources": {"limits": QUANTITIES, "requests": QUANTITIES},
    "volumeMounts": [{"name": str, "mountPath": str}],
}
VOLUME = {
    "name": str,
    "persistentVolumeClaim": {"claimName": str},
    "emptyDir": {"medium": str, "sizeLimit": str},
}
POD = {"spec": {"containers": [CONTAINER], "volumes": [VOLUME]}}
RAY_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "backoffLimit": int,
        "shutdownAfterJobFinishes": bool,
        "ttlSecondsAfterFinished": int,
        "entrypoint": str,
        "rayClusterSpec": {
            "rayVersion": str,
            "authOptions": {"mode": str},
            "headGroupSpec": {"rayStartParams": {"*": str}, "template": POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {"*": str},
                    "template": POD,
                }
            ],
        },
    },
}


def mismatch(value, form, place="") -> str | None:
    """Where a document has another form than it should, or None."""
    if isinstance(form, dict):
        if not isinstance(value, dict):
            return f"{place} is not a mapping"
        unknown = [key for key in value if key not in form and "*" not in form]
        if unknown:
            return f"{place} has unknown fields {unknown}"
        parts = [(value[key], form.get(key, form.get("*")), f"{place}.{key}") for key in value]
    elif isinstance(form, list):
        if not isinstance(value, list):
            return f"{place} is not a list"
        parts = [(item, form[0], f"{place}[{i}]") for i, item in enumerate(value)]
    else:
        wrong = not isinstance(value, form) or (isinstance(value, bool) and form is not bool)
        return f"{place} is {value!r}" if wrong else None
    return next((found for part in parts if (found := mismatch(*part))), None)


def job():
    return yaml.safe_load((EXAMPLES / "kuberay-job.yaml").read_text())


def test_the_kuberay_job_has_the_form_of_a_ray_job():
    document = job()
    assert mismatch(document, RAY_JOB) is None
    assert (document["apiVersion"], document["kind"]) == ("ray.io/v1", "RayJob")
    cluster = document["spec"]["rayClusterSpec"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        pod = group["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            assert container["resources"]["limits"] == container["resources"]["requests"]
    for group in cluster["workerGroupSpecs"]:
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]


def test_the_check_of_the_form_can_fail():
    document = job()
    document["spec"]["rayClusterSpec"]["workerGroupSpecs"][0]["replicas"] = "16"
    place = ".spec.rayClusterSpec.workerGroupSpecs[0].replicas"
    assert mismatch(document, RAY_JOB) == f"{place} is '16'"
    document["spec"]["entryPoint"] = "npad"
    assert mismatch(document, RAY_JOB) == ".spec has unknown fields ['entryPoint']"


def commands():
    yield job()["spec"]["entrypoint"]
    text = (EXAMPLES / "ray-cluster.yaml").read_text().replace("\\\n#", "")
    yield re.search(r'"(npad translate [^"]*)"', text)[1]


def test_the_commands_of_the_examples_are_commands_of_npad():
    for command in commands():
        name, *arguments = shlex.split(command)[1:]
        options = build(name).make_context(name, arguments).params
        assert (options["engine"], options["address"], options["workers"]) == ("ray", "auto", 16)


def test_one_version_of_ray_is_named_throughout():
    texts = [(EXAMPLES / name).read_text() for name in ("ray-cluster.yaml", "kuberay-job.yaml")]
    pinned = (EXAMPLES.parent / "constraints.txt").read_text()
    versions = {version for text in texts for version in re.findall(r"2\.\d\d\.\d", text)}
    assert versions == {re.search(r"^ray==(.*)$", pinned, re.MULTILINE)[1]}


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="needs the extra ray")
def test_the_cluster_file_is_valid_by_rays_schema():
    import jsonschema
    import ray.autoscaler

    schema = json.loads((Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text())
    config = yaml.safe_load((EXAMPLES / "ray-cluster.yaml").read_text())
    jsonschema.validate(config, schema)
    assert config["head_node_type"] in config["available_node_types"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(config | {"workers": 3}, schema)
