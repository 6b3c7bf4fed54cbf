"""Loaders: one module a format, each turning a document's bytes into its text and, where it has one, its title."""
