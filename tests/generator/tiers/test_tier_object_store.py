import itertools
import threading
from pathlib import Path

import numpy as np
import pytest
from example_counts import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import LocalStore, MemoryStore
from page_target import MemoryBlocks
from safetensors.numpy import load
from tier_checks import check_tier, used_bytes
from tier_contract import (
    FINGERPRINT,
    PAGE_BYTES,
    KeepingTierContract,
    content_of,
    held,
    make_node,
    page_count,
    read,
    write,
)
from tiers_under_test import open_disk, open_objects

from generator.tiers.base import Damage, KvBroken, KvMissing, TierFull
from generator.tiers.object_requests import ObjectRequests

NODE = make_node(0)
OBJECT_BYTES = 4096 + 3 * PAGE_BYTES
# More than one request fetches, and more than one part holds.
LARGE = make_node(5, 0, 16 * 3600)


def path_of(node=NODE, fingerprint=FINGERPRINT) -> str:
    return f"{fingerprint}/{node.key[:2]}/{node.key}.safetensors"


class TestTierInMemory(KeepingTierContract):
    @pytest.fixture(autouse=True)
    def _stores(self):
        self.stores: dict[Path, MemoryStore] = {}

    def open_tier(self, folder):
        return open_objects(ObjectRequests(self.stores.setdefault(folder, MemoryStore()), "memory"))


class TestTierInAFolder(KeepingTierContract):
    def open_tier(self, folder):
        return open_objects(ObjectRequests(LocalStore(folder, mkdir=True), str(folder)))


class TestTierInS3(KeepingTierContract):
    @pytest.fixture(autouse=True)
    def _server(self, s3):
        self.s3, self.buckets = s3, {}

    def open_tier(self, folder):
        if folder not in self.buckets:
            self.buckets[folder] = self.s3.new_bucket()
        return open_objects(self.s3.open(self.buckets[folder]))


class Bucket:
    """A store whose objects a test can look at and change."""

    def __init__(self, store) -> None:
        self.store = store

    def tier(self, **options):
        return open_objects(ObjectRequests(self.store, "bucket"), **options)

    def content(self, node=NODE) -> bytes:
        return bytes(self.store.get(path_of(node)).bytes())

    def replace(self, content: bytes, node=NODE) -> None:
        self.store.put(path_of(node), content)

    def flip(self, at: int, bit: int = 0, node=NODE) -> None:
        content = bytearray(self.content(node))
        content[at] ^= 1 << bit
        self.replace(bytes(content), node)

    def paths(self) -> set[str]:
        return {meta["path"] for chunk in self.store.list() for meta in chunk}


@pytest.fixture(params=["memory", "folder", "s3"])
def bucket(request, tmp_path):
    if request.param == "memory":
        return Bucket(MemoryStore())
    if request.param == "folder":
        return Bucket(LocalStore(tmp_path / "objects", mkdir=True))
    s3 = request.getfixturevalue("s3")
    return Bucket(s3.open(s3.new_bucket())._store)


@pytest.fixture
def tier(bucket):
    tier = bucket.tier()
    yield tier
    check_tier(tier)


def assert_broken(tier, bucket: Bucket, damage: str) -> None:
    """Assert that reading finds the damage, and that the copy is deleted and counted."""
    with pytest.raises(KvBroken) as broken:
        read(tier, NODE)
    assert broken.value.damage == damage
    assert bucket.paths() == set()
    assert tier.broken == {damage: 1}
    assert not tier.has(NODE.key, None)
    assert tier.nodes() == []
    with pytest.raises(KvMissing):
        read(tier, NODE)


def test_an_object_is_the_file_of_the_disk_tier(tier, bucket, tmp_path):
    disk = open_disk(tmp_path)
    write(disk, NODE)
    write(tier, NODE)
    assert bucket.paths() == {path_of()}
    assert bucket.content() == (tmp_path / path_of()).read_bytes()
    assert (load(bucket.content())["kv"] == content_of(NODE)).all()
    assert used_bytes(tier) == OBJECT_BYTES
    assert tier.highest_stamp == 0


