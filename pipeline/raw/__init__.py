"""Raw files as they are found: photographs, and rows of tables. Conversion and prediction share
what reads them."""
