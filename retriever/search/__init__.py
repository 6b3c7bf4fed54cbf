"""From a question to chunks, stage by stage."""
