"""Check manifests against published schemas, strictly: a field that no schema knows is an error, as is one of a wrong type.

    python -m umbel.cluster.deploy.validate                     # the core kinds (Secret, StatefulSet, PodDisruptionBudget...)
    python -m umbel.cluster.deploy.validate --crds FOLDER       # also those of KubeRay

FOLDER has the operator's definitions (``helm-chart/kuberay-operator/crds/*.yaml`` of its release). The core kinds come from
the package ``kubernetes-validate``. What only a cluster can tell is asked with ``kubectl apply --dry-run=server``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

MANIFESTS = Path(__file__).parent / "kubernetes"
OWN_GROUP = "ray.io/"
Schemas = Mapping[tuple[str, str], Mapping[str, Any]]  # by apiVersion and kind


def documents(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The manifests of a folder, with where each stands."""
    for path in sorted(folder.glob("*.yaml")):
        for number, document in enumerate(yaml.safe_load_all(path.read_text(encoding="utf-8")), start=1):
            if document is not None:
                yield f"{path.name}[{number}] {document.get('kind')} {document.get('metadata', {}).get('name')}", document


def definitions(folder: Path) -> Schemas:
    """The schemas of the custom resources that a folder defines."""
    found: dict[tuple[str, str], Mapping[str, Any]] = {}
    for path in sorted(folder.glob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            if document is not None and document.get("kind") == "CustomResourceDefinition":
                spec = document["spec"]
                for version in spec["versions"]:
                    place = (f"{spec['group']}/{version['name']}", spec["names"]["kind"])
                    found[place] = strict(version["schema"]["openAPIV3Schema"], top=True)
    return found


def strict(schema: Mapping[str, Any], *, top: bool = False) -> dict[str, Any]:
    """A structural schema of Kubernetes as JSON Schema, where an object has no other fields than those that are named.

    Source: kubernetes.io, "Extend the Kubernetes API with CustomResourceDefinitions" (structural schemas, pruning).
    """
    made = {name: value for name, value in schema.items() if not name.startswith("x-kubernetes-") and name != "nullable"}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["type"] = ["integer", "string"]
    properties = schema.get("properties")
    if properties is not None:
        made["properties"] = {name: strict(value) for name, value in properties.items()}
        open_ended = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
        if not open_ended:
            made["additionalProperties"] = False
    if top:  # what every object has is described elsewhere
        made["properties"]["metadata"] = {"type": "object"}
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            made[name] = strict(schema[name])
    return made


def problems(document: Mapping[str, Any], schemas: Schemas) -> list[str]:
    """What is wrong with a manifest."""
    place = (str(document.get("apiVersion")), str(document.get("kind")))
    if place[0].startswith(OWN_GROUP):
        if place not in schemas:
            return [f"no definition of {' '.join(place)} was given"]
        errors = Draft202012Validator(schemas[place]).iter_errors(document)
        return [f"{'.'.join(map(str, error.absolute_path)) or 'it'}: {error.message[:300]}" for error in errors]
    import kubernetes_validate

    try:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    except (kubernetes_validate.ValidationError, kubernetes_validate.SchemaNotFoundError) as error:
        path = ".".join(map(str, getattr(error, "path", ())))
        return [f"{path or 'it'}: {str(getattr(error, 'message', error))[:300]}"]
    return []


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a folder; 0 when all is well, 1 when something is wrong, 2 without the schemas."""
    parser = argparse.ArgumentParser(description="Check manifests against published schemas, strictly.")
    parser.add_argument("folder", nargs="?", type=Path, default=MANIFESTS)
    parser.add_argument("--crds", type=Path, help="folder with the operator's CustomResourceDefinitions")
    chosen = parser.parse_args(arguments)
    schemas = definitions(chosen.crds) if chosen.crds is not None else {}
    wrong = 0
    for where, document in documents(chosen.folder):
        if not schemas and str(document.get("apiVersion")).startswith(OWN_GROUP):
            print(f"skipped  {where}: needs --crds")  # noqa: T201 - a command's output
            continue
        found = problems(document, schemas)
        wrong += bool(found)
        for line in [f"{'wrong' if found else 'ok':8} {where}", *(f"         {problem}" for problem in found)]:
            print(line)  # noqa: T201 - as above
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
