"""What describe tells of a dataset: facts from a sample of its records, and the page that shows them."""
