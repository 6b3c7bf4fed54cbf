"""Authentication, quotas and concurrency limits of callers."""
