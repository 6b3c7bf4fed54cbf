"""What its own machine has: its folders, its share of memory, and the address of its KV.

Everything else comes from the first machine's configuration. ``ragtree join`` passes it to the replicas on its machine
in the environment of their Ray node.
"""

import os
from pathlib import Path
from typing import Self

from pydantic import BaseModel

from generator.settings import PeerSettings
from services.config import Config

VARIABLE = "RAGTREE_MACHINE"
"""Environment variable of replicas on a machine that has joined."""


class Machine(BaseModel, extra="forbid", frozen=True):
    """Options of the same names in the configuration. ``data_dir`` holds KV only, ``cache_dir`` the model.

    ``gpu_memory_utilization`` is the engine argument, if the machine sets it.
    """

    data_dir: Path
    cache_dir: Path
    cpu_threads: int
    cpu_kv_cache_gib: int
    gpu_memory_utilization: float | None
    host_gib: float
    host_dir: Path
    disk_gib: float
    disk_dir: Path | None
    peers: PeerSettings

    @classmethod
    def of(cls, config: Config) -> Self:
        """The machine of this configuration. Its paths become absolute, because replicas run in another folder."""
        engine, kv = config.generator, config.generator.kv
        key_file = kv.peers.key_file
        return cls(
            data_dir=config.data_dir.absolute(),
            cache_dir=config.cache_dir.absolute(),
            cpu_threads=engine.cpu_threads,
            cpu_kv_cache_gib=engine.cpu_kv_cache_gib,
            gpu_memory_utilization=engine.engine_args.get("gpu_memory_utilization"),
            host_gib=kv.host_gib,
            host_dir=kv.host_dir.absolute(),
            disk_gib=kv.disk_gib,
            disk_dir=kv.disk_dir and kv.disk_dir.absolute(),
            peers=kv.peers.model_copy(update={"key_file": key_file and key_file.absolute()}),
        )

    def applied_to(self, config: Config) -> Config:
        """Return the configuration of the stack as it holds on this machine."""
        kv = config.generator.kv.model_copy(
            update={name: getattr(self, name) for name in ("host_gib", "host_dir", "disk_gib", "disk_dir", "peers")}
        )
        share = self.gpu_memory_utilization
        engine_args = config.generator.engine_args | ({} if share is None else {"gpu_memory_utilization": share})
        generator = config.generator.model_copy(
            update={
                "cpu_threads": self.cpu_threads,
                "cpu_kv_cache_gib": self.cpu_kv_cache_gib,
                "engine_args": engine_args,
                "kv": kv,
            }
        )
        return config.model_copy(
            update={"data_dir": self.data_dir, "cache_dir": self.cache_dir, "generator": generator}
        )


def on_this_machine(config: Config) -> Config:
    """Return the configuration as it holds where this replica runs: unchanged, unless the machine has joined."""
    told = os.environ.get(VARIABLE)
    return config if told is None else Machine.model_validate_json(told).applied_to(config)
