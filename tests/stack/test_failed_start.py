"""A stack that cannot start reports why and leaves no process behind."""

import psutil
import pytest
from stacks import HASHING, PATIENCE_S, command, cores

from services.stack.run_state import RunState, StackProcess, StartFailed

pytestmark = pytest.mark.ray


def test_missing_model_is_reported_at_once(tmp_path):
    ran = command("up", "--detach", RAGTREE_DATA_DIR=str(tmp_path), RAGTREE_GENERATOR__MODEL="/no/such/model")
    assert ran.returncode == 1
    assert "/no/such/model" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert RunState(tmp_path).running() is None


@pytest.mark.prove("services/", "generator/engines/")
@pytest.mark.vllm
def test_unknown_engine_arguments_are_reported_at_once(tmp_path):
    given = {"RAGTREE_GENERATOR__ENGINE_ARGS": '{"no_such_argument": 1}'}
    ran = command("up", "--detach", RAGTREE_DATA_DIR=str(tmp_path), **given)
    assert ran.returncode == 1
    assert "no_such_argument" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert RunState(tmp_path).running() is None


@pytest.mark.prove("services/stack/", "generator/engines/")
@pytest.mark.vllm
def test_engine_that_cannot_start_is_given_up_with_its_error(tmp_path):
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    environment = {
        **HASHING,
        "RAGTREE_SERVER__PORT": "0",
        "RAGTREE_GENERATOR__ENGINE_ARGS": '{"quantization": "no_such_method"}',
    }
    heard: list[str] = []
    with cores(), pytest.raises(StartFailed, match="no_such_method") as failed:
        StackProcess(tmp_path, environment).start(PATIENCE_S, on_wait=heard.append)
    assert "Traceback" not in failed.value.message
    assert any("tried again" in line and "no_such_method" in line for line in heard)
    assert RunState(tmp_path).running() is None
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
