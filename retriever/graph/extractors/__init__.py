"""Extractors: how entities and relations are read from text."""
