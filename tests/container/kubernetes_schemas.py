"""Helm and kubeconform, built by Go, and JSON schemas of Kubernetes, cut from its own API description.

The Go module k8s.io/kubernetes contains the description of the whole API (api/openapi-spec/swagger.json), so nothing
else is fetched. In the schemas, a field that Kubernetes does not know is an error.
"""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from setup.console import cache_folder, capture, locked
from tests.etl.lakes.servers import go_program, run_go

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.8.0"
# The oldest release that the chart accepts, and the newest one.
RELEASES = ("1.31.14", "1.37.2")
_GROUPS = "x-kubernetes-group-version-kind"
_DEFINITIONS = "#/definitions/"
# Types that are texts in the description, and for which the API also accepts numbers.
_NUMBERS = {
    "io.k8s.apimachinery.pkg.api.resource.Quantity": ["string", "number"],
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": ["string", "integer"],
}


def helm() -> Path:
    """The program helm. Raises Unavailable if it cannot be built."""
    return go_program("helm", HELM)


def kubeconform() -> Path:
    """The program kubeconform. Raises Unavailable if it cannot be built."""
    return go_program("kubeconform", KUBECONFORM)


def kubernetes_file(release: str, path: str) -> Path:
    """A file of the Go module k8s.io/kubernetes in the cache folder.

    Raises:
        Unavailable: Go cannot fetch the module.
    """
    copied = cache_folder() / "kubernetes-files" / release / path
    with locked(cache_folder() / "kubernetes-files.lock"):
        if not copied.is_file():
            module = f"k8s.io/kubernetes@v{release}"
            run_go("mod", "download", module)
            source = Path(json.loads(capture(["go", "mod", "download", "-json", module]))["Dir"])
            copied.parent.mkdir(parents=True, exist_ok=True)
            unfinished = copied.with_suffix(".new")
            shutil.copyfile(source / path, unfinished)
            unfinished.replace(copied)
    return copied


def api_description(release: str) -> dict[str, Any]:
    """The description of the API of a release of Kubernetes. Raises Unavailable if Go cannot fetch it."""
    text = kubernetes_file(release, "api/openapi-spec/swagger.json").read_text(encoding="utf-8")
    description: dict[str, Any] = json.loads(text)
    return description


def write_schemas(description: Mapping[str, Any], folder: Path) -> None:
    """Writes a schema for each kind of object that can be created, with the names that kubeconform looks for."""
    definitions = {name: _strict(name, body) for name, body in description["definitions"].items()}
    folder.mkdir(parents=True)
    for name, body in description["definitions"].items():
        for kind in body.get(_GROUPS, []):
            if not {"apiVersion", "kind", "metadata"} <= body.get("properties", {}).keys():
                continue
            used = _reachable(name, definitions)
            whole = {"$ref": f"{_DEFINITIONS}{name}", "definitions": {key: definitions[key] for key in used}}
            group = [kind["group"].partition(".")[0]] if kind["group"] else []
            suffix = "-".join([kind["kind"].lower(), *group, kind["version"]])
            (folder / f"{suffix}.json").write_text(json.dumps(whole))


def _strict(name: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """A definition that accepts no other fields than its own."""
    if name in _NUMBERS:
        return {"type": _NUMBERS[name]}
    strict = copy.deepcopy(dict(body))
    for field in ("format", _GROUPS):
        strict.pop(field, None)
    if "properties" in strict:
        strict["additionalProperties"] = False
    return strict


def _reachable(name: str, definitions: Mapping[str, Any]) -> set[str]:
    """The names of a definition and of all definitions to which it refers."""
    reached, rest = {name}, [name]
    while rest:
        new = set(_references(definitions[rest.pop()])) - reached
        reached |= new
        rest += new
    return reached


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref" and isinstance(inner, str):
                yield inner.removeprefix(_DEFINITIONS)
            else:
                yield from _references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _references(inner)


def conform(program: Path, schemas: Path, files: Sequence[Path]) -> list[str]:
    """What kubeconform refuses in files of manifests. An empty list: all of them are valid, and none was left out."""
    location = f"{schemas}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    command = [str(program), "-strict", "-output", "json", "-verbose", "-schema-location", location]
    done = subprocess.run([*command, *map(str, files)], capture_output=True, text=True, check=False)
    try:
        resources = json.loads(done.stdout)["resources"]
    except (ValueError, KeyError) as error:
        raise AssertionError(f"kubeconform printed {done.stdout!r} and {done.stderr!r}") from error
    assert len(resources) >= len(files)
    return [
        f"{resource['kind']} {resource['name']}: {resource['msg']}"
        for resource in resources
        if resource["status"] != "statusValid"
    ]
