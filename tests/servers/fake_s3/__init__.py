"""An S3 server for tests: moto in a process of its own, which can fail, reached by environment variables only.

Tests import `fake_s3.server`; faults and their patterns are those of fake_gcs."""
