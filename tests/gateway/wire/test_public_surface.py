"""The public surface changes only on purpose: names, types and defaults equal the record."""

import json
import os

import pytest
from public_surface import RECORD, surface


@pytest.fixture
def _defaults(monkeypatch, tmp_path):
    for name in os.environ:
        if name.startswith("RAGTREE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("_defaults")
def test_public_surface_equals_its_record():
    now = json.loads(json.dumps(surface()))
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert now.keys() == recorded.keys()
    for kind in recorded:
        assert now[kind] == recorded[kind], kind
