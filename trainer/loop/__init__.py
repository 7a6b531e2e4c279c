"""What the methods of the Trainer do: sessions, inputs, dispatches; training, evaluation,
prediction and export."""
