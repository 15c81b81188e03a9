"""The files in `deploy/` use options, routes, metrics and files of the server that exist."""

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.main import get_command

from outrider.cli.main import build_app


@pytest.fixture
def deploy(repository: Path) -> Path:
    return repository / "deploy"


def check_arguments(given: list[str]) -> None:
    """Parse a command line as `outrider serve` does, without serving."""
    command: Any = get_command(build_app("serve"))
    command.commands["serve"].make_context("serve", list(given))


def figures(url: str) -> set[str]:
    """Return the names of all metrics after one request."""
    body = {"q": "a small dog", "source": "en", "target": "de"}
    httpx.post(f"{url}/translate", json=body, timeout=60).raise_for_status()
    lines = httpx.get(f"{url}/metrics").text.splitlines()
    return {re.split(r"[{ ]", line, maxsplit=1)[0] for line in lines if line[:1] not in ("", "#")}


def test_the_container(deploy: Path) -> None:
    text = (deploy / "Containerfile").read_text()
    (entry,) = re.findall(r"ENTRYPOINT (\[.*\])", text)
    name, command, *given = json.loads(entry)
    assert (name, command) == ("outrider", "serve")
    check_arguments(["en-de=/models/en-de", *given])
    assert re.search(r"^USER 10001$", text, re.MULTILINE), "it is not root"
    assert "torch" not in text.replace("PyTorch", "")


def test_compose(deploy: Path) -> None:
    services = yaml.safe_load((deploy / "compose.yaml").read_text())["services"]
    server = services["outrider"]
    check_arguments(server["command"])
    assert (deploy / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["read_only"]
    mounts = [one for service in services.values() for one in service.get("volumes", [])]
    for mount in mounts:
        assert (deploy / mount.split(":")[0]).exists(), mount
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert all(port.startswith("127.0.0.1:") for port in ports), "only this machine comes in"


def test_kubernetes(deploy: Path, url: str) -> None:
    parts = list(yaml.safe_load_all((deploy / "kubernetes.yaml").read_text()))
    found = {part["kind"]: part for part in parts}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_arguments(container["args"])
    deadline = float(container["args"][container["args"].index("--deadline") + 1])
    assert pod["terminationGracePeriodSeconds"] > deadline + 1, "requests in flight may finish"
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert httpx.get(url + container[probe]["httpGet"]["path"]).status_code == 200
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    (scaled,) = found["HorizontalPodAutoscaler"]["spec"]["metrics"]
    assert scaled["pods"]["metric"]["name"] in figures(url)


def test_every_metric_on_the_dashboard_exists(deploy: Path, url: str) -> None:
    board = json.loads((deploy / "grafana" / "outrider.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["query"]["query"] for one in board["templating"]["list"]]
    named = {name for one in asked for name in re.findall(r"\b(?:outrider|process)_\w+", one)}
    assert len(named) > 10
    assert not named - figures(url)
