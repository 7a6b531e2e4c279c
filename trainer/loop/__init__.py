"""The on-device loop: the plan of its dispatches, their programs, the feeder and the dispatch results."""
