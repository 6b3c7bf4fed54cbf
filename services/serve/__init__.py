"""The parts as Ray Serve deployments."""
