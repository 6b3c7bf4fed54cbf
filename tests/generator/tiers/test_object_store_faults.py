"""An S3 server that is slow, refuses, fails, cuts, loses objects, or is not there."""

import threading
import time

import pytest
from page_target import MemoryBlocks
from s3_server import CREDENTIALS, S3Server, failing, hanging
from structlog.testing import capture_logs
from tier_checks import check_tier, used_bytes
from tier_contract import content_of, held, make_node, read, write
from tiers_under_test import open_objects

from generator.settings import ObjectStoreSettings
from generator.tiers.base import KvMissing, TierFull, TierUnavailable
from generator.tiers.object_requests import open_store

NODE = make_node(0)
LARGE = make_node(1, 0, 16 * 3600)
TIMEOUT_S = 0.4
PATIENCE_S = 30
SIGNED = (
    b"<Error><Code>AccessDenied</Code><AWSAccessKeyId>the-key-id</AWSAccessKeyId><StringToSign>x</StringToSign></Error>"
)


@pytest.fixture
def bucket(s3):
    return s3.new_bucket()


@pytest.fixture
def requests(s3, bucket):
    return s3.open(bucket)


@pytest.fixture
def tier(requests):
    return open_objects(requests)


@pytest.fixture
def clock():
    return [100.0]


@pytest.fixture
def clocked(requests, clock):
    """A tier whose pauses end when the test says so."""
    for breaker in (requests.reading, requests.writing):
        breaker._clock = lambda: clock[0]
    return open_objects(requests)


def make_impatient(tier, s3: S3Server, bucket: str) -> None:
    """Let the tier's requests have a short deadline from now on."""
    tier._requests = s3.open(bucket, TIMEOUT_S)


def contents(s3: S3Server, bucket: str) -> set[str]:
    found = s3.client().list_objects_v2(Bucket=bucket).get("Contents", [])
    return {entry["Key"].rpartition("/")[2] for entry in found}


def assert_kept(tier, node=NODE) -> None:
    """Assert that nobody takes the node for lost."""
    assert tier.has(node.key, None)
    assert tier.broken == {}
    assert used_bytes(tier) > 0


@pytest.mark.parametrize("status", ["403 Forbidden", "401 Unauthorized", "500 Internal Server Error", "503 Slow Down"])
def test_a_copy_that_a_store_does_not_serve_is_not_lost(s3, clocked, clock, status):
    write(clocked, NODE)
    with s3.answering(failing(status, SIGNED)), pytest.raises(TierUnavailable) as refused:
        read(clocked, NODE)
    assert status.split()[0] in str(refused.value)
    assert_kept(clocked)
    clock[0] += 1.01
    assert (read(clocked, NODE) == content_of(NODE)).all()


def test_a_store_that_fails_after_the_header_does_not_break_the_copy(s3, clocked, clock):
    write(clocked, NODE)
    with clocked.reading(NODE.key, None) as reader:
        with s3.answering(failing("500 Internal Server Error")), pytest.raises(TierUnavailable):
            reader.load(0, [0], MemoryBlocks(1, (5000,)))
        clock[0] += 1.01
        assert (reader.page(1) == content_of(NODE)[1]).all()
    assert_kept(clocked)


def test_a_slow_store_is_given_up_at_its_deadline(s3, bucket, tier):
    write(tier, NODE)
    make_impatient(tier, s3, bucket)
    release = threading.Event()
    with s3.answering(hanging(release)):
        began = time.monotonic()
        with pytest.raises(TierUnavailable, match="Timeout"):
            read(tier, NODE)
        took = time.monotonic() - began
        release.set()
    assert TIMEOUT_S / 2 < took < PATIENCE_S
    assert tier.has(NODE.key, None)
    assert tier.broken == {}


def test_not_each_query_waits_for_a_silent_store(s3, bucket, tier):
    write(tier, NODE)
    make_impatient(tier, s3, bucket)
    # The pause of a second does not end in this test.
    tier._requests.reading._clock = lambda: 100.0
    release = threading.Event()
    with s3.answering(hanging(release)) as arrived:
        for _ in range(20):
            with pytest.raises(TierUnavailable):
                read(tier, NODE)
        assert len(arrived) == 1
        release.set()


@pytest.mark.parametrize("told", [100, 16384])
def test_an_answer_with_too_few_bytes_is_no_damage(s3, clocked, clock, told):
    """The store says so, or the connection ends in the middle."""
    write(clocked, NODE)

    def shorten(environ, start_response):
        if environ["REQUEST_METHOD"] != "GET":
            return None
        headers = {"Content-Length": f"{told}", "Content-Range": f"bytes 0-{told - 1}/19096", "ETag": '"x"'}
        start_response("206 Partial Content", [*headers.items(), ("Last-Modified", "Thu, 26 Nov 2026 17:00:00 GMT")])
        return [bytes(100)]

    with s3.answering(shorten), pytest.raises(TierUnavailable):
        read(clocked, NODE)
    assert_kept(clocked)
    clock[0] += 1.01
    assert (read(clocked, NODE) == content_of(NODE)).all()


