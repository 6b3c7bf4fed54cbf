"""Each trace format is read correctly. An invalid line is reported with its number."""

import gzip

import pytest
from workload_files import plain, write_lines

from protocol.errors import ConfigError
from ragtree_lab.workloads.traces import open_trace
from ragtree_lab.workloads.workload import TraceDocument, TraceRequest

BLOCKS = [
    {"id": 1, "kind": "sys_prompt", "tokens": 512},
    {"id": 2, "kind": "sys_prompt", "tokens": 40},
    {"id": 3, "kind": "passage", "tokens": 100},
    {"id": 4, "kind": "passage", "tokens": 200},
    {"id": 5, "kind": "history", "tokens": 30},
    {"id": 6, "kind": "user_input", "tokens": 10},
]
PULSE = {"t": 0.0, "input_len": 900, "output_len": 7, "hash_ids": [1, 2, 4, 3, 5, 6], "passages": [4, 3]}
MOON = {"t": 0.0, "input_len": 1100, "output_len": 9, "hash_ids": [0, 1, 2]}


def read(path):
    return list(open_trace(path, "mine").requests())


def pulse(folder, *rows, blocks=BLOCKS):
    write_lines(folder / "blocks.jsonl.gz", blocks)
    write_lines(folder / "requests.jsonl.gz", rows)
    return folder


def refused(path, line, what):
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert f"{path.name}, line {line}: " in str(caught.value)
    assert what in str(caught.value)


@pytest.mark.parametrize("opener", [open, gzip.open])
def test_plain_trace_is_read_gzipped_or_not(tmp_path, opener):
    rows = [plain(0, "a", "b"), plain(1.5, output_tokens=3, system_tokens=50, system_id="s", conv=4)]
    # The file name does not tell the format.
    assert read(write_lines(tmp_path / "trace", rows, opener)) == [
        TraceRequest(0.0, (TraceDocument("a", 100), TraceDocument("b", 100)), 20),
        TraceRequest(1.5, (), 20, output_tokens=3, system_tokens=50, system_id="s"),
    ]


def test_empty_lines_are_skipped_but_numbered(tmp_path):
    file = write_lines(tmp_path / "mine.jsonl", [plain(0, "a"), "", plain(1, "a"), " "], open)
    assert open_trace(file, "mine").length == len(read(file)) == 2
    refused(write_lines(tmp_path / "broken.jsonl", [plain(0, "a"), "", "x"], open), 3, "malformed")


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "truncated"),
        ("no JSON", "malformed"),
        ('"text"', "object"),
        (b'{"t": 1, "docs": [], "question_tokens": 1, "system_id": "\xff"}', "utf-8"),
        ({"t": 1, "docs": []}, "question_tokens"),
        ({"docs": [], "question_tokens": 1}, "`t`"),
        ({"t": 1, "question_tokens": 1}, "docs"),
        ({"t": 1, "docs": [{"id": "a"}], "question_tokens": 1}, "tokens"),
        ({"t": 1, "docs": [{"tokens": 1}], "question_tokens": 1}, "id"),
        (plain(1, "a", tokens=-1), ">= 1 - at `$.docs[0].tokens`"),
        (plain(1, "a", tokens=0), ">= 1"),
        (plain(1, "a", tokens=1.5), "int"),
        (plain(1, "a", tokens=True), "int"),
        (plain(1, "a", tokens="9"), "int"),
        (plain(1, 7), "str"),
        ({**plain(1, "a"), "question_tokens": -1}, ">= 0"),
        (plain(1, "a", system_tokens=-1), ">= 0"),
        (plain(1, "a", output_tokens=-1), ">= 0"),
        (plain(0.25, "a"), "time goes backwards, from 0.5 to 0.25"),
        (plain("1", "a"), "float"),
        ('{"t": NaN, "docs": [], "question_tokens": 1}', "malformed"),
        ('{"t": 1e999, "docs": [], "question_tokens": 1}', "out of range"),
    ],
)
def test_broken_line_is_reported_with_its_number_and_reason(tmp_path, line, what):
    file = write_lines(tmp_path / "mine.jsonl", [plain(0.5, "a")], open)
    if isinstance(line, bytes):
        file.write_bytes(file.read_bytes() + line)
    else:
        write_lines(file, [plain(0.5, "a"), line], open)
    refused(file, 2, what)


