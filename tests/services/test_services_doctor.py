"""The command `ragtree doctor`: results, exit codes and streams. The checks are fakes."""

import asyncio
import json
import sys

import pytest
from typer.testing import CliRunner

from examine.doctor.outcome import CheckResult, Outcome, Status
from protocol.errors import ConfigError
from services.cli.app import app
from services.stack.run_state import RunState


class FakeCheck:
    """Ends as told, and notes the context that it is given."""

    needs = ()

    def __init__(self, name: str, outcome: Outcome) -> None:
        self.name = name
        self._outcome = outcome
        self.context = None

    async def run(self, context):
        self.context = context
        print("a library prints this")
        engine = await asyncio.create_subprocess_exec(sys.executable, "-c", "print('an engine prints this')")
        await engine.wait()
        return self._outcome


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An idle machine whose places for KV and temporary files are empty folders."""
    for name in ("data", "host", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("RAGTREE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("RAGTREE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("RAGTREE_GENERATOR__KV__HOST_DIR", str(tmp_path / "host"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr("psutil.cpu_percent", lambda interval: 10.0)
    return tmp_path


@pytest.fixture
def doctor(places, monkeypatch, capfd):
    """Runs the command with these outcomes. Returns its exit code, standard output and standard error."""

    def run(outcomes: dict[str, Outcome], *arguments: str) -> tuple[int, str, str]:
        run.checks = [FakeCheck(name, outcome) for name, outcome in outcomes.items()]
        monkeypatch.setattr("examine.doctor.examination.standard_checks", lambda gates: run.checks)
        # Without the runner's own streams: the command redirects file descriptors.
        with pytest.raises(SystemExit) as ended:
            app(["doctor", *arguments])
        return ended.value.code, *capfd.readouterr()

    return run


GOOD = {"one": Outcome.passed("7 GB/s"), "two": Outcome.warning("buy a faster disk", "1 GB/s")}
BAD = {**GOOD, "three": Outcome.failed("an answer is wrong"), "four": Outcome.failed("the disk is full")}


def test_a_table_and_advice_are_printed_and_the_exit_code_is_0(doctor):
    code, out, err = doctor(GOOD)
    assert code == 0
    for text in ("one", "passed", "7 GB/s", "two", "warning", "1 GB/s", "two: buy a faster disk"):
        assert text in out
    assert "checks: 2 of 2" in err
    assert "prints this" not in out + err


def test_the_first_failure_is_the_last_line_and_the_exit_code_is_1(doctor):
    code, out, err = doctor(BAD)
    assert code == 1
    assert err.splitlines()[-1] == "three: an answer is wrong"
    assert "four: the disk is full" in out


@pytest.mark.parametrize(("outcomes", "expected"), [(GOOD, 0), (BAD, 1)], ids=["good", "bad"])
def test_json_is_all_that_standard_output_gets(doctor, outcomes, expected):
    code, out, err = doctor(outcomes, "--json")
    found = json.loads(out)
    assert code == expected
    assert found["passed"] == (expected == 0)
    assert [check["name"] for check in found["checks"]] == list(outcomes)
    assert found["checks"][1] == {"name": "two", "status": "warning", "figure": "1 GB/s", "why": "buy a faster disk"}
    assert err.splitlines()[-1] == ("three: an answer is wrong" if expected else "checks: 2 of 2")


def test_what_engines_print_can_be_kept(doctor, tmp_path):
    log = tmp_path / "kept.log"
    log.write_text("earlier\n")
    assert doctor(GOOD, "--log", str(log))[0] == 0
    lines = log.read_text().splitlines()
    assert lines[0] == "earlier"
    assert "an engine prints this" in lines


def test_nothing_is_left_behind(doctor, places):
    doctor(BAD)
    assert [list((places / name).iterdir()) for name in ("data", "host", "tmp")] == [[], [], []]


def test_the_model_can_be_named(doctor):
    doctor(GOOD, "--model", "/some/model")
    assert doctor.checks[0].context.settings.model == "/some/model"


def test_an_idle_machine_is_examined_in_full(doctor):
    doctor(GOOD)
    context = doctor.checks[0].context
    assert not context.surroundings.crowded
    assert context.sizes.prompts == 20


def test_a_running_stack_is_found_and_spared(doctor, places):
    state = RunState(places / "data")
    with state.claimed():
        state.publish("http://127.0.0.1:8080", "ray")
        doctor(GOOD)
    context = doctor.checks[0].context
    assert context.surroundings.stack_url == "http://127.0.0.1:8080"
    assert (context.sizes.prompts, context.sizes.threads) == (6, 1)


class FakeProof:
    """The entry point of a proof."""

    def load(self):
        return lambda: (CheckResult("KV from host", Status.FAILED, "", "a block has other bytes"),)


def test_a_proof_follows_if_nothing_has_failed(doctor, monkeypatch):
    monkeypatch.setattr("services.cli.doctor.entry_points", lambda group: [FakeProof()])
    code, out, err = doctor(GOOD, "--thorough", "--json")
    assert [check["name"] for check in json.loads(out)["checks"]] == ["one", "two", "KV from host"]
    assert code == 1
    assert err.splitlines()[-1] == "KV from host: a block has other bytes"
    _, out, _ = doctor(BAD, "--thorough", "--json")
    assert [check["name"] for check in json.loads(out)["checks"]] == list(BAD)


def test_a_proof_needs_the_laboratory(doctor, monkeypatch):
    monkeypatch.setattr("services.cli.doctor.entry_points", lambda group: [])
    with pytest.raises(ConfigError, match="--thorough needs ragtree-lab"):
        CliRunner().invoke(app, ["doctor", "--thorough"], catch_exceptions=False)


@pytest.mark.parametrize(
    ("variables", "arguments", "message"),
    [
        ({"RAGTREE_GENERATOR__ENGINE": "fake"}, (), "the doctor examines vLLM, but generator.engine is fake"),
        ({}, ("--log", "/no/such/folder/log"), "the log /no/such/folder/log cannot be written to"),
    ],
)
def test_bad_input_is_one_sentence(places, monkeypatch, variables, arguments, message):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(app, ["doctor", *arguments], catch_exceptions=False)
    assert [list((places / name).iterdir()) for name in ("data", "host", "tmp")] == [[], [], []]
