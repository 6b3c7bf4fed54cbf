"""Trace and question files for the workload tests."""

import gzip
import json


def write_lines(path, rows, opener=gzip.open):
    path.parent.mkdir(parents=True, exist_ok=True)
    with opener(path, "wt") as file:
        file.writelines((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows)
    return path


def plain(t, *ids, tokens=100, **fields):
    return {"t": t, "docs": [{"id": id_, "tokens": tokens} for id_ in ids], "question_tokens": 20, **fields}
