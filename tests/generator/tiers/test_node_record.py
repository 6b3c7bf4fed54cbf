from hypothesis import given
from hypothesis import strategies as st

from generator.tiers.arena_file import decode_node, encode_node
from protocol.kv import KvNode

PAGE_HEADER_ROOM = 4064

texts = st.text(max_size=20) | st.sampled_from(["", "ab", "AB", "a b", " ab", "abc", "ab\n", "\ud800", "x", "t"])


@given(key=texts, namespace=texts, path=st.lists(texts), prefix=st.integers(0, 2**40), tokens=st.integers(0, 2**40))
def test_a_record_holds_any_node(key, namespace, path, prefix, tokens):
    node = KvNode(key, namespace, tuple(path), prefix, tokens)
    assert decode_node(encode_node(node)) == node


def test_hexadecimal_texts_take_half_their_length():
    node = KvNode("0f" * 16, "1e" * 16, ("2d" * 32,) * 101, 100_000, 2000)
    assert len(encode_node(node)) < 101 * 35 + 100 < PAGE_HEADER_ROOM


@given(st.binary(max_size=60))
def test_bytes_that_are_no_record_are_no_node(record):
    assert decode_node(record) is None


def test_a_record_that_is_cut_off_or_not_text_is_no_node():
    record = encode_node(KvNode("00ff", "tenant", ("a", "b"), 3, 4))
    assert decode_node(record[:-1]) is None
    assert decode_node(record.replace(b"tenant", b"tenan\xff")) is None
