"""The routes of the HTTP API, one module per resource. They translate between HTTP and the parts."""
