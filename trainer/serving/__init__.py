"""From a model to a SavedModel: what it computes, how it is verified, and where it is published."""
