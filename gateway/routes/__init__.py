"""The routes of the HTTP API, one file a resource; each only translates between HTTP and the parts."""
