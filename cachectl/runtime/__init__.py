"""The asynchronous shell of the controller: messages in, plans out. The only part of cachectl that uses asyncio."""
