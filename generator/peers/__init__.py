"""Nodes' KV in other machines' host memory and disks: a server of pages, and its client, over authenticated TCP."""
