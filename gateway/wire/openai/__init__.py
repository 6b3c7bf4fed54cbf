"""OpenAI's shapes: request bodies, replies and streamed objects."""
