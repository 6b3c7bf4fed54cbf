"""The whole stack on real Ray with the fake engine: behaviour that does not depend on the model."""

import json
import os
import signal
from contextlib import suppress

import httpx
import psutil
import pytest
from stacks import FAKE, FREEDONIA, PATIENCE_S, come_to, comparable, processes_on, until

from protocol.errors import Conflict
from services.cli.ingest import BATCH_DOCUMENTS

pytestmark = pytest.mark.ray

QUESTION = {"query": "What is the capital of Freedonia?", "collection": "countries", "top_k": 2}


def test_json_and_server_sent_events_give_the_same_object(fake_stack):
    as_json = fake_stack.query(**QUESTION).json()
    events = fake_stack.events(**QUESTION)
    assert comparable(as_json) == comparable(events[-1]["response"])
    assert as_json["citations"]
    assert "".join(event["delta"] for event in events if event["type"] == "output_text.delta") == as_json["output_text"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_ingest_command_reads_a_folder_and_skips_broken_files(fake_stack, tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "good.md").write_text("# Borduria\n\nThe capital of Borduria is Szohod.")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.4 not really")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / "more.jsonl").write_text('{"id": "syldavia", "text": "The capital of Syldavia is Klow."}\nnot json\n')
    ran = fake_stack.command("ingest", str(tmp_path), "--collection", "folder")
    assert ran.returncode == 1
    assert "2 documents ingested, 0 unchanged, 4 skipped" in ran.stderr
    for name in ("broken.pdf", "latin.txt", "picture.png", "more.jsonl"):
        assert name in ran.stderr
    again = fake_stack.command("ingest", str(tmp_path / "deep"), "--collection", "folder2")
    assert again.returncode == 0
    asked = fake_stack.command("query", "What is the capital of Borduria?", "--collection", "folder", "--json")
    assert json.loads(asked.stdout)["results"][0]["document_id"] == "deep/good.md"


def test_ingest_command_knows_jsonl_and_ndjson(fake_stack, tmp_path):
    (tmp_path / "more.ndjson").write_text('{"id": "grand fenwick", "text": "Grand Fenwick exports wine."}\n')
    ran = fake_stack.command("ingest", str(tmp_path), "--collection", "lines")
    assert ran.returncode == 0, ran.stderr
    assert "1 documents ingested" in ran.stderr


def test_the_command_line_streams_with_sources_and_timings(fake_stack):
    ran = fake_stack.command("query", QUESTION["query"], "--collection", "countries")
    assert ran.returncode == 0
    assert "marxville" in ran.stdout
    assert "freedonia" in ran.stdout.split("Sources")[1]
    assert "first token after" in ran.stdout


def test_the_eval_command_scores_a_users_questions(fake_stack, tmp_path):
    (tmp_path / "questions.jsonl").write_text(
        '{"question": "What is the capital of Freedonia?", "answers": ["Marxville"], "document_ids": ["freedonia"]}\n'
        '{"question": "Who is asking?"}\n'
    )
    arguments = ("--dataset", str(tmp_path / "questions.jsonl"), "--collection", "countries", "--top-k", "1")
    ran = fake_stack.command("eval", *arguments, "--report", str(tmp_path / "report"), "--json")
    assert ran.returncode == 0, ran.stderr
    (mode,) = json.loads(ran.stdout)["modes"].values()
    assert (mode["answered"], mode["failed"]) == (2, 0)
    for metric in ("recall", "reciprocal_rank", "ndcg_at_10", "citation_precision", "holds_answer"):
        assert mode["scores"][metric] == {"value": 1.0, "low": 1.0, "high": 1.0, "questions": 1}, metric
    assert 0 < mode["ttft_ms"]["p50"] <= mode["total_ms"]["p95"]
    assert sum(mode["tokens"][source] for source in ("cached", "composed", "computed")) == pytest.approx(1)
    assert (tmp_path / "report" / "evaluation.png").exists()


def test_the_command_line_reports_errors_in_one_line(fake_stack):
    ran = fake_stack.command("query", "anything", "--collection", "nowhere")
    assert ran.returncode == 1
    assert "unknown_collection" in ran.stderr
    assert "Traceback" not in ran.stderr
    away = fake_stack.command("query", "anything", "--url", "http://127.0.0.1:9")
    assert away.returncode == 1
    assert "no stack answers" in away.stderr


def test_status_lists_collections(fake_stack):
    ran = fake_stack.command("status", "--json")
    assert ran.returncode == 0
    status = json.loads(ran.stdout)
    assert status["ready"]
    assert "countries" in [collection["name"] for collection in status["collections"]]


def test_a_second_stack_on_the_same_folder_is_refused(fake_stack):
    with pytest.raises(Conflict, match="already runs"):
        fake_stack.process.start(wait_s=5)
    assert fake_stack.is_ready()


def test_a_taken_port_is_reported_before_anything_starts(fake_stack, tmp_path):
    port = fake_stack.url.rsplit(":", 1)[1]
    ran = fake_stack.command("up", RAGTREE_DATA_DIR=str(tmp_path), RAGTREE_SERVER__PORT=port)
    assert ran.returncode == 1
    assert "cannot listen" in ran.stderr


def test_invalid_configuration_is_one_message(fake_stack):
    ran = fake_stack.command("config", "show", RAGTREE_CONTROLLER__MAX_RUNNING="many")
    assert ran.returncode == 1
    assert "controller.max_running" in ran.stderr
    assert "Traceback" not in ran.stderr


def refusals_until_replaced(stack, replica):
    """Query until another replica answers; return the refusals, each of which must say what is missing."""
    refused = []

    def served_by_another():
        answer = stack.query(**QUESTION)
        if answer.status_code != 200:
            assert answer.status_code == 503
            assert answer.json()["error"]["code"] in ("engine_not_ready", "engine_died")
            assert int(answer.headers["Retry-After"]) > 0
            refused.append(answer)
        return answer.status_code == 200 and stack.processes("ServeReplica:generator") not in ([], [replica])

    until(served_by_another)
    return refused


def test_generator_killed_in_mid_stream_fails_the_stream_and_refuses_queries_until_replaced(fake_stack):
    # The answer repeats the document, which takes seconds.
    fake_stack.ingest("lengthy", {"long": "One two three four five six seven eight nine ten. " * 20})
    with fake_stack.asking(query="Count.", collection="lengthy", max_tokens=2000) as events:
        come_to(events, "output_text.delta")
        (replica,) = fake_stack.processes("ServeReplica:generator")
        replica.kill()
        *_, last = rest = list(events)
    assert last["type"] == "query.failed"
    assert last["error"]["code"] == "engine_died"
    assert {event["type"] for event in rest[:-1]} <= {"output_text.delta"}
    # After that failure, the next query is refused at once. It does not wait for the new replica.
    assert refusals_until_replaced(fake_stack, replica)


def test_generator_killed_while_idle_is_replaced(fake_stack):
    (replica,) = fake_stack.processes("ServeReplica:generator")
    replica.kill()
    # Before the loss is noticed, a query may be refused or wait for the new replica: there may be no refusals.
    refusals_until_replaced(fake_stack, replica)


def test_ingest_reports_a_broken_line_by_its_number_in_the_file(fake_stack, tmp_path):
    lines = [json.dumps({"id": f"d{number}", "text": "short"}) for number in range(BATCH_DOCUMENTS + 1)]
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join([*lines, "not json"]))
    ran = fake_stack.command("ingest", str(file), "--collection", "lines")
    assert f"many.jsonl (line {BATCH_DOCUMENTS + 2})" in ran.stderr
    assert f"{BATCH_DOCUMENTS + 1} documents ingested" in ran.stderr


