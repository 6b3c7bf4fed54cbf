"""The doctor's check of an object store: it makes the tier's requests, and leaves nothing behind."""

import pytest
from doctor_cases import doctor_context
from s3_server import CREDENTIALS, REGION, S3Server, failing

from examine.doctor.checks.object_store import ObjectStore
from examine.doctor.checks.space import Disk
from examine.doctor.outcome import Outcome, Status
from examine.measuring.engines import EngineMaker
from generator.settings import ObjectStoreSettings


@pytest.fixture
def s3(monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    server = S3Server()
    yield server
    server.close()


def bucket_in(s3: S3Server) -> ObjectStoreSettings:
    url = f"s3://{s3.new_bucket()}/kv"
    return ObjectStoreSettings(url=url, endpoint=s3.endpoint, region=REGION, allow_http=True, timeout_s=20)


async def examined(tmp_path, store: ObjectStoreSettings | None) -> Outcome:
    with doctor_context(tmp_path, kv={"object_store": store}) as context:
        return await ObjectStore().run(context)


async def test_a_store_that_does_all_passes_and_stays_as_it_was(tmp_path, s3):
    store = bucket_in(s3)
    found = await examined(tmp_path, store)
    assert found.status is Status.PASSED
    assert found.figure.startswith(f"{store.url}, writes ")
    # S3 deletes by POST.
    assert {request.split()[0] for request in s3.requests} >= {"PUT", "GET", "HEAD", "POST"}
    bucket = store.url.split("/")[2]
    assert list(s3.open(bucket).list("")) == []


@pytest.mark.parametrize("refused", ["PUT", "GET", "HEAD", "POST"])
async def test_a_store_that_refuses_one_kind_of_request_fails(tmp_path, s3, refused):
    store = bucket_in(s3)
    with s3.answering(failing("403 Forbidden", methods=refused)):
        found = await examined(tmp_path, store)
    assert found.status is Status.FAILED
    assert found.why.startswith(f"a request to {store.url} failed: ")


async def test_a_store_that_returns_other_bytes_fails(tmp_path, s3):
    def zeros(environ, start_response):
        if environ["REQUEST_METHOD"] != "GET" or environ.get("QUERY_STRING"):
            return None
        begin, end = (int(part) for part in environ["HTTP_RANGE"].removeprefix("bytes=").split("-"))
        headers = [
            ("Content-Length", str(end + 1 - begin)),
            ("Content-Range", f"bytes {begin}-{end}/{end + 1}"),
            ("Last-Modified", "Fri, 27 Nov 2026 12:00:00 GMT"),
            ("ETag", '"zeros"'),
        ]
        start_response("206 Partial Content", headers)
        return [bytes(end + 1 - begin)]

    store = bucket_in(s3)
    with s3.answering(zeros):
        found = await examined(tmp_path, store)
    assert found == Outcome.failed(f"{store.url} returns other bytes than were written to it")


async def test_without_a_store_the_check_is_skipped_and_with_one_that_of_the_disk(tmp_path):
    assert (await examined(tmp_path, None)).status is Status.SKIPPED
    folder = ObjectStoreSettings(url=f"file://{tmp_path}/shared")
    with doctor_context(tmp_path, kv={"object_store": folder}) as context:
        assert (await Disk().run(context)).status is Status.SKIPPED
        assert (await ObjectStore().run(context)).status is Status.PASSED
        # Nor do the engines of a doctor or a benchmark use it.
        assert EngineMaker(context.settings, context.models).kv_settings(disk_dir=tmp_path).object_store is None
    assert list((tmp_path / "shared").iterdir()) == []