def test_a_lost_object_is_missing(s3, tier, bucket):
    write(tier, NODE)
    (key,) = (entry["Key"] for entry in s3.client().list_objects_v2(Bucket=bucket)["Contents"])
    s3.client().delete_object(Bucket=bucket, Key=key)
    with pytest.raises(KvMissing):
        read(tier, NODE)
    assert not tier.has(NODE.key, None)
    assert tier.broken == {}


def test_a_store_without_the_bucket_loses_nothing(s3, tier):
    write(tier, NODE)
    gone = b"<Error><Code>NoSuchBucket</Code></Error>"
    with s3.answering(failing("404 Not Found", gone)), pytest.raises(TierUnavailable):
        read(tier, NODE)
    assert tier.has(NODE.key, None)


def test_a_store_that_cannot_be_written_to_is_still_read(s3, bucket, tier):
    write(tier, NODE)
    reader = open_objects(s3.open(bucket))
    with s3.answering(failing("403 Forbidden", SIGNED, "PUT POST DELETE")) as arrived, capture_logs() as logs:
        for number in (1, 2, 3):
            with pytest.raises(TierFull):
                write(reader, make_node(number))
        reader.drop(NODE.key, None)
        assert (read(reader, NODE) == content_of(NODE)).all()
        assert held(reader) == {NODE.key}
        assert reader.has(NODE.key, None)
    assert [(entry["event"], entry["act"]) for entry in logs] == [("the object store fails", "writing")]
    assert len([request for request in arrived if request.startswith("PUT")]) == 1
    assert contents(s3, bucket) == {f"{NODE.key}.safetensors"}
    check_tier(reader)


@pytest.mark.parametrize("status", ["403 Forbidden", "500 Internal Server Error"])
def test_a_refused_write_leaves_nothing(s3, clocked, clock, bucket, status):
    with s3.answering(failing(status, methods="PUT")), pytest.raises(TierFull):
        write(clocked, NODE)
    assert contents(s3, bucket) == set()
    assert not clocked.has(NODE.key, None)
    assert used_bytes(clocked) == 0
    check_tier(clocked)
    clock[0] += 1.01
    write(clocked, NODE)
    assert (read(clocked, NODE) == content_of(NODE)).all()


@pytest.mark.parametrize("query", ["partNumber=2", "uploadId"])
def test_an_upload_that_fails_in_the_middle_is_aborted(s3, clocked, clock, bucket, query):
    """After one of its parts, or at the request that joins them."""

    def fail(environ, start_response):
        wanted = "POST" if query == "uploadId" else "PUT"
        if environ["REQUEST_METHOD"] == wanted and query in environ["QUERY_STRING"]:
            return failing("500 Internal Server Error")(environ, start_response)
        return None

    with s3.answering(fail), pytest.raises(TierFull):
        write(clocked, LARGE)
    assert contents(s3, bucket) == set()
    assert "Uploads" not in s3.client().list_multipart_uploads(Bucket=bucket)
    assert not clocked.has(LARGE.key, None)
    clock[0] += 1.01
    write(clocked, LARGE)
    assert (read(clocked, LARGE) == content_of(LARGE)).all()


def test_a_slow_write_is_given_up_at_its_deadline(s3, bucket):
    tier = open_objects(s3.open(bucket))
    tier._requests.put = s3.open(bucket, TIMEOUT_S).put
    release = threading.Event()
    with s3.answering(hanging(release, "PUT")):
        with pytest.raises(TierFull, match="Timeout"):
            write(tier, NODE)
        release.set()
    assert used_bytes(tier) == 0


def test_a_write_whose_answer_was_lost_is_found_by_the_next_one(s3, clocked, clock, bucket):
    """The store has the object, but told the writer of an error."""

    def lose(environ, start_response):
        if environ["REQUEST_METHOD"] != "PUT":
            return None
        b"".join(s3._moto(environ, lambda *_: lambda *_: None))
        return failing("500 Internal Server Error")(environ, start_response)

    with s3.answering(lose), pytest.raises(TierFull):
        write(clocked, NODE)
    assert contents(s3, bucket) == {f"{NODE.key}.safetensors"}
    assert used_bytes(clocked) == 0
    clock[0] += 1.01
    write(clocked, NODE)
    assert clocked.has(NODE.key, None)
    assert (read(clocked, NODE) == content_of(NODE)).all()
    check_tier(clocked)


