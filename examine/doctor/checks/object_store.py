"""The object store that keeps KV."""

import asyncio
import os
from time import perf_counter
from uuid import uuid4

from examine.doctor.context import Context
from examine.doctor.outcome import Outcome
from generator.settings import ObjectStoreSettings
from generator.tiers.base import TierError
from generator.tiers.object_requests import open_store
from protocol.errors import ConfigError

_PROBE_BYTES = 4 << 20


class ObjectStore:
    """Makes each kind of request that the disk tier makes of ``generator.kv.object_store``, with one test object.

    The engines of later checks keep KV in a folder, so that nothing else is written there.
    """

    name = "object store"
    needs = ()

    async def run(self, context: Context) -> Outcome:
        """Fails if the store does not answer, refuses a request, or returns something else than what was written."""
        settings = context.settings.kv.object_store
        if settings is None:
            return Outcome.skipped("generator.kv.object_store is not set")
        try:
            return await asyncio.to_thread(_probed, settings)
        except (ConfigError, TierError) as error:
            return Outcome.failed(str(error))


def _probed(settings: ObjectStoreSettings) -> Outcome:
    """Write, read, list and delete an object. Raises what its requests raise."""
    store = open_store(settings)
    path, content = f"ragtree-doctor-{uuid4().hex}", os.urandom(_PROBE_BYTES)
    began = perf_counter()
    store.put(path, memoryview(content))
    try:
        written = perf_counter()
        read = store.get(path, 0, len(content)).data
        ended = perf_counter()
        store.head(path)
        answered = perf_counter()
        # A folder without objects: a real one may have millions.
        list(store.list(f"{path}-none"))
    finally:
        store.delete(path)
    if read != content:
        return Outcome.failed(f"{store.name} returns other bytes than were written to it")
    up, down = (len(content) / 1e6 / seconds for seconds in (written - began, ended - written))
    answers_ms = (answered - ended) * 1000
    return Outcome.passed(f"{store.name}, writes {up:.0f} MB/s, reads {down:.0f} MB/s, answers in {answers_ms:.0f} ms")
