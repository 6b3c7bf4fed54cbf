"""What a machine of a stack of several offers, keeps, tells and takes over."""

import os
import socket

import pytest

from generator.device import Device
from generator.peers.handshake import PeerKey
from protocol.errors import ConfigError
from services.cluster import first_machine
from services.cluster.first_machine import ENGINE, difference, identity_labels, placed, ray_options, room
from services.cluster.machine import VARIABLE, Machine, on_this_machine
from services.config import Config, load_config
from services.serve.applications import CONTROLLER, GATEWAY, GENERATOR, KV_GENERATOR, RETRIEVER, deployment_options

HEAD = "node:__internal_head__"
KEY = "a secret of all machines"
GPU = Device("H100", 80 << 30, is_gpu=True, native_bfloat16=True)
CPU = Device("CPU", 8 << 30, is_gpu=False, native_bfloat16=True)
OWN = {
    "DATA_DIR": "own-data",
    "CACHE_DIR": "/own/cache",
    "GENERATOR__CPU_THREADS": "7",
    "GENERATOR__CPU_KV_CACHE_GIB": "3",
    "GENERATOR__ENGINE_ARGS": '{"gpu_memory_utilization": 0.5, "enforce_eager": true}',
    "GENERATOR__KV__HOST_GIB": "11",
    "GENERATOR__KV__HOST_DIR": "/own/shm",
    "GENERATOR__KV__DISK_GIB": "12",
    "GENERATOR__KV__DISK_DIR": "/own/kv",
    "GENERATOR__KV__PEERS__KEY_FILE": "own-key",
    "GENERATOR__KV__PEERS__PORT": "9400",
}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGTREE_CONFIG", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_GCS_SERVER_PORT", "")
    return tmp_path


@pytest.fixture
def configured(monkeypatch):
    def configured(**options: str) -> Config:
        for option, value in options.items():
            monkeypatch.setenv(f"RAGTREE_{option}", value)
        return load_config()

    return configured


@pytest.fixture
def free_port() -> str:
    with socket.create_server(("", 0)) as free:
        return str(free.getsockname()[1])


def resources(config: Config, part: str) -> dict[str, float]:
    return deployment_options(config, part)["ray_actor_options"]["resources"]


class TestFirstMachine:
    def test_without_a_port_nothing_changes(self, configured):
        config = configured()
        assert placed(config) is config
        assert ray_options(config) == {}
        assert os.environ["RAY_GCS_SERVER_PORT"] == ""

    def test_engines_need_room_and_all_else_stays_on_the_head(self, configured, free_port):
        config = placed(
            configured(CLUSTER__PORT=free_port, SERVING__GENERATOR__RESOURCES='{"fast": 1}', CONTROLLER__SHARDS="2")
        )
        assert resources(config, GENERATOR) == {ENGINE: 1, "fast": 1}
        assert resources(config, KV_GENERATOR) == {ENGINE: 1}
        for part in (RETRIEVER, f"{CONTROLLER}-0", f"{CONTROLLER}-1", GATEWAY):
            assert list(resources(config, part)) == [HEAD]

    @pytest.mark.parametrize("device", [GPU, CPU])
    def test_kv_generators_on_cpus_fit_no_machine_with_a_gpu(self, configured, free_port, device):
        config = placed(
            configured(
                CLUSTER__PORT=free_port,
                SERVING__GENERATOR__NUM_GPUS="1",
                SERVING__KV_GENERATORS__REPLICAS="1",
                GENERATOR__KV__PAGE_LAYOUT="neutral",
            )
        )
        offered = room(1, device)
        needed = resources(config, KV_GENERATOR)
        assert all(offered.get(name, 0) >= amount for name, amount in needed.items()) is not device.is_gpu
        assert resources(config, GENERATOR).items() <= offered.items()

    def test_ray_listens_at_the_port_and_offers_room(self, configured, free_port, monkeypatch):
        monkeypatch.setattr(first_machine, "find_device", lambda: GPU)
        config = configured(CLUSTER__PORT=free_port, CLUSTER__ENGINES="3", CLUSTER__HOST="10.0.0.1")
        options = ray_options(config)
        assert options["resources"] == {ENGINE: 3}
        assert options["labels"] == identity_labels(config)
        assert options["_node_ip_address"] == "10.0.0.1"
        assert os.environ["RAY_GCS_SERVER_PORT"] == free_port

    def test_a_port_that_is_taken_is_refused(self, configured):
        with socket.create_server(("", 0)) as taken:
            config = configured(CLUSTER__PORT=str(taken.getsockname()[1]))
            with pytest.raises(ConfigError, match="cannot listen on port"):
                ray_options(config)

    def test_without_tokens_no_machine_may_join(self, configured, free_port, monkeypatch):
        monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
        with pytest.raises(ConfigError, match="RAY_AUTH_MODE=token"):
            ray_options(configured(CLUSTER__PORT=free_port))


