"""OpenAI's endpoints over the query pipeline and the embedder."""
