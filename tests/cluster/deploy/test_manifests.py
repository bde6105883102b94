"""The manifests: as Kubernetes' published schemas want them, with no secret in them, and with times that fit together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from umbel import Topology
from umbel.cluster.deploy.validate import MANIFESTS, definitions, documents, main, problems

OURS = dict(documents(MANIFESTS))
RAY = [document for document in OURS.values() if document["apiVersion"] == "ray.io/v1"]
JOB = next(document for document in RAY if document["kind"] == "RayJob")
HOST_WORDS = re.compile(r"password|secret|token|key", re.IGNORECASE)

DEFINITION = """
kind: CustomResourceDefinition
spec:
  group: ray.io
  names: {kind: RayCluster}
  versions:
    - name: v1
      schema:
        openAPIV3Schema:
          type: object
          properties:
            apiVersion: {type: string}
            kind: {type: string}
            metadata: {type: object}
            spec:
              type: object
              properties:
                port: {x-kubernetes-int-or-string: true, anyOf: [{type: integer}, {type: string}]}
                free: {type: object, additionalProperties: {type: string}}
                open: {type: object, x-kubernetes-preserve-unknown-fields: true, properties: {}}
"""


def clusters() -> Iterator[dict[str, Any]]:
    for document in RAY:
        yield document["spec"]["rayClusterSpec"] if document["kind"] == "RayJob" else document["spec"]


def templates() -> Iterator[dict[str, Any]]:
    """Of every pod: the head's and the workers'."""
    for cluster in clusters():
        yield cluster["headGroupSpec"]["template"]
        yield from (group["template"] for group in cluster["workerGroupSpecs"])


@pytest.mark.parametrize("where", [where for where, document in OURS.items() if document not in RAY])
def test_core_kinds_are_as_published(where: str) -> None:
    assert problems(OURS[where], {}) == []


def test_the_pods_of_clusters_are_as_published() -> None:
    found = list(templates())
    assert len(found) == 6
    for template in found:
        assert (
            problems({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "pod"}, "template": template}, {}) == []
        )


def test_a_field_that_no_schema_knows_is_a_problem() -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "x"}}
    assert problems({**secret, "stringdata": {}}, {}) and problems({**secret, "type": 1}, {})
    assert "no definition of ray.io/v1 RayCluster" in problems(RAY[0], {})[0]


def test_custom_resources_are_checked_strictly(tmp_path: Path) -> None:
    """By a definition that is made up: the published ones are not ours to keep."""
    (tmp_path / "crd.yaml").write_text(DEFINITION)
    known = definitions(tmp_path)
    good = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "x"},
        "spec": {"port": "http", "free": {"a": "b"}},
    }
    assert problems(good, known) == []
    assert problems({**good, "spec": {"port": 80}}, known) == []
    assert "'ports' was unexpected" in problems({**good, "spec": {"ports": 80}}, known)[0]
    assert problems({**good, "spec": {"free": {"a": 1}}}, known) and problems({**good, "spec": {"port": []}}, known)


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: x}\nstringdata: {}\n")
    assert main([str(tmp_path)]) == 1 and "stringdata" in capsys.readouterr().out
    (tmp_path / "bad.yaml").write_text("apiVersion: ray.io/v1\nkind: RayCluster\nmetadata: {name: x}\n")
    assert main([str(tmp_path)]) == 0 and "needs --crds" in capsys.readouterr().out


def test_secrets_are_references() -> None:
    for template in templates():
        for container in template["spec"]["containers"]:
            for variable in container["env"]:
                if HOST_WORDS.search(variable["name"]) and not variable["name"].endswith("_FILE"):
                    assert "value" not in variable, variable["name"]
        named = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        assert named["models"]["secret"]["secretName"] == "umbel-models"
    assert "RAY_JOB" in JOB["spec"]["runtimeEnvYAML"] and not HOST_WORDS.search(JOB["spec"]["runtimeEnvYAML"])


def test_times_fit_into_each_other() -> None:
    grace = int(re.search(r"--grace (\d+)", JOB["spec"]["entrypoint"])[1])  # type: ignore[index]
    stop = int(yaml.safe_load(JOB["spec"]["runtimeEnvYAML"])["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"])
    for cluster in clusters():
        head = cluster["headGroupSpec"]["template"]["spec"]["terminationGracePeriodSeconds"]
        assert grace + 10 <= stop < head
        for group in cluster["workerGroupSpecs"]:
            spec = group["template"]["spec"]
            (command,) = [one["lifecycle"]["preStop"]["exec"]["command"][-1] for one in spec["containers"]]
            seconds = int(re.search(r"umbel drain --seconds (\d+)", command)[1])  # type: ignore[index]
            assert seconds + 20 <= spec["terminationGracePeriodSeconds"]


def test_the_job_asks_for_workers_that_there_are() -> None:
    (config,) = [document for document in OURS.values() if document["kind"] == "ConfigMap"]
    fleet = yaml.safe_load(config["data"]["fleet.yaml"])
    topology = Topology(**fleet["topology"])
    assert dict(topology.labels) in [group["labels"] for cluster in clusters() for group in cluster["workerGroupSpecs"]]
    assert topology.per_node and topology.autoscale


def test_all_pods_have_one_image_and_the_version_of_ray_that_umbel_needs() -> None:
    images = {container["image"] for template in templates() for container in template["spec"]["containers"]}
    assert len(images) == 1
    assert {cluster["rayVersion"] for cluster in clusters()} == {"2.60.0"}
