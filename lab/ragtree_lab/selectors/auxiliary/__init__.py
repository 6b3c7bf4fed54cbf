"""An auxiliary model beside the engine's: a small one that says what a question attends to (CacheClip, section 4.1)."""