def test_a_delete_that_fails_keeps_the_node(s3, clocked, clock):
    write(clocked, NODE)
    with s3.answering(failing("503 Slow Down", methods="POST DELETE")):
        clocked.drop(NODE.key, None)
    assert_kept(clocked)
    clock[0] += 1.01
    # Nobody asks again: the tree has given the copy up. It goes before anything else comes.
    write(clocked, make_node(1))
    assert held(clocked) == {make_node(1).key}


def test_a_node_that_is_wanted_again_is_not_deleted_late(s3, clocked, clock):
    write(clocked, NODE)
    with s3.answering(failing("503 Slow Down", methods="POST DELETE")):
        clocked.drop(NODE.key, None)
    clock[0] += 1.01
    write(clocked, NODE)
    write(clocked, make_node(1))
    assert held(clocked) == {NODE.key, make_node(1).key}


def test_a_listing_that_fails_keeps_the_index(s3, tier):
    write(tier, NODE)
    with s3.answering(failing("500 Internal Server Error", methods="GET")), pytest.raises(TierUnavailable):
        tier.nodes()
    assert used_bytes(tier) > 0


def test_a_header_that_cannot_be_read_is_listed_later(s3, bucket, requests, clock):
    write(open_objects(requests), NODE)
    for breaker in (requests.reading, requests.writing):
        breaker._clock = lambda: clock[0]
    tier = open_objects(requests)

    def fail_for_objects(environ, start_response):
        if "list-type" in environ["QUERY_STRING"]:
            return None
        return failing("500 Internal Server Error")(environ, start_response)

    with s3.answering(fail_for_objects), pytest.raises(TierUnavailable):
        tier.nodes()
    assert tier.has(NODE.key, None)
    assert used_bytes(tier) > 0
    clock[0] += 1.01
    assert held(tier) == {NODE.key}


def test_a_store_that_is_not_there_at_the_start_is_used_once_it_is(monkeypatch, unused_port):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    settings = ObjectStoreSettings(
        url="s3://a-bucket",
        endpoint=f"http://127.0.0.1:{unused_port}",
        region="us-east-1",
        allow_http=True,
        timeout_s=60,
    )
    with capture_logs() as logs:
        requests = open_store(settings)
        now = [100.0]
        for breaker in (requests.reading, requests.writing):
            breaker._clock = lambda: now[0]
        tier = open_objects(requests)
        assert not tier.has(NODE.key, None)
        for ask in (tier.nodes, lambda: read(tier, NODE)):
            with pytest.raises(TierUnavailable):
                ask()
        with pytest.raises(TierFull):
            write(tier, NODE)
        tier.drop(NODE.key, None)
    assert [(entry["event"], entry["act"]) for entry in logs] == [
        ("the object store fails", "reading"),
        ("the object store fails", "writing"),
    ]
    server = S3Server(unused_port)
    try:
        server.client().create_bucket(Bucket="a-bucket")
        now[0] += 61
        write(tier, NODE)
        assert (read(tier, NODE) == content_of(NODE)).all()
        assert held(tier) == {NODE.key}
    finally:
        server.close()


def test_nothing_is_written_before_the_store_has_been_listed(s3, bucket, requests, clock):
    """What it holds counts towards the budget."""
    write(open_objects(requests), NODE)
    for breaker in (requests.reading, requests.writing):
        breaker._clock = lambda: clock[0]
    with s3.answering(failing("500 Internal Server Error")):
        tier = open_objects(requests, max_bytes=30_000)
        with pytest.raises(TierFull, match="before a pause"):
            write(tier, make_node(1))
    clock[0] += 1.01
    with pytest.raises(TierFull, match="do not fit"):
        write(tier, make_node(1))
    assert used_bytes(tier) > 0


def test_no_error_or_log_tells_credentials_or_what_was_signed(s3, bucket, requests):
    write(open_objects(requests), NODE)
    texts = []
    with capture_logs() as logs, s3.answering(failing("403 Forbidden", SIGNED)):
        tier = open_objects(s3.open(bucket))
        for use in (lambda: read(tier, NODE), lambda: write(tier, make_node(2))):
            with pytest.raises((TierUnavailable, TierFull)) as refused:
                use()
            error: BaseException | None = refused.value
            while error is not None:
                texts.append(str(error))
                error = error.__cause__
        assert tier.identity == ""
    texts.append(str(logs))
    assert "403 Forbidden" in str(logs)
    for private in (*CREDENTIALS.values(), "StringToSign", "Signature"):
        assert private not in " ".join(texts)
