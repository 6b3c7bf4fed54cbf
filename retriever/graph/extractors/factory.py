"""Build the extractor that the settings ask for."""

from retriever.graph.extractors.base import Extractor
from retriever.graph.extractors.given import GivenExtractor, WithGiven
from retriever.graph.extractors.phrases import Phrases
from retriever.graph.extractors.rules import RulesProcess, rules_fingerprint
from retriever.settings import GraphSettings


def build_extractor(settings: GraphSettings, phrases: Phrases) -> Extractor:
    """Return what reads chunks for a graph of this kind, which is not ``none``. Raises ConfigError."""
    if settings.kind == "given":
        return GivenExtractor()
    if settings.kind == "llm":
        # Loads OpenAI's client, which has hundreds of modules of types.
        from retriever.graph.extractors.llm.extractor import LlmExtractor

        assert settings.llm is not None
        return WithGiven(LlmExtractor(settings.llm))
    return WithGiven(RulesProcess(rules_fingerprint(phrases)))
