"""The files in `deploy/` use options, routes, metrics and files of the server that exist."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from typer.main import get_command

from outrider import __version__
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
    assert "g++" not in text
    assert "--only-binary :all:" in text, "it compiles nothing"
    ignored = (deploy.parent / ".dockerignore").read_text().split()
    copied = re.findall(r"^COPY (?!--from)(\S+)", text, re.MULTILINE)
    (cache,) = re.findall(r"^VOLUME (\S+)$", text, re.MULTILINE)
    assert f"OUTRIDER_CACHE={cache}" in text, "downloads are kept"
    assert (copied, ignored) == (["dist"], ["**", "!dist/*.whl"]), "nothing but the wheels"


def test_the_systemd_unit(deploy: Path, tmp_path: Path) -> None:
    text = (deploy / "outrider.service").read_text()
    (models,) = re.findall(r'^Environment="MODELS=(.*)"$', text, re.MULTILINE)
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    program, command, *given = line.replace("$MODELS", models).split()
    assert (Path(program).name, command) == ("outrider", "serve")
    check_arguments(given)
    deadline = float(given[given.index("--deadline") + 1])
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert float(stop) > deadline + 1, "requests in flight may finish"
    assert "DynamicUser=yes" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("the rest needs systemd-analyze")
    unit = tmp_path / "outrider.service"
    unit.write_text(text.replace(program, sys.executable))
    assert "Environment=OUTRIDER_CACHE=%C/outrider\n" in text
    assert "CacheDirectory=outrider\n" in text, "downloads are kept"
    for words in (["verify"], ["security", "--offline=true", "--threshold=20", "--no-pager"]):
        done = subprocess.run(
            ["systemd-analyze", *words, str(unit)], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not [one for one in done.stderr.splitlines() if one.startswith(unit.name)]


def test_the_release_workflow(repository: Path) -> None:
    text = (repository / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert jobs["publish"]["needs"] == ["linux", "other", "test"], "only what was tested"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert "password" not in str(jobs["publish"]), "trusted publishing needs no token"
    (image,) = [step for step in jobs["image"]["steps"] if "platforms" in step.get("with", {})]
    assert image["with"]["platforms"] == "linux/amd64,linux/arm64"
    assert (repository / image["with"]["file"]).is_file()
    machines = {"ubuntu-24.04", "ubuntu-24.04-arm"}
    assert set(jobs["test"]["strategy"]["matrix"]["machine"]) == machines
    for name, job in jobs.items():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs), name
        for step in job["steps"]:
            for script in re.findall(r"native/[\w/]+\.(?:sh|py)", step.get("run", "")):
                assert (repository / script).is_file(), script


def test_the_tag_is_compared_with_the_version(repository: Path) -> None:
    jobs = yaml.safe_load((repository / ".github" / "workflows" / "release.yml").read_text())[
        "jobs"
    ]
    (check,) = [
        step["run"] for step in jobs["linux"]["steps"] if "GITHUB_REF_NAME" in step.get("run", "")
    ]

    def status(tag: str) -> int:
        environment = os.environ | {"GITHUB_REF_NAME": tag}
        return subprocess.run(["bash", "-c", check], cwd=repository, env=environment).returncode

    assert status(f"v{__version__}") == 0
    assert status("v0.0.0") == 1


@pytest.mark.parametrize("script", ["wheels.sh", "tests/wheels.sh"])
def test_the_scripts_of_wheels_are_shell(repository: Path, script: str) -> None:
    assert os.access(repository / "native" / script, os.X_OK)
    subprocess.run(["bash", "-n", repository / "native" / script], check=True)


def test_wheels_need_their_interpreters(repository: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [repository / "native" / "wheels.sh", tmp_path / "dist"],
        env=os.environ | {"PYTHONS": "python3.99"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == "python3.99 does not run: set PYTHONS to the interpreters to build with\n"


def test_compose(deploy: Path) -> None:
    content = yaml.safe_load((deploy / "compose.yaml").read_text())
    services = content["services"]
    server = services["outrider"]
    check_arguments(server["command"])
    assert (deploy / server["build"]["context"] / server["build"]["dockerfile"]).is_file()
    assert server["read_only"]
    mounts = [one for service in services.values() for one in service.get("volumes", [])]
    for mount in mounts:
        place = mount.split(":")[0]
        assert place in content["volumes"] or (deploy / place).exists(), mount
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