@pytest.mark.prove("services/", "retriever/store/", "retriever/ingestion/")
def test_stack_killed_and_restarted_loses_nothing(start_stack):
    """The second start is behind Ray Serve's own ingress, where the API must be the same."""
    # So many documents that the job is not done when the stack is killed.
    count = 2000
    stack = start_stack(FAKE, "killed")
    lines = "\n".join(json.dumps({"id": f"d{n}", "text": f"Fact number {n} stands here. " * 8}) for n in range(count))
    with stack.client() as client:
        path = "/v1/collections/many/documents:batch"
        job = client.post(path, content=lines, headers={"Content-Type": "application/x-ndjson"}).json()
    family = stack.processes("")
    # Ray's agents outlive the rest of Ray by a minute. They must not disturb the next start.
    agents = [*stack.processes("ray::DashboardAgent"), *stack.processes("ray::RuntimeEnvAgent")]
    os.kill(stack.running.pid, signal.SIGKILL)
    _, left = psutil.wait_procs([process for process in family if process not in agents], timeout=PATIENCE_S)
    assert left == []
    stack.start(RAGTREE_SERVER__INGRESS="serve")
    with stack.client() as client:

        def completed():
            state = client.get(f"/v1/jobs/{job['job_id']}").raise_for_status().json()
            return state if state["status"] == "completed" else None

        state = until(completed)
        assert state["stored"] + state["unchanged"] == count
        collections = client.get("/v1/collections").json()["data"]
        assert [held["documents"] for held in collections if held["name"] == "many"] == [count]
    assert_api_behind_serve(stack)
    assert stack.stop()
    with pytest.raises(httpx.ConnectError), stack.client() as client:
        client.get("/healthz")
    for agent in agents:
        with suppress(psutil.NoSuchProcess):
            agent.kill()
    until(lambda: processes_on(stack.folder) == [])


def assert_api_behind_serve(stack):
    assert stack.processes("ServeReplica:gateway")
    stack.ingest("countries", {"freedonia": FREEDONIA})
    events = stack.events(**QUESTION)
    assert events[-1]["type"] == "query.completed"
    assert stack.query(query="x", collection="nowhere").json()["error"]["code"] == "unknown_collection"


def test_a_document_of_more_than_a_grpc_message_is_read(fake_stack):
    # 8 MiB, of which the loader keeps a sentence. gRPC's own limit is 4 MiB.
    page = f"<html><!--{'x' * 2**23}--><body>{FREEDONIA}</body></html>"
    stored = httpx.put(
        f"{fake_stack.url}/v1/collections/large/documents/page",
        content=page,
        headers={"Content-Type": "text/html"},
        timeout=PATIENCE_S,
    )
    assert stored.status_code == 202, stored.text
    job = f"{fake_stack.url}/v1/jobs/{stored.json()['job_id']}"
    until(lambda: httpx.get(job).json()["status"] == "completed")
    found = fake_stack.query(**{**QUESTION, "collection": "large"}).json()["results"]
    assert [each["document_id"] for each in found] == ["page"]
