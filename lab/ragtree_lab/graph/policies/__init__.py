"""Replacement policies and request orders for the KV of graphs' facts, in a simulation."""
