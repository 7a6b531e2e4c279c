"""From text to numbers and back: built-in tokenizers, Hugging Face's, and how a dataset names its own."""
