"""What wraps every request, as plain ASGI."""
