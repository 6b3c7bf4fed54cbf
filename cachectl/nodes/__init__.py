"""Nodes of the knowledge tree and their copies: what policies, tiers and tree all build on."""
