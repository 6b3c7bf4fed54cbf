"""Ingestion: from an upload to visible chunks."""
