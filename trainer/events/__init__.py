"""What a run tells: TensorBoard events and the progress line."""
