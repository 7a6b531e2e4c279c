"""Metrics, computed on the devices over the records that count. Exact on several hosts and with
padding."""
