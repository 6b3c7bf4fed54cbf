"""The Ray Serve deployments: each a thin wrapper round one part's plain class."""