class TestIdentity:
    @pytest.fixture
    def key_file(self, elsewhere):
        file = elsewhere / "key"
        file.write_text(KEY)
        return file

    def test_equal_machines_differ_in_nothing(self, configured, key_file):
        labels = identity_labels(configured(GENERATOR__KV__PEERS__KEY_FILE=str(key_file)))
        assert difference(labels, dict(labels)) is None

    def test_labels_are_what_ray_accepts_and_hold_no_secret(self, configured, key_file):
        for value in identity_labels(configured(GENERATOR__KV__PEERS__KEY_FILE=str(key_file))).values():
            assert 0 < len(value) <= 63
            assert value.replace(".", "").isalnum()
            assert KEY not in value

    @pytest.mark.parametrize(
        ("label", "said"),
        [("version", "it has RAGTree 9.9"), ("ray", "it has Ray 9.9"), ("python", "it has Python 9.9")],
    )
    def test_another_version_is_named(self, configured, label, said):
        own = identity_labels(configured())
        assert said in difference({**own, f"ragtree.io/{label}": "9.9"}, own)

    def test_another_key_or_none_is_named(self, configured, key_file):
        alone = identity_labels(configured())
        one = identity_labels(configured(GENERATOR__KV__PEERS__KEY_FILE=str(key_file)))
        key_file.write_text("another secret of them")
        other = identity_labels(configured(GENERATOR__KV__PEERS__KEY_FILE=str(key_file)))
        assert "another secret" in difference(one, other)
        assert "only the first machine has" in difference(one, alone)
        assert "only this machine has" in difference(alone, one)

    def test_a_ray_of_someone_else_is_refused(self, configured):
        assert "has not started" in difference({}, identity_labels(configured()))

    def test_a_fingerprint_tells_secrets_apart_and_is_stable(self):
        assert PeerKey(KEY).fingerprint == PeerKey(KEY).fingerprint != PeerKey(f"{KEY}.").fingerprint


class TestMachine:
    def test_replicas_take_over_what_the_machine_has_of_its_own(self, configured, elsewhere, monkeypatch):
        stack = configured(GENERATOR__ENGINE_ARGS='{"gpu_memory_utilization": 0.7, "block_size": 32}')
        own = configured(**OWN, GENERATOR__MODEL="another-model")
        monkeypatch.setenv(VARIABLE, Machine.of(own).model_dump_json())
        here = on_this_machine(stack)
        kv = here.generator.kv
        assert here.data_dir == elsewhere / "own-data"
        assert kv.peers.key_file == elsewhere / "own-key"
        assert (here.cache_dir, kv.host_dir, kv.disk_dir) == (own.cache_dir, own.generator.kv.host_dir, kv.disk_dir)
        assert (kv.host_gib, kv.disk_gib, kv.peers.port) == (11, 12, 9400)
        assert (here.generator.cpu_threads, here.generator.cpu_kv_cache_gib) == (7, 3)
        assert here.generator.engine_args == {"gpu_memory_utilization": 0.5, "block_size": 32}
        # All else is the stack's.
        assert here.generator.model == stack.generator.model
        assert here.serving == stack.serving

    def test_on_the_first_machine_nothing_changes(self, configured, monkeypatch):
        monkeypatch.delenv(VARIABLE, raising=False)
        config = configured()
        assert on_this_machine(config) is config
