"""What train_dataset and eval_dataset return: batches of one host from records, an order and a decoder, and what becomes of bad ones."""
