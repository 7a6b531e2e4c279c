"""Batches of one host from records, an order and a decoder, and what becomes of bad records."""
