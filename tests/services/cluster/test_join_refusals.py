"""``ragtree join`` says at once, in one line, why this machine cannot join."""

import socket

import pytest
from typer.testing import CliRunner

from protocol.errors import ConfigError, Conflict
from services.cli.app import app
from services.cluster.first_machine import JoinFailed
from services.stack.run_state import RunState


@pytest.fixture(autouse=True)
def _machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGTREE_CONFIG", raising=False)
    monkeypatch.setenv("RAGTREE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    # The command sets these for its process.
    monkeypatch.setattr("services.config.ObservabilitySettings.configure_logging", lambda _: None)
    monkeypatch.setattr("os.umask", lambda _: 0)
    monkeypatch.setattr("signal.signal", lambda *_: None)


def refused(head: str) -> BaseException:
    failure = CliRunner().invoke(app, ["join", head]).exception
    assert failure is not None
    return failure


@pytest.mark.parametrize("head", ["machine", "machine:", "machine:0", ":6379", "machine:many"])
def test_what_is_no_address_is_refused(head):
    failure = refused(head)
    assert isinstance(failure, ConfigError)
    assert "is not host:port" in failure.message


def test_a_head_that_does_not_answer_is_named():
    with socket.create_server(("127.0.0.1", 0)) as free:
        head = f"127.0.0.1:{free.getsockname()[1]}"
    failure = refused(head)
    assert isinstance(failure, JoinFailed)
    assert f"nothing answers at {head}" in failure.message


def test_a_folder_in_use_is_refused(tmp_path):
    with RunState(tmp_path / "data").claimed():
        failure = refused("127.0.0.1:1")
    assert isinstance(failure, Conflict)
    assert "`ragtree join`" in failure.message


def test_without_tokens_it_does_not_join(monkeypatch):
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    failure = refused("127.0.0.1:1")
    assert isinstance(failure, ConfigError)
    assert "RAY_AUTH_MODE=token" in failure.message


def test_an_unreadable_key_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("RAGTREE_GENERATOR__KV__PEERS__KEY_FILE", str(tmp_path / "missing"))
    failure = refused("127.0.0.1:1")
    assert isinstance(failure, ConfigError)
    assert "cannot be read" in failure.message
