"""What vLLM's worker gets from RAGTree: a call that hands the engine's model to the connector."""

from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    model_runner: "GPUModelRunner"

    def give_model_to_ragtree(self) -> tuple[float, str]:
        """Give the model to the connector.

        Returns the seconds that moving a token's KV takes, and why that is not possible, or an empty text.
        """
        connector: Any = get_kv_transfer_group()
        answer: tuple[float, str] = connector.take_runner(self.model_runner)
        return answer
