"""The history of a work directory: where its runs started, what they read, and how they ended."""
