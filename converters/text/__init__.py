"""Documents in text files and tables: their layouts, and rows of tokens packed from them."""
