"""What vLLM's worker gets from RAGTree: a call that hands the engine's model to the connector."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

from protocol.generation import ComposingInfo

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: "GPUModelRunner"

    def give_model_to_ragtree(self) -> tuple[ComposingInfo | None, str]:
        """Give the model to the connector. Returns how KV is composed, or None and why it is not."""
        connector: Any = get_kv_transfer_group()
        answer: tuple[ComposingInfo | None, str] = connector.take_runner(self.model_runner)
        return answer
