"""The Ray Serve deployments. Each is a thin wrapper around one part's plain class."""
