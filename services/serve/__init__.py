"""The parts on Ray Serve: deployments, the applications around them, and the handles that call them."""
