"""A stand-in for the Dataflow service: takes jobs, runs none, and says of them what a test has ordered.

Tests import `dataflow_stub.server`; its process runs `dataflow_stub.service` with the standard library alone."""
