"""Models: their size and shape, and well-known open ones that the engine and its KV connector serve.

Numbers are those of the models' own configuration files. Parameters are counted once where embeddings are tied.
"""

import msgspec

_APACHE = "Apache-2.0"
_LLAMA = "Llama licence"


class ModelFacts(msgspec.Struct, frozen=True):
    """A model's size and shape. ``context`` is its longest prompt and answer in tokens.

    ``name`` is what ``ragtree up --model`` takes. ``licence`` is empty if it is unknown.
    """

    name: str
    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    context: int
    licence: str = ""

    def weight_bytes(self, value_bytes: int) -> int:
        """Bytes of the weights in a dtype of ``value_bytes`` bytes."""
        return self.parameters * value_bytes

    def kv_bytes(self, value_bytes: int) -> int:
        """Bytes of one token's KV in a dtype of ``value_bytes`` bytes: a key and a value a layer and head."""
        return 2 * self.layers * self.kv_heads * self.head_dim * value_bytes


CATALOGUE = (
    ModelFacts("smollm2-135m-instruct", 134_515_008, 30, 3, 64, 8192, _APACHE),
    ModelFacts("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 32, 5, 64, 8192, _APACHE),
    ModelFacts("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24, 2, 64, 32_768, _APACHE),
    ModelFacts("Qwen/Qwen3-0.6B", 596_049_920, 28, 8, 128, 40_960, _APACHE),
    ModelFacts("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, 16, 8, 64, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 2, 128, 32_768, _APACHE),
    ModelFacts("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 24, 32, 64, 8192, _APACHE),
    ModelFacts("Qwen/Qwen3-1.7B", 1_720_574_976, 28, 8, 128, 40_960, _APACHE),
    ModelFacts("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688, 36, 2, 128, 32_768, "Qwen Research"),
    ModelFacts("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824, 28, 8, 128, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen3-4B", 4_022_468_096, 36, 8, 128, 40_960, _APACHE),
    ModelFacts("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552, 32, 8, 128, 32_768, _APACHE),
    ModelFacts("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 28, 4, 128, 32_768, _APACHE),
    ModelFacts("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248, 32, 8, 128, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen3-8B", 8_190_735_360, 36, 8, 128, 40_960, _APACHE),
    ModelFacts("microsoft/phi-4", 14_659_507_200, 40, 10, 128, 16_384, "MIT"),
    ModelFacts("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664, 48, 8, 128, 32_768, _APACHE),
    ModelFacts("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352, 64, 8, 128, 32_768, _APACHE),
    ModelFacts("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496, 80, 8, 128, 131_072, _LLAMA),
)
"""By size. The first one ships with the stack."""
