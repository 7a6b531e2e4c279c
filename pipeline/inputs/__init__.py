"""What a recipe returns: batches of one host from records, an order and a decoder, and what becomes of bad ones."""
