"""A GCS server for tests: fake-gcs-server behind a gateway process of our own, reached by environment variables only.

Tests import `fake_gcs.server`. The gateway's process imports the rest with the standard library alone."""
