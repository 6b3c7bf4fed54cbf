"""The clients: send a request, read and judge its response."""
