"""The compose files for several machines: alike where they must be, private, joined by the same port and secrets."""

import re
import shlex

import pytest
import yaml
from compose_files import BASE, FIRST, GPU, SECOND, merged, parsed
from compose_spec import parse_duration
from dockerfiles import ROOT, chain
from options import is_option

from services.cli.app import app
from services.cluster.member import LEAVE_S
from services.config import load_config
from services.stack.foreground import PERSIST_S

HEAD = "10.0.0.1:6379"
MACHINES = {file: merged((file,), {"RAGTREE_HEAD": HEAD}) for file in (FIRST, SECOND)}
SERVICES = {file: document["services"]["ragtree"] for file, document in MACHINES.items()}
ONE = merged((BASE,))["services"]["ragtree"]
each = pytest.mark.parametrize("file", [FIRST, SECOND])


@pytest.mark.parametrize("files", [(FIRST,), (FIRST, GPU), (SECOND,), (SECOND, GPU)])
def test_every_combination_conforms_to_the_specification(files):
    assert parsed(merged(files, {"RAGTREE_HEAD": HEAD})).service_names() == ["ragtree"]


@each
def test_it_is_limited_and_unprivileged_like_the_service_of_one_machine(file):
    same = (
        *("image", "build", "user", "restart", "read_only", "cap_drop", "security_opt", "logging"),
        *("volumes", "tmpfs", "shm_size", "ulimits", "deploy"),
    )
    assert {key: SERVICES[file][key] for key in same} == {key: ONE[key] for key in same}
    assert MACHINES[file]["volumes"].keys() == {"data", "cache"}


@each
def test_it_sets_only_options_that_exist(file):
    ours = [name for name in SERVICES[file]["environment"] if name.startswith("RAGTREE_")]
    assert ours
    assert [name for name in ours if not is_option(name)] == []


@each
def test_token_and_key_are_files_that_only_the_container_names(file):
    service, environment = SERVICES[file], SERVICES[file]["environment"]
    mounted = {f"/run/secrets/{name}" for name in service["secrets"]}
    named = {environment["RAY_AUTH_TOKEN_PATH"], environment["RAGTREE_GENERATOR__KV__PEERS__KEY_FILE"]}
    assert mounted == named
    assert MACHINES[file]["secrets"].keys() == set(service["secrets"])
    # Ray's port runs code for all who have the token.
    assert environment["RAY_AUTH_MODE"] == "token"
    assert not {"RAY_AUTH_TOKEN"} & environment.keys()


@each
def test_it_is_in_the_machines_network_and_publishes_nothing_itself(file):
    assert SERVICES[file]["network_mode"] == "host"
    assert not {"ports", "networks"} & SERVICES[file].keys()


def test_the_gateway_listens_on_this_machine_unless_told_otherwise():
    assert SERVICES[FIRST]["environment"]["RAGTREE_SERVER__HOST"] == "127.0.0.1"


def test_the_secrets_are_the_same_on_both():
    assert MACHINES[FIRST]["secrets"] == MACHINES[SECOND]["secrets"]


def test_the_first_one_opens_the_port_that_the_second_one_joins(monkeypatch):
    for name, value in SERVICES[FIRST]["environment"].items():
        if value is not None:
            monkeypatch.setenv(name, str(value))
    config = load_config()
    assert config.cluster.port == int(HEAD.partition(":")[2])
    assert config.serving.generator.min_replicas == 2


def test_the_second_ones_command_is_one_that_exists():
    program, name, head = SERVICES[SECOND]["command"]
    assert (program, head) == ("ragtree", HEAD)
    assert name in {command.callback.__name__ for command in app.registered_commands}
    assert "command" not in SERVICES[FIRST]


def test_without_a_head_compose_refuses_to_start():
    raw = (ROOT / SECOND).read_text()
    assert len(re.findall(r"\$\{RAGTREE_HEAD:\?[^}]+\}", raw)) == len(re.findall(r"\$\{RAGTREE_HEAD", raw)) == 2


def test_the_second_one_asks_the_head_for_its_health():
    check = SERVICES[SECOND]["healthcheck"]["test"]
    assert check == ["CMD", *shlex.split(f"ray health-check --address {HEAD}")]
    # Ray's command line is on the path of the image.
    assert any(keyword == "ENV" and "/opt/venv/bin" in rest for keyword, rest in chain("cpu"))


@pytest.mark.parametrize(("file", "needed_s"), [(FIRST, PERSIST_S + 2 * 10), (SECOND, LEAVE_S)])
def test_stop_grace_period_is_long_enough(file, needed_s):
    assert parse_duration(SERVICES[file]["stop_grace_period"]) >= needed_s


@each
def test_the_header_names_files_that_exist(file):
    raw = (ROOT / file).read_text()
    named = set(re.findall(r"docker-compose[\w.-]*\.yml|(?:docker|docs)/[\w.-]+\.md", raw))
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
    assert yaml.safe_load(raw)["name"] == "ragtree"
