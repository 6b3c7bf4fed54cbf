"""Conversations about Python's standard library, and how well their last questions find what they ask for."""
