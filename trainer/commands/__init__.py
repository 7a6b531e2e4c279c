"""`python -m trainer` and its parts: finding recipes, flags from their fields, their modes;
predict, report and seen."""
