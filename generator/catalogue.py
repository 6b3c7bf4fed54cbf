"""Well-known open models that the engine and its KV connector serve.

Numbers are those of the models' own configuration files. Parameters are counted once where embeddings are tied.
"""

from functools import partial

from generator.model_facts import ModelFacts

_APACHE = "Apache-2.0"
_LLAMA = "Llama licence"
_GEMMA = "Gemma licence"

_gemma3 = partial(ModelFacts, head_dim=256, context=131_072, licence=_GEMMA, window=1024)

CATALOGUE = (
    ModelFacts("smollm2-135m-instruct", 134_515_008, 30, 3, 64, 8192, _APACHE),
    ModelFacts("HuggingFaceTB/SmolLM2-360M-Instruct", 361_821_120, 32, 5, 64, 8192, _APACHE),
    ModelFacts("Qwen/Qwen2.5-0.5B-Instruct", 494_032_768, 24, 2, 64, 32_768, _APACHE),
    ModelFacts("Qwen/Qwen3-0.6B", 596_049_920, 28, 8, 128, 40_960, _APACHE),
    ModelFacts(
        "LiquidAI/LFM2-1.2B",
        1_170_340_608,
        6,
        8,
        64,
        128_000,
        "LFM Open Licence",
        state_layers=10,
        state_values=10 * 2 * 2048,
    ),
    ModelFacts("meta-llama/Llama-3.2-1B-Instruct", 1_235_814_400, 16, 8, 64, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen2.5-1.5B-Instruct", 1_543_714_304, 28, 2, 128, 32_768, _APACHE),
    ModelFacts("HuggingFaceTB/SmolLM2-1.7B-Instruct", 1_711_376_384, 24, 32, 64, 8192, _APACHE),
    ModelFacts("Qwen/Qwen3-1.7B", 1_720_574_976, 28, 8, 128, 40_960, _APACHE),
    ModelFacts("Qwen/Qwen2.5-3B-Instruct", 3_085_938_688, 36, 2, 128, 32_768, "Qwen Research"),
    ModelFacts("meta-llama/Llama-3.2-3B-Instruct", 3_212_749_824, 28, 8, 128, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen3-4B", 4_022_468_096, 36, 8, 128, 40_960, _APACHE),
    _gemma3("google/gemma-3-4b-it", 4_300_079_472, 5, 4, windowed_layers=29),
    ModelFacts("mistralai/Mistral-7B-Instruct-v0.3", 7_248_023_552, 32, 8, 128, 32_768, _APACHE),
    ModelFacts("Qwen/Qwen2.5-7B-Instruct", 7_615_616_512, 28, 4, 128, 32_768, _APACHE),
    ModelFacts("meta-llama/Llama-3.1-8B-Instruct", 8_030_261_248, 32, 8, 128, 131_072, _LLAMA),
    ModelFacts("Qwen/Qwen3-8B", 8_190_735_360, 36, 8, 128, 40_960, _APACHE),
    _gemma3("google/gemma-3-12b-it", 12_187_325_040, 8, 8, windowed_layers=40),
    ModelFacts("microsoft/phi-4", 14_659_507_200, 40, 10, 128, 16_384, "MIT"),
    ModelFacts("Qwen/Qwen2.5-14B-Instruct", 14_770_033_664, 48, 8, 128, 32_768, _APACHE),
    ModelFacts(
        "deepseek-ai/DeepSeek-V2-Lite-Chat",
        15_706_484_224,
        27,
        16,
        192,
        163_840,
        "DeepSeek licence",
        latent=512 + 64,
    ),
    ModelFacts(
        "openai/gpt-oss-20b",
        20_914_757_184,
        12,
        8,
        64,
        131_072,
        _APACHE,
        windowed_layers=12,
        window=128,
        # The experts are in MXFP4.
        stored_bytes=13_760_000_000,
    ),
    ModelFacts("Qwen/Qwen2.5-32B-Instruct", 32_763_876_352, 64, 8, 128, 32_768, _APACHE),
    ModelFacts("meta-llama/Llama-3.3-70B-Instruct", 70_553_706_496, 80, 8, 128, 131_072, _LLAMA),
    ModelFacts(
        "Qwen/Qwen3-Next-80B-A3B-Instruct",
        81_324_862_720,
        12,
        2,
        256,
        262_144,
        _APACHE,
        state_layers=36,
        state_values=36 * (3 * 8192 + 32 * 128 * 128),
    ),
)
"""By size. The first one ships with the stack."""
