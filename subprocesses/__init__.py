"""Worker processes that the parts start: messages to and from them, and the limits they run under."""