def test_a_large_node_is_written_and_read_in_parts(tier, bucket):
    content = content_of(LARGE)
    assert content.nbytes > 2 * (8 << 20)
    write(tier, LARGE)
    target = MemoryBlocks(len(content), (PAGE_BYTES,))
    with tier.reading(LARGE.key, None) as reader:
        reader.load(0, range(len(content)), target)
        assert (reader.page(3000) == content[3000]).all()
        reader.uncache()
        assert (reader.page(2999) == content[2999]).all()
    assert len(target.written) == -(-content.nbytes // (8 << 20))
    assert all((target.page(index) == page).all() for index, page in enumerate(content))


def test_a_header_beyond_the_first_request_is_read(tier, bucket):
    assert page_count(LARGE) * 16 > 16 << 10
    write(tier, LARGE)
    assert [stored.node for stored in bucket.tier().nodes()] == [LARGE]


@settings(max_examples=examples(60))
@given(at=st.integers(0, OBJECT_BYTES - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_detected(at, bit):
    bucket = Bucket(MemoryStore())
    tier = bucket.tier()
    write(tier, NODE)
    bucket.flip(at, bit)
    with pytest.raises(KvBroken):
        read(tier, NODE)
    assert bucket.paths() == set()
    assert tier.broken.total() == 1


@pytest.mark.parametrize(
    ("at", "damage"), [(7, "size"), (1, "header"), (60, "header"), (4095, "header"), (4096 + PAGE_BYTES, "checksum")]
)
def test_a_flipped_bit_is_detected_counted_and_deleted(tier, bucket, at, damage):
    write(tier, NODE)
    bucket.flip(at)
    assert_broken(tier, bucket, damage)


@pytest.mark.parametrize("size", [0, 7, 8, 500, 4096, OBJECT_BYTES - 1, OBJECT_BYTES + 1])
def test_an_object_of_wrong_length_is_broken(tier, bucket, size):
    write(tier, NODE)
    bucket.replace((bucket.content() + b"x")[:size])
    assert_broken(tier, bucket, "size")


def test_a_flipped_bit_is_detected_when_pages_are_loaded(tier, bucket):
    write(tier, NODE)
    bucket.flip(4096 + 2 * PAGE_BYTES)
    with tier.reading(NODE.key, None) as reader, pytest.raises(KvBroken) as broken:
        reader.load(1, [0, 1], MemoryBlocks(2, (1800, 3200)))
    assert broken.value.damage == "checksum"
    assert bucket.paths() == set()


def test_an_object_of_another_fingerprint_is_broken(tier, bucket):
    write(bucket.tier(fingerprint="weights-2"), NODE)
    foreign = bucket.store.get(path_of(fingerprint="weights-2")).bytes()
    bucket.store.delete(path_of(fingerprint="weights-2"))
    bucket.replace(bytes(foreign))
    assert_broken(tier, bucket, "foreign")


def test_an_object_under_another_nodes_name_is_broken(tier, bucket):
    write(tier, make_node(1))
    content = bucket.content(make_node(1))
    tier.drop(make_node(1).key, None)
    bucket.replace(content)
    assert_broken(tier, bucket, "foreign")


def test_an_error_of_another_read_does_not_delete_a_good_object(tier, bucket):
    write(tier, NODE)
    write(tier, make_node(1))
    bucket.flip(4096, node=make_node(1))
    with pytest.raises(KvBroken), tier.reading(NODE.key, None):
        read(tier, make_node(1))
    assert held(tier) == {NODE.key}


def test_an_object_that_several_readers_find_broken_is_counted_once(tier, bucket):
    write(tier, NODE)
    bucket.flip(4096)
    with tier.reading(NODE.key, None) as one, tier.reading(NODE.key, None) as another:
        for reader in (one, another):
            with pytest.raises(KvBroken):
                reader.page(0)
    assert tier.broken == {"checksum": 1}


def test_a_good_object_that_replaced_a_broken_one_stays(tier, bucket):
    write(tier, NODE)
    good = bucket.content()
    bucket.flip(4096)
    with tier.reading(NODE.key, None) as reader:
        with pytest.raises(KvBroken):
            reader.page(0)
        bucket.replace(good)
    assert (read(tier, NODE) == content_of(NODE)).all()
    assert tier.broken == {}


def test_pages_of_two_versions_are_never_mixed(tier, bucket):
    write(tier, NODE)
    with tier.reading(NODE.key, None) as reader:
        bucket.store.delete(path_of())
        write(bucket.tier(), NODE, content=content_of(NODE, version=1))
        with pytest.raises(KvBroken) as broken:
            reader.page(0)
    assert broken.value.damage == Damage.CHANGED
    assert tier.broken == {}
    assert (read(tier, NODE) == content_of(NODE, version=1)).all()


def test_an_object_deleted_while_it_is_read_is_broken(tier, bucket):
    write(tier, NODE)
    with tier.reading(NODE.key, None) as reader:
        bucket.store.delete(path_of())
        with pytest.raises(KvBroken) as broken:
            reader.page(0)
    assert broken.value.damage == Damage.CHANGED
    assert not tier.has(NODE.key, None)


def test_a_deleted_object_is_missing_and_leaves_the_index(tier, bucket):
    write(tier, NODE)
    bucket.store.delete(path_of())
    assert used_bytes(tier) > 0
    with pytest.raises(KvMissing):
        read(tier, NODE)
    assert used_bytes(tier) == 0
    assert not tier.has(NODE.key, None)
    write(tier, NODE)
    assert (read(tier, NODE) == content_of(NODE)).all()


def test_machines_find_what_others_publish(tier, bucket):
    other = bucket.tier()
    write(other, NODE)
    assert used_bytes(tier) == 0
    assert tier.has(NODE.key, None)
    assert used_bytes(tier) > 0
    assert (read(tier, NODE) == content_of(NODE)).all()
    assert tier.has(NODE.key, None)
    write(other, make_node(1))
    assert held(tier) == {NODE.key, make_node(1).key}
    other.drop(NODE.key, None)
    assert not tier.has(NODE.key, None)
    assert held(tier) == {make_node(1).key}


def test_a_node_that_another_machine_wrote_is_not_written_again(tier, bucket):
    write(bucket.tier(), NODE, content=content_of(NODE, version=1))
    write(tier, NODE)
    assert tier.has(NODE.key, None)
    assert (read(tier, NODE) == content_of(NODE, version=1)).all()


def test_broken_objects_are_counted_and_deleted_when_nodes_are_listed(bucket):
    tier = bucket.tier()
    for number in range(4):
        write(tier, make_node(number))
    bucket.replace(bucket.content(make_node(0))[:100], make_node(0))
    bucket.flip(60, node=make_node(1))
    bucket.replace(b"", make_node(2))
    again = bucket.tier()
    assert held(again) == {make_node(3).key}
    assert again.broken == {"size": 2, "header": 1}
    assert bucket.paths() == {path_of(make_node(3))}
    check_tier(again)


def test_foreign_objects_are_left_alone(bucket):
    foreign = {"notes.txt", f"{FINGERPRINT}/readme", "weights-2/ab/abc.safetensors", f"{FINGERPRINT}/00/x.safetensors"}
    for path in foreign:
        bucket.store.put(path, bytes(5000))
    tier = bucket.tier(max_bytes=OBJECT_BYTES)
    write(tier, NODE)
    with pytest.raises(TierFull):
        write(tier, make_node(1))
    assert held(tier) == {NODE.key}
    assert bucket.paths() == foreign | {path_of()}


def test_objects_never_exceed_max_bytes(bucket):
    tier = bucket.tier(max_bytes=2 * OBJECT_BYTES)
    write(tier, NODE)
    write(tier, make_node(1))
    with pytest.raises(TierFull, match="do not fit"):
        write(tier, make_node(2, 0, 1))
    bucket.tier().drop(NODE.key, None)
    write(tier, make_node(2))
    assert used_bytes(tier) == 2 * OBJECT_BYTES
    check_tier(tier)


def test_objects_being_written_count_towards_max_bytes(bucket):
    tier = bucket.tier(max_bytes=2 * OBJECT_BYTES - 1)
    with pytest.raises(ValueError, match="0 of 3"), tier.writing(NODE, None), pytest.raises(TierFull):
        write(tier, make_node(1))
    write(tier, make_node(1))
    check_tier(tier)


def test_what_changes_during_a_listing_stays_in_the_index(bucket):
    """A listing is older than what is written and dropped while it is under way."""
    tier = bucket.tier()
    write(tier, NODE)
    write(tier, make_node(1))
    listing = tier._requests.list

    def list_then_change(folder):
        listed = list(listing(folder))
        tier.drop(NODE.key, None)
        write(tier, make_node(2))
        return listed

    tier._requests.list = list_then_change
    tier._list()
    tier._requests.list = listing
    check_tier(tier)
    assert held(tier) == {make_node(1).key, make_node(2).key}


def test_headers_are_read_once_and_many_at_once(s3):
    requests = s3.open(s3.new_bucket())
    tier = open_objects(requests)
    for number in range(100):
        write(tier, make_node(number, 0, 16))
    again = open_objects(requests)
    numbers, meeting = itertools.count(), threading.Barrier(16)

    def hold_the_first_ones(environ, start_response):
        """None of the first 16 requests is answered before all of them have arrived."""
        if environ["PATH_INFO"].endswith(".safetensors") and next(numbers) < meeting.parties:
            meeting.wait(20)

    with s3.answering(hold_the_first_ones) as arrived:
        for _ in range(2):
            assert len(again.nodes()) == 100
    assert len([request for request in arrived if request.endswith(".safetensors")]) == 100


def test_pages_are_valid_until_the_next_call(tier):
    write(tier, NODE)
    with tier.reading(NODE.key, None) as reader:
        page = reader.page(2)
        assert not page.flags.writeable
        assert (page == content_of(NODE)[2]).all()
    assert isinstance(page, np.ndarray)