def test_requests_before_a_broken_line_are_returned(tmp_path):
    requests = open_trace(write_lines(tmp_path / "mine.jsonl", [plain(0, "a"), "x"], open), "mine").requests()
    assert next(requests).arrival_s == 0
    with pytest.raises(ConfigError):
        next(requests)


def test_truncated_file_is_refused(tmp_path):
    file = write_lines(tmp_path / "mine.jsonl.gz", [plain(n, f"{n * 7919 % 1000}") for n in range(1000)])
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"mine\.jsonl\.gz, line \d+: cannot be read"):
        read(file)


def test_file_without_requests_is_refused(tmp_path):
    for rows in ([], [""]):
        with pytest.raises(ConfigError, match="no request"):
            open_trace(write_lines(tmp_path / "mine.jsonl", rows), "mine")


def test_trace_of_unknown_format_is_refused(tmp_path):
    file = write_lines(tmp_path / "mine.jsonl", [{"t": 0.0, "input_len": 374, "output_len": 44}])
    refused(file, 1, "docs (plain), passages (RAGPulse) or hash_ids (Mooncake), and this has t, input_len, output_len")
    refused(write_lines(tmp_path / "list.jsonl", ["[]"]), 1, "object")


def test_ragpulse_request_is_system_part_passages_and_question(tmp_path):
    documents = (TraceDocument("0000000004", 200), TraceDocument("0000000003", 100))
    assert read(pulse(tmp_path, PULSE)) == [TraceRequest(0.0, documents, 88, 7, 512, "0000000001")]


def test_ragpulse_requests_without_passages_are_kept(tmp_path):
    (request,) = read(pulse(tmp_path, {**PULSE, "hash_ids": [1, 5, 6], "passages": []}))
    assert (request.documents, request.question_tokens) == ((), 388)


def test_ragpulse_requests_may_lack_a_system_prompt(tmp_path):
    (request,) = read(pulse(tmp_path, {**PULSE, "hash_ids": [3, 6], "passages": [3]}))
    assert (request.system_id, request.system_tokens, request.question_tokens) == ("", 0, 800)


def test_ragpulse_is_recognized_by_its_requests(tmp_path):
    folder = pulse(tmp_path, PULSE)
    assert read(folder / "requests.jsonl.gz") == read(folder)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"hash_ids": [1, 99]}, "component 99 is not in blocks.jsonl.gz"),
        ({"passages": [98]}, "component 98 is not in blocks.jsonl.gz"),
        ({"input_len": 811}, "input_len is 1 less"),
        ({"input_len": -1}, ">= 1"),
        ({"t": -1.0}, "time goes backwards"),
    ],
)
def test_broken_ragpulse_line_is_reported_with_its_number(tmp_path, change, what):
    refused(pulse(tmp_path, PULSE, {**PULSE, **change}) / "requests.jsonl.gz", 2, what)


def test_broken_ragpulse_table_is_reported_with_its_line(tmp_path):
    folder = pulse(tmp_path, PULSE, blocks=[BLOCKS[0], {**BLOCKS[1], "tokens": 0}])
    with pytest.raises(ConfigError, match=r"blocks\.jsonl\.gz, line 2: .*>= 1"):
        read(folder)


def test_ragpulse_without_its_table_is_refused(tmp_path):
    write_lines(tmp_path / "requests.jsonl", [PULSE], open)
    with pytest.raises(ConfigError, match=r"no blocks\.jsonl"):
        open_trace(tmp_path, "mine")


def test_folder_without_requests_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"no requests\.jsonl"):
        open_trace(tmp_path, "mine")


@pytest.mark.parametrize(("input_len", "last"), [(1100, 76), (1536, 512), (1025, 1), (1024, 512), (20, 512)])
def test_only_the_last_mooncake_block_may_be_partial(tmp_path, input_len, last):
    (request,) = read(write_lines(tmp_path / "moon.jsonl", [{**MOON, "input_len": input_len}]))
    assert [document.tokens for document in request.documents] == [512, 512, last]
    assert (request.question_tokens, request.output_tokens) == (0, 9)


def test_mooncake_request_without_blocks_is_refused(tmp_path):
    refused(write_lines(tmp_path / "moon.jsonl", [MOON, {**MOON, "hash_ids": []}]), 2, "length >= 1")


def test_sorting_mooncake_blocks_by_id_keeps_their_order(tmp_path):
    line = {**MOON, "hash_ids": list(range(8, 120)), "input_len": 112 * 512}
    (request,) = read(write_lines(tmp_path / "moon.jsonl", [line]))
    assert tuple(sorted(request.documents)) == request.documents
